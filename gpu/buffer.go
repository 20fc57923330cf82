package gpu

import (
	"fmt"
	"os"
	"runtime"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// Buffer is a range of memory that kernels of its device can reach: device
// memory, pinned host memory, or a mapping of a peer's. [Buffer.Slice] gives
// views; Close on the buffer that was allocated or imported releases it for all.
type Buffer struct {
	dev  *Device
	ptr  Ptr
	size uint64
	mem  *allocation
	view bool // of memory that another Buffer or a Module owns: Close does nothing
}

// allocation is what the views of one memory share.
type allocation struct {
	release  func() error
	export   func() (int, error) // nil where there is nothing to export
	pinned   bool                // host memory
	host     []byte              // the memory, where the host reaches it, else nil
	base     Ptr
	capacity uint64 // bytes mapped from base
	life     *lifetime
}

// Alloc gives size bytes of device memory that other processes can map through
// [Buffer.Export]. The content is undefined. An allocation takes whole multiples
// of Info.MemoryGranularity (2 MiB on NVIDIA GPUs): cut many small ones from one
// with [Buffer.Slice].
//
// Errors: ErrInvalid for size 0, ErrSystem when there is not enough memory.
func (d *Device) Alloc(size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: allocate %d bytes on %v", size, d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must not be 0")
	}
	m, err := d.b.Alloc(size)
	if err != nil {
		return nil, err
	}
	return d.mapped(m, size), nil
}

func (d *Device) mapped(m backend.Memory, size uint64) *Buffer {
	var host []byte
	if h, ok := m.(backend.HostMemory); ok {
		host = h.Bytes()
	}
	return &Buffer{dev: d, ptr: Ptr(m.Ptr()), size: size, mem: &allocation{
		release: m.Free, export: m.ExportFD, host: host, base: Ptr(m.Ptr()), capacity: m.Size(), life: new(lifetime),
	}}
}

// AllocHost gives size bytes of pinned host memory, zeroed, which the host
// reaches through [Buffer.Bytes] and kernels through [Buffer.Ptr].
//
// Errors: ErrInvalid for size 0, ErrSystem when the memory cannot be pinned.
func (d *Device) AllocHost(size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: allocate %d bytes of pinned memory for %v", size, d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must not be 0")
	}
	m, err := d.b.AllocHost(size)
	if err != nil {
		return nil, err
	}
	return &Buffer{dev: d, ptr: Ptr(m.Ptr()), size: size, mem: &allocation{
		release: m.Free, pinned: true, host: m.Bytes(), base: Ptr(m.Ptr()), capacity: size, life: new(lifetime),
	}}, nil
}

// Wrap makes a buffer of memory that somebody else allocated (cudaMalloc, a
// framework's tensor) and keeps: Close does not free it.
//
// Errors: ErrInvalid when the range does not lie in one allocation that d knows.
func (d *Device) Wrap(ptr Ptr, size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: wrap %d bytes at %#x on %v", size, uint64(ptr), d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	base, capacity, err := d.b.Range(uint64(ptr))
	if err != nil {
		return nil, err
	}
	offset := uint64(ptr) - base
	if size == 0 || offset > capacity || size > capacity-offset {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the allocation there has %d bytes from %#x", capacity, base)
	}
	return &Buffer{dev: d, ptr: ptr, size: size, mem: &allocation{
		release: func() error { return nil }, base: Ptr(base), capacity: capacity, life: new(lifetime),
	}}, nil
}

// Import maps memory that another process exported with [Buffer.Export].
// capacity is what [Buffer.Capacity] said there. The file stays the caller's
// and may be closed at once. Closing the buffer unmaps it.
//
// Errors: ErrInvalid when the descriptor is not such memory or of another size,
// ErrUnsupported when d cannot reach the device that holds it.
func (d *Device) Import(file *os.File, capacity uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: import %d bytes on %v", capacity, d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if capacity == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must not be 0")
	}
	m, err := d.b.ImportFD(int(file.Fd()), capacity)
	runtime.KeepAlive(file)
	if err != nil {
		return nil, err
	}
	b := d.mapped(m, capacity)
	b.mem.export = nil
	return b, nil
}

