package gpu

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// Ptr is an address in the memory that kernels of a device can reach. To the host it
// is only a number.
type Ptr uint64

// Pointer is what a kernel's pointer can be given: a [*Buffer] or a [Ptr]. Functions that
// "mscclgo gen" writes take it, so that a number is refused when the program is compiled.
// The null pointer is Ptr(0).
type Pointer interface{ devicePointer() }

func (Ptr) devicePointer()     {}
func (*Buffer) devicePointer() {}

// Device is an open device. Close it after everything that was made from it.
type Device struct {
	b      backend.Device
	info   Info
	kind   string // "cuda" or "emu"
	closed atomic.Bool
	plain  sync.Map // types of launch arguments that are known to hold no Go pointers

	groups launchGroups
	trace  atomic.Pointer[launchTrace] // of a timeline, or nil
	busy   busy
	slow   atomic.Pointer[func()] // see SlowDriver of inside.Device

	mu      sync.Mutex
	users   map[*string]bool       // what runs and would crash without the device, by name
	streams []weak.Pointer[Stream] // see openStreams
}

func newDevice(b backend.Device) *Device {
	d := &Device{b: b, info: Info(b.Info())}
	d.kind, _, _ = strings.Cut(d.info.Name, ":")
	return d
}

// Info returns a description of the device.
func (d *Device) Info() Info { return d.info }

// String returns the device's name, such as "cuda:0".
func (d *Device) String() string { return d.info.Name }

// Close releases the device. It is safe to call twice, and does nothing on nil. An emulated
// device ends work that has not ended: kernels at an atomic or a volatile access, a barrier
// or __nanosleep. A kernel that loops without any is waited for.
//
// Errors: ErrInvalid while a proxy serves a ring of the device, which stays open then;
// ErrAborted if it ended work of streams.
func (d *Device) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for user := range d.users {
		return mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("gpu: close %v", d), "%s uses its memory; close that first", *user)
	}
	if d.closed.Swap(true) {
		return nil
	}
	return d.b.Close()
}

// usable returns an error if the device is nil or closed.
func (d *Device) usable(op string) error {
	if d == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the device is nil")
	}
	if d.closed.Load() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", d)
	}
	return nil
}

// MemoryInfo returns the free and the total bytes of the device's memory.
func (d *Device) MemoryInfo() (free, total uint64, err error) {
	if err := d.usable("gpu: memory info"); err != nil {
		return 0, 0, err
	}
	return d.b.MemoryInfo()
}

// CanAccess reports whether kernels of d can reach memory of the device with this
// UUID, which may be d itself or any other device of this machine, open in this
// process or not.
func (d *Device) CanAccess(uuid [16]byte) bool { return d.b.CanAccess(uuid) }

func (d deviceInside) CanUpdate(uuid [16]byte) bool { return d.b.CanUpdate(uuid) }

func (d deviceInside) PrepareAtomics() error {
	if err := d.usable("gpu: prepare atomic operations"); err != nil {
		return err
	}
	return d.b.PrepareAtomics()
}

// Access lets kernels and copies of d reach b, memory of another open device of this
// process, and returns a view of it that belongs to d. Closing the view does nothing;
// b must not be closed before the last use. If b is d's own, Access returns b.
//
// Errors: ErrInvalid if b is closed, ErrUnsupported if d has no path to b's device.
func (d *Device) Access(b *Buffer) (*Buffer, error) {
	op := fmt.Sprintf("gpu: access memory from %v", d)
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
		if err := d.b.Access(b.dev.b, uint64(b.ptr), b.size); err != nil {
			return nil, err
		}
	}
	return &Buffer{dev: d, ptr: b.ptr, size: b.size, mem: b.mem, view: true}, nil
}

// reaches reports whether d can use b as it is: if b is d's own memory, or pinned
// memory of any device of d's kind.
func (d *Device) reaches(b *Buffer) bool {
	return b.dev == d || b.mem.pinned && b.dev.kind == d.kind
}

// holdsPointers is hasPointers with a memory, since launches ask for the same types
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
