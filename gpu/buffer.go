package gpu

import (
	"fmt"
	"os"
	"runtime"
	"runtime/cgo"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// Buffer is a range of memory that kernels of its device can reach: device
// memory, pinned host memory, or a mapping of a peer's memory. [Buffer.Slice] returns
// views, which share the memory; closing the buffer that was allocated or imported
// releases it for all of them.
type Buffer struct {
	dev  *Device
	ptr  Ptr
	size uint64
	mem  *allocation
	view bool // another Buffer or a Module owns the memory: Close does nothing
}

// allocation is what the views of one memory share.
type allocation struct {
	release  func() error        // called once
	export   func() (int, error) // nil if the memory cannot be exported
	replace  backend.Replaceable // nil if the memory cannot be replaced
	pinned   bool                // host memory
	host     []byte              // the memory if the host reaches it, else nil
	base     Ptr
	capacity uint64 // bytes mapped from base
	life     *lifetime

	mu       sync.Mutex
	keepers  int // that are not the owner
	released bool
}

// keep has the memory outlive its owner's Close, until the caller calls letGo. It
// reports whether the memory was still there.
func (a *allocation) keep() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.released {
		a.keepers++
	}
	return !a.released
}

// letGo ends a keep. The last one releases the memory if it is closed.
func (a *allocation) letGo() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keepers--
	return a.releaseUnused()
}

// releaseUnused releases the memory if it is closed and nobody keeps it. The caller
// holds mu.
func (a *allocation) releaseUnused() error {
	if a.keepers > 0 || a.released || !a.life.over() {
		return nil
	}
	a.released = true
	return a.release()
}

// Alloc allocates size bytes of device memory, which other processes can map. The content is undefined. The memory taken is a multiple of
// [Info].MemoryGranularity (2 MiB on NVIDIA GPUs), so many small buffers are better
// sliced from a large one.
//
// Errors: ErrInvalid if size is 0, ErrSystem if there is not enough memory.
func (d *Device) Alloc(size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: allocate %d bytes on %v", size, d)
	return d.mapped(op, size, func() (backend.Memory, error) { return d.b.Alloc(size) })
}

// mapped returns a buffer for the first size bytes of memory that get allocates or maps.
func (d *Device) mapped(op string, size uint64, get func() (backend.Memory, error)) (*Buffer, error) {
	if err := d.sized(op, size); err != nil {
		return nil, err
	}
	m, err := get()
	if err != nil {
		return nil, err
	}
	var host []byte
	if h, ok := m.(backend.HostMemory); ok {
		host = h.Bytes()
	}
	replace, _ := m.(backend.Replaceable)
	return &Buffer{dev: d, ptr: Ptr(m.Ptr()), size: size, mem: &allocation{
		release: m.Free, export: m.ExportFD, replace: replace, host: host, base: Ptr(m.Ptr()), capacity: m.Size(), life: new(lifetime),
	}}, nil
}

// sized returns an error if the size is 0 or the device closed.
func (d *Device) sized(op string, size uint64) error {
	if err := d.usable(op); err != nil {
		return err
	}
	if size == 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the size must not be 0")
	}
	return nil
}

// AllocHost allocates size bytes of pinned host memory, zeroed. The host reaches it
// through [Buffer.Bytes], kernels through [Buffer.Ptr].
//
// Errors: ErrInvalid if size is 0, ErrSystem if the memory cannot be pinned.
func (d *Device) AllocHost(size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: allocate %d bytes of pinned memory for %v", size, d)
	if err := d.sized(op, size); err != nil {
		return nil, err
	}
	m, err := d.b.AllocHost(size)
	if err != nil {
		return nil, err
	}
	return &Buffer{dev: d, ptr: Ptr(m.Ptr()), size: size, mem: &allocation{
		release: m.Free, pinned: true, host: m.Bytes(), base: Ptr(m.Ptr()), capacity: size, life: new(lifetime),
	}}, nil
}

