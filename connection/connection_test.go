package connection_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// driver calls a function for each write, and has nothing else to do.
type driver struct {
	write func(dst, src *registeredmem.Memory) error
}

func (d *driver) Submit(o connection.Operation) error     { return d.write(o.Theirs, o.Own) }
func (*driver) Ready(connection.Kind, uint64) bool        { return true }
func (d *driver) NewMark() (connection.DriverMark, error) { return d, nil }
func (*driver) Set() error                                { return nil }
func (*driver) Reached() (bool, error)                    { return true, nil }
func (*driver) Close() error                              { return nil }

// rank returns a registry and a memory in it.
func rank(t *testing.T) (*registeredmem.Registry, *registeredmem.Memory) {
	t.Helper()
	r := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Device: testdev.Open(t, 0)}))(t)
	t.Cleanup(func() { r.Close() })
	return r, register(t, r)
}

// register returns a new memory in a registry.
func register(t *testing.T, r *registeredmem.Registry) *registeredmem.Memory {
	t.Helper()
	buffer := testerr.Must(gpu.Upload(r.Device(), make([]uint64, 8)))(t)
	t.Cleanup(func() { buffer.Close() })
	return testerr.Must(r.Register(buffer))(t)
}

// TestBufferWhileClosing closes a memory while a driver is called with it. The
// driver still finds its buffer.
func TestBufferWhileClosing(t *testing.T) {
	r, m := rank(t)
	closed := make(chan error, 1)
	c := testerr.Must(connection.New(r, 0, registeredmem.CudaIPC, &driver{func(dst, src *registeredmem.Memory) error {
		go func() { closed <- m.Close() }()
		for !m.Closed() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		if dst.Buffer() == nil || src.Buffer() == nil {
			t.Error("the buffer is gone while the driver uses it")
		}
		return nil
	}}))(t)
	testerr.Report(t, c.Write(m, 0, m, 8, 8))
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if m.Buffer() != nil {
		t.Error("a closed memory has a buffer")
	}
	testerr.Expect(t, c.Write(m, 0, m, 8, 8), mscclgo.ErrInvalid, "closed", "rank 0, peer 0")
	testerr.Report(t, c.Close())
}

// slowDriver never does what is queued, and takes its time to close.
type slowDriver struct {
	driver
	closing, gate chan struct{}
	closes        atomic.Bool // a mark fails, as it does once a driver is being closed
}

func (d *slowDriver) NewMark() (connection.DriverMark, error) { return slowMark{d}, nil }

func (d *slowDriver) Close() error {
	close(d.closing)
	<-d.gate
	return nil
}

type slowMark struct{ d *slowDriver }

func (slowMark) Set() error   { return nil }
func (slowMark) Close() error { return nil }
func (m slowMark) Reached() (bool, error) {
	if m.d.closes.Load() {
		return false, mscclgo.Errorf(mscclgo.ErrInvalid, "test", "it is closed")
	}
	return false, nil
}

// TestMemoriesClosedTogether has goroutines close memories at a time, while a connection has work
// under way: after the group has failed, or while the connection is being closed. None returns
// before the connection has ended.
func TestMemoriesClosedTogether(t *testing.T) {
	const memories = 3
	for _, fails := range []bool{true, false} {
		t.Run(fmt.Sprintf("the group fails: %v", fails), func(t *testing.T) {
			failed := make(chan struct{})
			r := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Device: testdev.Open(t, 0), Timeout: 20 * time.Second, Failed: failed}))(t)
			t.Cleanup(func() { r.Close() })
			d := &slowDriver{closing: make(chan struct{}), gate: make(chan struct{})}
			release := sync.OnceFunc(func() { close(d.gate) })
			t.Cleanup(release) // before the registry is closed
			c := testerr.Must(connection.New(r, 1, registeredmem.Ethernet, d))(t)
			closed := make(chan error, memories)
			for range memories {
				m := register(t, r)
				go func() { closed <- m.Close() }()
			}
			time.Sleep(50 * time.Millisecond) // so that all wait for the mark
			if fails {
				close(failed)
			} else {
				go c.Close()
				time.Sleep(50 * time.Millisecond)
				d.closes.Store(true)
			}
			select {
			case <-d.closing:
			case <-time.After(10 * time.Second):
				t.Fatal("the driver is not closed")
			}
			select {
			case err := <-closed:
				t.Fatalf("a memory was closed (%v) before the connection", err)
			case <-time.After(100 * time.Millisecond):
			}
			release()
			for range memories {
				select {
				case err := <-closed:
					testerr.Report(t, err)
				case <-time.After(10 * time.Second):
					t.Fatal("closing a memory waits though the connection has ended")
				}
			}
		})
	}
}

func TestNewErrors(t *testing.T) {
	r, _ := rank(t)
	d := &driver{func(_, _ *registeredmem.Memory) error { return errors.ErrUnsupported }}
	for name, c := range map[string]struct {
		registry  *registeredmem.Registry
		peer      int
		transport registeredmem.Transports
		driver    connection.Driver
	}{
		"registry":       {nil, 1, registeredmem.CudaIPC, d},
		"driver":         {r, 1, registeredmem.CudaIPC, nil},
		"peer":           {r, -1, registeredmem.CudaIPC, d},
		"no transport":   {r, 1, 0, d},
		"two transports": {r, 1, registeredmem.CudaIPC | registeredmem.Ethernet, d},
		"no constant":    {r, 1, 1 << 7, d},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := connection.New(c.registry, c.peer, c.transport, c.driver)
			testerr.Expect(t, err, mscclgo.ErrInvalid)
		})
	}
}
