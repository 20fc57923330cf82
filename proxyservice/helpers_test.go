package proxyservice_test

import (
	"context"
	_ "embed"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

//go:embed port_test.cu
var source []byte

// images are what the source was compiled to, by architecture.
var images sync.Map

// image compiles the source for a device, once.
func image(t testing.TB, d *gpu.Device) []byte {
	t.Helper()
	arch := d.Info().Arch
	if image, ok := images.Load(arch); ok {
		return image.([]byte)
	}
	image := testerr.Must(devicecode.Compile(t.Context(), arch, "push_test.cu", source, devicecode.Options{}))(t)
	images.Store(arch, image)
	return image
}

// patience bounds what a test waits for.
const patience = 60 * time.Second

// rank is one of two ranks of this process.
type rank struct {
	dev      *gpu.Device
	reg      *registeredmem.Registry
	ethernet *ethernet.Transport // of a far rank, else nil
	status   *gpu.Buffer         // a devicecode.GroupStatus
	module   *gpu.Module
	stream   *gpu.Stream
	conn     *connection.Connection // to the other
	slab     *gpu.Buffer            // for ends of semaphores
	peers    *registeredmem.Memory  // the other's slab
	ends     int                    // used of slab
	service  *proxyservice.ProxyService
	failure  atomic.Pointer[error] // what OnFailure was called with
	other    *rank
}

const slabEnds = 12000

// newPair returns two ranks that are connected, with services that run. A failure
// of a service aborts the waits of both, as a communicator's would.
func newPair(t testing.TB, o proxyservice.ServiceOptions) [2]*rank {
	t.Helper()
	ranks := [2]*rank{newRank(t, 0, false), newRank(t, 1, false)}
	serve(t, ranks, o, func(r *rank) *connection.Connection { return r.connect(t) })
	return ranks
}

// newFarPair is newPair for ranks with only Ethernet between them.
func newFarPair(t testing.TB, o proxyservice.ServiceOptions) [2]*rank {
	t.Helper()
	ranks := [2]*rank{newRank(t, 0, true), newRank(t, 1, true)}
	var endpoints [2]connection.Endpoint
	for i, r := range ranks {
		endpoints[i] = testerr.Must(r.ethernet.NewEndpoint())(t)
	}
	serve(t, ranks, o, func(r *rank) *connection.Connection {
		b := testerr.Must(endpoints[r.other.reg.Rank()].MarshalBinary())(t)
		return testerr.Must(endpoints[r.reg.Rank()].Connect(t.Context(), b))(t)
	})
	return ranks
}

// serve connects ranks and starts their services.
func serve(t testing.TB, ranks [2]*rank, o proxyservice.ServiceOptions, connect func(*rank) *connection.Connection) {
	t.Helper()
	for i, r := range ranks {
		r.other = ranks[1-i]
	}
	for i, r := range ranks {
		r.conn = connect(r)
		r.peers = r.share(t, r.other.slab)
		o := o
		o.Rank, o.Watch = i, r.watch()
		o.OnFailure = func(err error) {
			r.failure.Store(&err)
			r.abort()
			r.other.abort()
		}
		r.service = testerr.Must(proxyservice.New(r.dev, o))(t)
		r.start(t)
	}
	for _, r := range ranks {
		t.Cleanup(func() { r.close(t) })
	}
}

// newRank returns a rank. A far one maps no peer's memory.
func newRank(t testing.TB, i int, far bool) *rank {
	t.Helper()
	r := &rank{dev: testdev.Open(t, i)}
	r.status = testerr.Must(r.dev.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))))(t)
	t.Cleanup(func() { r.status.Close() })
	r.reg = testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Rank: i, Group: [16]byte{1}, Secret: [32]byte{2}, Device: r.dev, Timeout: patience, Unmapped: far}))(t)
	if far {
		r.ethernet = testerr.Must(ethernet.New(r.reg, ethernet.Options{Secret: [32]byte{3}, Interface: "lo", Timeout: patience}))(t)
		t.Cleanup(func() { r.ethernet.Close() })
	}
	t.Cleanup(func() { r.reg.Close() })
	r.module = testerr.Must(r.dev.LoadModule(image(t, r.dev)))(t)
	t.Cleanup(func() { r.module.Close() })
	r.stream = testerr.Must(r.dev.NewStream())(t)
	r.slab = r.alloc(t, slabEnds*semaphore.Host2DeviceBytes)
	return r
}

// close ends the kernels, then the service.
func (r *rank) close(t testing.TB) {
	r.abort()
	r.other.abort()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	testerr.Report(t, r.stream.Synchronize(ctx))
	r.stream.Close()
	err := r.service.Close()
	if failure := r.failure.Load(); failure == nil && err != nil || failure != nil && !errors.Is(err, *failure) {
		t.Errorf("closing the service returned %v", err)
	}
	r.conn.Close()
}

func (r *rank) start(t testing.TB) {
	t.Helper()
	testerr.Check(t, r.service.Start(t.Context()))
}

