package proxyservice

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/relay"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// bed is a service that is not started, whose one channel leads from its rank to
// itself. Tests push triggers and have them served in their own goroutine. Memory 0
// is what puts go to, memory 1 what they come from.
type bed struct {
	service *ProxyService
	conn    *connection.Connection
	to      *gpu.Buffer
	words   *gpu.Buffer        // the semaphore's
	handle  func(fifo.Trigger) // a user's trigger; may be nil
	handled int                // the user's triggers
	thread  *thread            // with the service alone
	pushed  uint64             // triggers
}

const bedBytes = 4096

// own allocates memory of a registry's device.
func own(t testing.TB, reg *registeredmem.Registry, data []byte) (*gpu.Buffer, *registeredmem.Memory) {
	t.Helper()
	b := testerr.Must(gpu.Upload(reg.Device(), data))(t)
	t.Cleanup(func() { b.Close() })
	m := testerr.Must(reg.Register(b))(t)
	return b, m
}

func newRegistry(t testing.TB, o registeredmem.Options) *registeredmem.Registry {
	t.Helper()
	o.Device = testdev.Open(t, 0)
	reg := testerr.Must(registeredmem.NewRegistry(o))(t)
	t.Cleanup(func() { reg.Close() })
	return reg
}

// newWatch returns what bounds the waits of a device's kernels.
func newWatch(t testing.TB, d *gpu.Device) devicecode.Watch {
	t.Helper()
	status := testerr.Must(d.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))))(t)
	t.Cleanup(func() { status.Close() })
	return devicecode.Watch{Status: status.Ptr(), Timeout: uint64(time.Minute)}
}

// newBed returns a bed over a connection that connect makes.
func newBed(t testing.TB, connect func(testing.TB, *registeredmem.Registry) *connection.Connection) *bed {
	t.Helper()
	reg := newRegistry(t, registeredmem.Options{})
	pattern := make([]byte, bedBytes)
	for i := range pattern {
		pattern[i] = byte(1 + i%251)
	}
	b := &bed{}
	var dst, words *registeredmem.Memory
	b.to, dst = own(t, reg, make([]byte, bedBytes))
	_, src := own(t, reg, pattern)
	b.words, words = own(t, reg, make([]byte, semaphore.Host2DeviceBytes))
	b.conn = connect(t, reg)
	t.Cleanup(func() { b.conn.Close() })
	b.service = testerr.Must(New(reg.Device(), ServiceOptions{
		Options: Options{Count: true},
		Handler: func(_ context.Context, x fifo.Trigger) error {
			b.handled++
			if b.handle != nil {
				b.handle(x)
			}
			return nil
		},
	}))(t)
	t.Cleanup(func() { b.service.Close() })
	b.thread = newThread()
	r := &run{proxy: b.service.Proxy}
	b.thread.add(r)
	t.Cleanup(func() { b.thread.remove(r) })
	sem := testerr.Must(semaphore.NewHost2Device(b.conn, b.words, words, 0, newWatch(t, reg.Device())))(t)
	testerr.Must(b.service.PortChannel(sem, dst, src))(t)
	return b
}

// overCudaIPC connects a registry's rank to itself.
func overCudaIPC(t testing.TB, reg *registeredmem.Registry) *connection.Connection {
	t.Helper()
	e := testerr.Must(cudaipc.NewEndpoint(reg))(t)
	data := testerr.Must(e.MarshalBinary())(t)
	return testerr.Must(e.Connect(t.Context(), data))(t)
}

// overGo is overCudaIPC without a queue for threads in C.
func overGo(t testing.TB, reg *registeredmem.Registry) *connection.Connection {
	t.Helper()
	c, _ := relay.New(t, reg, reg.Rank(), overCudaIPC(t, reg), nil)
	return c
}

// idle is a driver on which everything is done at once.
type idle struct {
	writes, reads, stores, atomics, updates, marks int
	wrote                                          []byte
	queue                                          *native.Queue // may be nil
}

func (*idle) Ready(connection.Kind, uint64) bool { return true }

func (d *idle) Submit(o connection.Operation) error {
	switch o.Kind {
	case connection.Read:
		d.reads++
	case connection.Store:
		d.stores++
	case connection.Add, connection.Exchange:
		d.atomics++
	case connection.Update:
		d.updates++
	case connection.WriteBytes:
		d.wrote = append(d.wrote[:0], o.Data...)
		fallthrough
	default:
		d.writes++
	}
	return nil
}

func (*idle) InlineLimit() uint64 { return 64 }

func (d *idle) NewMark() (connection.DriverMark, error) { return d, nil }

func (d *idle) Set() error {
	d.marks++
	return nil
}

func (*idle) Reached() (bool, error)             { return true, nil }
func (*idle) Close() error                       { return nil }
func (d *idle) NativeQueue() *native.Queue       { return d.queue }
func (*idle) NativeError(f native.Failure) error { return nil }

// over connects a registry's rank to itself over a driver.
func over(d connection.Driver) func(testing.TB, *registeredmem.Registry) *connection.Connection {
	return func(t testing.TB, reg *registeredmem.Registry) *connection.Connection {
		t.Helper()
		return testerr.Must(connection.New(reg, reg.Rank(), registeredmem.CudaIPC, d))(t)
	}
}

// push writes n triggers into the ring, as kernels do, and returns the words of the
// last.
func (b *bed) push(x fifo.Trigger, n int) [4]uint64 {
	ring := b.service.ring.Internal().State()
	var words [4]uint64
	for range n {
		words = entry(x, b.pushed&ring.Size == 0)
		*(*[4]uint64)(unsafe.Add(ring.Entries, b.pushed%ring.Size*native.EntryBytes)) = words
		b.pushed++
	}
	return words
}

// entry returns the words of a trigger's entry in a lap with or without the tag.
func entry(x fifo.Trigger, tagged bool) [4]uint64 {
	const top = 1 << 63
	tag := uint64(0)
	if tagged {
		tag = top
	}
	return [4]uint64{
		tag | x.A&^top, tag | x.B&^top, tag | x.C&^top,
		tag | uint64(x.Kind)<<55 | x.C>>63<<54 | x.B>>63<<53 | x.A>>63<<52 | x.Detail&(1<<52-1),
	}
}

// serve serves what is in the ring, flushes included.
func (b *bed) serve() error {
	b.service.loop.stop()
	for {
		if _, over, err := b.thread.serve(); over {
			return err
		}
	}
}
