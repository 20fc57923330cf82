package connection_test

import (
	"errors"
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

func (d *driver) Write(dst *registeredmem.Memory, _ uint64, src *registeredmem.Memory, _, _ uint64) error {
	return d.write(dst, src)
}
func (*driver) Ready(uint64) bool                                          { return true }
func (*driver) Update(*registeredmem.Memory, uint64, uint64, uint64) error { return nil }
func (d *driver) NewMark() (connection.DriverMark, error)                  { return d, nil }
func (*driver) Set() error                                                 { return nil }
func (*driver) Reached() (bool, error)                                     { return true, nil }
func (*driver) Close() error                                               { return nil }

// rank returns a registry and a memory in it.
func rank(t *testing.T) (*registeredmem.Registry, *registeredmem.Memory) {
	t.Helper()
	r, err := registeredmem.NewRegistry(registeredmem.Options{Device: testdev.Open(t, 0)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	buffer, err := gpu.Upload(r.Device(), make([]uint64, 8))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { buffer.Close() })
	m, err := r.Register(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return r, m
}

// TestBufferWhileClosing closes a memory while a driver is called with it. The
// driver still finds its buffer.
func TestBufferWhileClosing(t *testing.T) {
	r, m := rank(t)
	closed := make(chan error, 1)
	c, err := connection.New(r, 0, registeredmem.CudaIPC, &driver{func(dst, src *registeredmem.Memory) error {
		go func() { closed <- m.Close() }()
		for !m.Closed() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		if dst.Buffer() == nil || src.Buffer() == nil {
			t.Error("the buffer is gone while the driver uses it")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(m, 0, m, 8, 8); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if m.Buffer() != nil {
		t.Error("a closed memory has a buffer")
	}
	testerr.Expect(t, c.Write(m, 0, m, 8, 8), mscclgo.ErrInvalid, "closed", "rank 0, peer 0")
	if err := c.Close(); err != nil {
		t.Error(err)
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