func (r *rank) abort() { gpu.CopyIn(r.status, []uint32{1}) }

func (r *rank) watch() devicecode.Watch {
	return devicecode.Watch{Status: r.status.Ptr(), Timeout: uint64(patience), Peer: uint32(1 - r.reg.Rank())}
}

// connect returns a connection to the other rank.
func (r *rank) connect(t testing.TB) *connection.Connection {
	t.Helper()
	mine := testerr.Must(cudaipc.NewEndpoint(r.reg))(t)
	theirs := testerr.Must(cudaipc.NewEndpoint(r.other.reg))(t)
	b := testerr.Must(theirs.MarshalBinary())(t)
	return testerr.Must(mine.Connect(t.Context(), b))(t)
}

// alloc returns zeroed device memory.
func (r *rank) alloc(t testing.TB, bytes uint64) *gpu.Buffer {
	t.Helper()
	b := testerr.Must(r.dev.Alloc(bytes))(t)
	t.Cleanup(func() { b.Close() })
	s := testerr.Must(r.dev.NewStream())(t)
	defer s.Close()
	testerr.Check(t, errors.Join(s.Fill(b, 0, 0, bytes), s.Synchronize(t.Context())))
	return b
}

func (r *rank) register(t testing.TB, b *gpu.Buffer) *registeredmem.Memory {
	t.Helper()
	return testerr.Must(r.reg.Register(b))(t)
}

// share imports a buffer of the other rank's.
func (r *rank) share(t testing.TB, b *gpu.Buffer) *registeredmem.Memory {
	t.Helper()
	data := testerr.Must(r.other.register(t, b).MarshalBinary())(t)
	return testerr.Must(r.reg.Import(t.Context(), data))(t)
}

// newSemaphore returns this rank's next end. The other rank must make as many.
func (r *rank) newSemaphore(t testing.TB, conn *connection.Connection) *semaphore.Host2Device {
	t.Helper()
	offset := uint64(r.ends) * semaphore.Host2DeviceBytes
	r.ends++
	words := testerr.Must(r.slab.Slice(offset, semaphore.Host2DeviceBytes))(t)
	return testerr.Must(semaphore.NewHost2Device(conn, words, r.peers, offset, r.watch()))(t)
}

// duo is a channel between two ranks, with a buffer to send from and one to
// receive into at each.
type duo struct {
	send, receive [2]*gpu.Buffer
	channels      [2]*channel.PortChannel
}

func newDuo(t testing.TB, ranks [2]*rank, bytes uint64) *duo {
	t.Helper()
	d := &duo{}
	for i, r := range ranks {
		d.send[i], d.receive[i] = r.alloc(t, bytes), r.alloc(t, bytes)
	}
	for i, r := range ranks {
		d.channels[i] = testerr.Must(r.service.PortChannel(r.newSemaphore(t, r.conn), r.share(t, d.receive[1-i]), r.register(t, d.send[i])))(t)
	}
	return d
}

// launch starts a kernel on the rank's stream.
func (r *rank) launch(t testing.TB, kernel string, grid, block int, args ...any) {
	t.Helper()
	k := testerr.Must(r.module.Kernel(kernel))(t)
	testerr.Check(t, k.Launch(r.stream, gpu.LaunchConfig{Grid: gpu.Dim3{X: grid}, Block: gpu.Dim3{X: block}}, args...))
}

// wait waits for the rank's kernels.
func (r *rank) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testerr.Check(t, r.stream.Synchronize(ctx))
}

// Action is Action of port_test.cu.
type Action int32

const (
	put Action = iota
	signal
	flush
	putWithSignal
	putWithSignalAndFlush
	wait
	poll
	get
	getAndFlush
	store         // of src as the value
	storeAndFlush // likewise
	add           // likewise
	addAndFlush
	exchange // for src, into bytes
	exchangeAndFlush
)

// act has one thread do something on a channel and returns how that ended.
func (r *rank) act(t testing.TB, c *channel.PortChannel, a Action, dst, src, bytes uint64, count int) devicecode.WaitResult {
	t.Helper()
	result := r.alloc(t, 4)
	r.launch(t, "act", 1, 1, c.Handle(), int32(a), dst, src, bytes, count, result)
	r.wait(t)
	return devicecode.WaitResult(read[uint32](t, result, 1)[0])
}

// must fails the test unless the action is done.
func (r *rank) must(t testing.TB, c *channel.PortChannel, a Action, dst, src, bytes uint64) {
	t.Helper()
	if got := r.act(t, c, a, dst, src, bytes, 1); got != devicecode.WaitDone {
		t.Fatalf("action %d of %d bytes from %d to %d: %v (%v)", a, bytes, src, dst, got, r.service.Err())
	}
}

func read[T any](t testing.TB, b *gpu.Buffer, n int) []T {
	t.Helper()
	values := make([]T, n)
	testerr.Check(t, gpu.CopyOut(values, b))
	return values
}