// IPCHandle names memory of a [Device.Wrap]ped buffer for other processes, in
// the form of the CUDA driver's cuIpcGetMemHandle. offset is where the buffer
// starts in what [Device.OpenIPC] maps.
//
// Errors: ErrUnsupported where the memory cannot be shared so.
func (b *Buffer) IPCHandle() (handle [64]byte, offset uint64, err error) {
	if err := b.usable("gpu: share memory by IPC handle"); err != nil {
		return handle, 0, err
	}
	return b.dev.b.IPCHandle(uint64(b.ptr))
}

// OpenIPC maps size bytes of what another process named with
// [Buffer.IPCHandle], counted from the start of its allocation. Closing the
// buffer unmaps it.
//
// Errors: ErrInvalid when the handle is not of such memory or the memory is
// smaller, ErrUnsupported where d cannot map memory so.
func (d *Device) OpenIPC(handle [64]byte, size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: open an IPC handle of %d bytes on %v", size, d)
	if err := d.usable(op); err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must not be 0")
	}
	m, err := d.b.OpenIPC(handle, size)
	if err != nil {
		return nil, err
	}
	b := d.mapped(m, size)
	b.mem.export = nil
	return b, nil
}

// Ptr gives the address for kernels.
func (b *Buffer) Ptr() Ptr { return b.ptr }

// Size gives the buffer's bytes.
func (b *Buffer) Size() uint64 { return b.size }

// Device gives the device whose kernels reach the buffer.
func (b *Buffer) Device() *Device { return b.dev }

// Bytes gives pinned host memory to the host, and nil for device memory. It is
// invalid once the buffer is closed.
func (b *Buffer) Bytes() []byte {
	if !b.mem.pinned {
		return nil
	}
	return b.HostBytes()
}

// HostBytes gives the memory to the host where the host can load and store it:
// pinned memory, as [Buffer.Bytes] does, and the memory of an emulated device; else
// nil. Loads and stores of the host are not ordered with the work of streams.
// Kernels see them as they see those to pinned memory. It is invalid once the buffer
// is closed.
func (b *Buffer) HostBytes() []byte {
	if b.mem.host == nil || b.mem.life.over() {
		return nil
	}
	start := uint64(b.ptr - b.mem.base)
	return b.mem.host[start : start+b.size : start+b.size]
}

// Capacity gives the bytes of the whole allocation that the buffer is part of,
// what [Device.Import] must be told.
func (b *Buffer) Capacity() uint64 { return b.mem.capacity }

// AllocationOffset gives the buffer's offset in the whole allocation.
func (b *Buffer) AllocationOffset() uint64 { return uint64(b.ptr - b.mem.base) }

// Slice gives a view of n bytes from offset. It lives as long as b.
//
// Errors: ErrInvalid when the range is not inside b.
func (b *Buffer) Slice(offset, n uint64) (*Buffer, error) {
	if err := b.check("gpu: slice", offset, n); err != nil {
		return nil, err
	}
	return &Buffer{dev: b.dev, ptr: b.ptr + Ptr(offset), size: n, mem: b.mem, view: true}, nil
}

// Export gives a file that names the whole allocation, for another process's
// [Device.Import]; the caller closes it.
//
// Errors: ErrUnsupported for memory that this process did not allocate with
// [Device.Alloc].
func (b *Buffer) Export() (*os.File, error) {
	const op = "gpu: export memory by descriptor"
	if err := b.usable(op); err != nil {
		return nil, err
	}
	if b.mem.export == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "only memory from Device.Alloc of this process has a descriptor")
	}
	fd, err := b.mem.export()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "gpu-memory"), nil
}

// Close releases the memory, for all views at once. Kernels and copies that use
// it must have ended. It is safe to call twice, and does nothing on a view.
func (b *Buffer) Close() error {
	if b.view || !b.mem.life.end() {
		return nil
	}
	return b.mem.release()
}

// usable gives the error of a call on closed memory.
func (b *Buffer) usable(op string) error {
	if b == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer is nil")
	}
	if b.mem.life.over() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer of %d bytes on %v is closed", b.size, b.dev)
	}
	return b.dev.usable(op)
}

// check gives the error of a range outside the buffer.
func (b *Buffer) check(op string, offset, n uint64) error {
	if err := b.usable(op); err != nil {
		return err
	}
	if offset > b.size || n > b.size-offset {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d bytes at offset %d are outside the buffer of %d bytes on %v", n, offset, b.size, b.dev)
	}
	return nil
}
