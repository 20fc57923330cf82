package gpu

import (
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// Ptr is an address that kernels of a device can use. It is a number to the
// host, which must not follow it.
type Ptr uint64

// Device is an open device. Close it last, after everything made from it.
type Device struct {
	b      backend.Device
	info   Info
	mu     sync.Mutex
	closed bool
}

func newDevice(b backend.Device) *Device { return &Device{b: b, info: b.Info()} }

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// String gives the device's name, such as "cuda:0".
func (d *Device) String() string { return d.info.Name }

// Close gives the device back. It is safe to call twice.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	return d.b.Close()
}

// usable gives the error of a call on a closed device.
func (d *Device) usable(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", d)
	}
	return nil
}

// MemoryInfo gives the free and the total bytes of the device's memory.
func (d *Device) MemoryInfo() (free, total uint64, err error) {
	if err := d.usable("gpu: memory info"); err != nil {
		return 0, 0, err
	}
	return d.b.MemoryInfo()
}

// CanAccess says whether kernels of d can reach memory of the device with this
// UUID, which may be d itself, another of this machine, or one that only
// another process has opened.
func (d *Device) CanAccess(uuid [16]byte) bool { return d.b.CanAccess(uuid) }

// Access lets kernels and copies of d reach b, the memory of another open
// device of this process, and gives it as a buffer of d that shares b's
// memory: free b only after the last use. For d's own buffers it gives b.
//
// Errors: ErrUnsupported when d has no path to b's device.
func (d *Device) Access(b *Buffer) (*Buffer, error) {
	if b.dev == d {
		return b, nil
	}
	op := fmt.Sprintf("gpu: access memory of %v from %v", b.dev, d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := b.usable(op); err != nil {
		return nil, err
	}
	if err := d.b.Access(b.dev.b, uint64(b.ptr)); err != nil {
		return nil, err
	}
	return &Buffer{dev: d, ptr: b.ptr, size: b.size, mem: b.mem}, nil
}