// Wrap returns a buffer for memory that other code allocated (cudaMalloc, an asynchronous
// pool, virtual memory, a framework's tensor) and still owns: Close does not free it. It
// must not be freed while the buffer, or a peer that imported it, is in use.
//
// Other processes can map it if it is from cudaMalloc, or one piece of virtual memory that
// was made to be shared by descriptor. Other memory, such as memory of pools and of most
// expandable segments of PyTorch, cannot be registered for peers; calls that take any buffer
// copy it.
//
// Errors: ErrInvalid if size is 0 or the range is not part of one allocation of d's
// memory, or of the memory of another open Device of the same name.
func (d *Device) Wrap(ptr Ptr, size uint64) (*Buffer, error) {
	op := func() string { return fmt.Sprintf("gpu: wrap %d bytes at %#x on %v", size, uint64(ptr), d) }
	if d == nil || d.closed.Load() || size == 0 {
		return nil, d.sized(op(), size)
	}
	base, capacity, err := d.b.Range(uint64(ptr), size)
	if err != nil {
		return nil, err
	}
	offset := uint64(ptr) - base
	if offset > capacity || size > capacity-offset {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op(), "the allocation at that address has %d bytes from %#x", capacity, base)
	}
	return d.wrap(ptr, size, base, capacity), nil
}

// wrap returns a buffer for a part of an allocation of other code.
func (d *Device) wrap(ptr Ptr, size, base, capacity uint64) *Buffer {
	w := &struct { // one allocation, as C and Python wrap for each call
		b    Buffer
		mem  allocation
		life lifetime
	}{}
	w.mem.release = func() error { return nil }
	w.mem.export = func() (int, error) { return d.b.Export(base, capacity) }
	w.mem.base, w.mem.capacity, w.mem.life = Ptr(base), capacity, &w.life
	w.b.dev, w.b.ptr, w.b.size, w.b.mem = d, ptr, size, &w.mem
	return &w.b
}

// WrapHost returns a buffer for memory of the host that other code allocated and still
// owns, such as an array of a framework: the memory is pinned until Close, unless it is
// pinned already, and kernels can reach it. Memory that is wrapped again, as a whole or in
// part, is pinned once, until the last buffer is closed. Memory of Go's heap may be wrapped
// too, and is not freed before Close, even if nobody refers to it or to the buffer: a kernel
// may. The buffer is like one of [Device.AllocHost].
//
// Pinning takes long, about a second for some gigabytes, and may wait for running kernels.
//
// Errors: ErrInvalid if the memory is empty, not mapped, or pinned in part by other code;
// ErrSystem if it cannot be pinned.
func (d *Device) WrapHost(memory []byte) (*Buffer, error) {
	if err := d.sized(fmt.Sprintf("gpu: wrap %d bytes of the host on %v", len(memory), d), uint64(len(memory))); err != nil {
		return nil, err
	}
	pinner := new(runtime.Pinner)
	pinner.Pin(&memory[0]) // which does nothing to memory of C
	m, err := d.b.WrapHost(memory)
	if err != nil {
		pinner.Unpin()
		return nil, err
	}
	kept := cgo.NewHandle(pinner) // a pinner that is collected before Unpin panics
	release := func() error {
		defer kept.Delete()
		defer pinner.Unpin()
		return m.Free()
	}
	return &Buffer{dev: d, ptr: Ptr(m.Ptr()), size: uint64(len(memory)), mem: &allocation{
		release: release, pinned: true, host: memory, base: Ptr(m.Ptr()), capacity: uint64(len(memory)), life: new(lifetime),
	}}, nil
}

func (d deviceInside) Import(file *os.File, capacity uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: import %d bytes on %v", capacity, d)
	defer runtime.KeepAlive(file)
	return d.mapped(op, capacity, func() (backend.Memory, error) { return d.b.ImportFD(int(file.Fd()), capacity) })
}

func (b bufferInside) IPCHandle() (handle [64]byte, offset uint64, err error) {
	if err := b.usable("gpu: share memory by IPC handle"); err != nil {
		return handle, 0, err
	}
	return b.dev.b.IPCHandle(uint64(b.ptr))
}

func (d deviceInside) OpenIPC(handle [64]byte, size uint64) (*Buffer, error) {
	op := fmt.Sprintf("gpu: open an IPC handle of %d bytes on %v", size, d)
	return d.mapped(op, size, func() (backend.Memory, error) { return d.b.OpenIPC(handle, size) })
}

