package gpu

import (
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

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
	kind   string // "cuda" or "emu"
	closed atomic.Bool
	plain  sync.Map // the types, of launch arguments, known to hold no Go pointers
}

func newDevice(b backend.Device) *Device {
	d := &Device{b: b, info: b.Info()}
	d.kind, _, _ = strings.Cut(d.info.Name, ":")
	return d
}

// Info describes the device.
func (d *Device) Info() Info { return d.info }

// String gives the device's name, such as "cuda:0".
func (d *Device) String() string { return d.info.Name }

// Close gives the device back. It is safe to call twice.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	return d.b.Close()
}

// usable gives the error of a call on a closed device.
func (d *Device) usable(op string) error {
	if d.closed.Load() {
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
// device of this process, and gives a view of it that is d's. The memory stays
// b's: Close on the view does nothing, and b is closed after the last use. For
// d's own buffers it gives b.
//
// Errors: ErrInvalid when b is closed, ErrUnsupported when d has no path to b's
// device.
func (d *Device) Access(b *Buffer) (*Buffer, error) {
	op := "gpu: access memory from " + d.String()
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if err := b.usable(op); err != nil {
		return nil, err
	}
	if b.dev == d {
		return b, nil
	}
	if !d.reaches(b) {
		if err := d.b.Access(b.dev.b, uint64(b.ptr)); err != nil {
			return nil, err
		}
	}
	return &Buffer{dev: d, ptr: b.ptr, size: b.size, mem: b.mem, view: true}, nil
}

// reaches says whether d can use b as it is: its own memory, and pinned memory of
// any device of its kind.
func (d *Device) reaches(b *Buffer) bool {
	return b.dev == d || b.mem.pinned && b.dev.kind == d.kind
}

// holdsPointers is hasPointers, which a launch should not ask for the same type
// again and again.
func (d *Device) holdsPointers(t reflect.Type) bool {
	if _, plain := d.plain.Load(t); plain {
		return false
	}
	if hasPointers(t) {
		return true
	}
	d.plain.Store(t, nil)
	return false
}