// Ptr returns the address for kernels.
func (b *Buffer) Ptr() Ptr { return b.ptr }

// Size returns the buffer's size in bytes.
func (b *Buffer) Size() uint64 { return b.size }

// Device returns the device whose kernels reach the buffer.
func (b *Buffer) Device() *Device { return b.dev }

// Bytes returns the memory of a buffer from [Device.AllocHost], and nil for device
// memory. The slice is invalid once the buffer or its device is closed.
func (b *Buffer) Bytes() []byte {
	if b == nil || !b.mem.pinned {
		return nil
	}
	return b.HostBytes()
}

// HostBytes returns the memory if the host can load and store it, and nil otherwise.
// That is pinned memory, as with [Buffer.Bytes], and the memory of an emulated device.
// The host's loads and stores are not ordered with the work of streams; kernels see
// them as they see those to pinned memory. The slice is invalid once the buffer or its
// device is closed.
func (b *Buffer) HostBytes() []byte {
	if b.usable("") != nil || b.mem.host == nil {
		return nil
	}
	start := uint64(b.ptr - b.mem.base)
	return b.mem.host[start : start+b.size : start+b.size]
}

func (b bufferInside) Capacity() uint64 { return b.mem.capacity }

func (b bufferInside) AllocationOffset() uint64 { return uint64(b.ptr - b.mem.base) }

// Slice returns a view of n bytes from offset, which is valid as long as b.
//
// Errors: ErrInvalid if the range is not inside b.
func (b *Buffer) Slice(offset, n uint64) (*Buffer, error) {
	if err := b.check("gpu: slice", offset, n); err != nil {
		return nil, err
	}
	return &Buffer{dev: b.dev, ptr: b.ptr + Ptr(offset), size: n, mem: b.mem, view: true}, nil
}

func (b bufferInside) Export() (*os.File, error) {
	const op = "gpu: export memory by descriptor"
	if err := b.usable(op); err != nil {
		return nil, err
	}
	if b.mem.export == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "only device memory that this process allocated, such as by Device.Alloc, has a descriptor")
	}
	fd, err := b.mem.export()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "gpu-memory"), nil
}

func (b bufferInside) DMABuf() (file *os.File, offset uint64, err error) {
	const op = "gpu: share memory by dma-buf"
	if err := b.usable(op); err != nil {
		return nil, 0, err
	}
	if b.mem.pinned {
		return nil, 0, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "pinned host memory has no dma-buf; drivers reach it by its address")
	}
	if b.size == 0 {
		return nil, 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer is empty")
	}
	page := uint64(os.Getpagesize())
	offset = uint64(b.ptr) % page
	fd, err := b.dev.b.DMABuf(uint64(b.ptr)-offset, (offset+b.size+page-1)/page*page)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), "gpu-memory-dma-buf"), offset, nil
}

// Close releases the memory for all views. Kernels and copies that use it must have
// ended. CUDA's driver would wait for all other kernels too before it frees pinned memory,
// so that is done later, by some call that frees or allocates when no stream of
// [Device.NewStream] on that GPU has work; streams of other code are not asked. It is safe
// to call twice, and does nothing on a view or nil.
func (b *Buffer) Close() error {
	if b == nil || b.view || !b.mem.life.end() {
		return nil
	}
	b.mem.mu.Lock()
	defer b.mem.mu.Unlock()
	return b.mem.releaseUnused()
}

// usable returns an error if the buffer is nil, or the memory or the device is closed.
func (b *Buffer) usable(op string) error {
	if b == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer is nil")
	}
	if b.mem.life.over() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the buffer of %d bytes on %v is closed", b.size, b.dev)
	}
	return b.dev.usable(op)
}

// check returns an error if the range is not inside the buffer.
func (b *Buffer) check(op string, offset, n uint64) error {
	if err := b.usable(op); err != nil {
		return err
	}
	if offset > b.size || n > b.size-offset {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d bytes at offset %d are outside the buffer of %d bytes on %v", n, offset, b.size, b.dev)
	}
	return nil
}
