package emu

import (
	"cmp"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/race"
)

// mapping is a piece of the address space: own memory, another process's, or
// host memory.
type mapping struct {
	region
	asked   uint64 // bytes that its owner asked for
	about   string // what it is and where it was made, for errors
	base    uint64
	fd      int // of own device memory, else -1
	holders atomic.Int32

	mu        sync.Mutex
	borrowers []*device
}

// drop removes a holder: the device that made the mapping or one that was given access.
// The last one unmaps the memory.
func (m *mapping) drop() {
	if m.holders.Add(-1) > 0 {
		return
	}
	m.unmap()
	if m.fd >= 0 {
		_ = unix.Close(m.fd) // does not fail, as it was opened here
	}
}

// compareBase orders mappings by address.
func compareBase(m *mapping, base uint64) int { return cmp.Compare(m.base, base) }

// memory is a mapping that is in its device's table until it is freed.
type memory struct {
	dev   *device
	m     *mapping
	own   uint64 // bytes that count against the device's memory
	freed bool   // under dev.mu
}

// add maps size bytes, of which asked are used, and adds them to the table. fd is -1 for host memory.
func (d *device) add(op string, size, asked uint64, fd int, own uint64) (*memory, error) {
	r, err := mapRegion(size, fd)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot map the memory: %w", err)
	}
	what := "memory"
	switch {
	case fd < 0:
		what = "host memory"
	case own == 0:
		what = "imported memory"
	}
	m := &mapping{region: r, asked: asked, base: uint64(uintptr(unsafe.Pointer(&r.bytes[0]))), fd: -1}
	m.about = what + " of " + d.info.Name + ", allocated at " + race.Caller()
	m.holders.Store(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		m.drop()
		return nil, d.gone(op)
	}
	i, _ := slices.BinarySearchFunc(d.table, m.base, compareBase)
	d.table = slices.Insert(d.table, i, m)
	d.watch(m, fd)
	return &memory{dev: d, m: m, own: own}, nil
}

func (d *device) MemoryInfo() (free, total uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info.TotalMemory - d.used, d.info.TotalMemory, nil
}

// reserve counts bytes against the device's memory.
func (d *device) reserve(op string, size uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.gone(op)
	}
	if free := d.info.TotalMemory - d.used; size > free {
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "out of device memory: %d of %d bytes are free; set %s to have more",
			free, d.info.TotalMemory, memoryVariable)
	}
	d.used += size
	return nil
}

func (d *device) unreserve(size uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used -= size
}

// New device memory is filled with a value, so that programs which rely on zeros fail.
// Only the first bytes are, since pages that are never used should cost nothing.
const (
	poison      = 0xa5
	poisonBytes = 1 << 20
)

// sealed fixes the size of a descriptor's memory for all processes: if it shrank, those
// that map it would get SIGBUS.
const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func (d *device) Alloc(size uint64) (backend.Memory, error) {
	op := d.op("allocate %d bytes", size)
	page := uint64(os.Getpagesize())
	rounded := (size + page - 1) / page * page
	if rounded < size {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "no device has that much memory")
	}
	if err := d.reserve(op, rounded); err != nil {
		return nil, err
	}
	m, err := d.create(op, rounded, size)
	if err != nil {
		d.unreserve(rounded)
		return nil, err
	}
	return m, nil
}

// file returns the descriptor of new shared memory.
func (d *device) file(op string, size uint64) (int, error) {
	fd, err := unix.MemfdCreate("mscclgo-"+d.info.Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot make shared memory: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		unix.Close(fd)
		return -1, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot size shared memory: %w", err)
	}
	return fd, nil
}

// create makes shared memory with a descriptor.
func (d *device) create(op string, size, asked uint64) (*memory, error) {
	fd, err := d.file(op, size)
	if err != nil {
		return nil, err
	}
	m, err := d.add(op, size, asked, fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	m.m.fd = fd
	m.spoil()
	return m, nil
}

// spoil fills the first bytes of new memory.
func (m *memory) spoil() {
	for i := range m.m.bytes[:min(m.Size(), poisonBytes)] {
		m.m.bytes[i] = poison
	}
}

func (m *memory) Renew() error {
	op := m.dev.op("renew %d bytes", m.Size())
	if m.m.fd < 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this is a mapping of another process's memory, or host memory")
	}
	fd, err := m.dev.file(op, m.Size())
	if err != nil {
		return err
	}
	if err := m.replace(op, fd); err != nil {
		unix.Close(fd)
		return err
	}
	m.dev.mu.Lock()
	unix.Close(m.m.fd)
	m.m.fd = fd
	m.dev.mu.Unlock()
	m.spoil()
	return nil
}

func (m *memory) Remap(fd int) error {
	op := m.dev.op("remap %d bytes", m.Size())
	if m.m.fd >= 0 {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this is memory of this process")
	}
	if err := m.dev.importable(op, fd, m.Size()); err != nil {
		return err
	}
	return m.replace(op, fd)
}

// replace maps fd in place of what is mapped.
func (m *memory) replace(op string, fd int) error {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	if m.freed || m.dev.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory is freed")
	}
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&m.m.bytes[0]), uintptr(len(m.m.bytes)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot map the memory: %w", err)
	}
	m.dev.watch(m.m, fd)
	return nil
}

// ImportFD maps memory of another emulated device. The size of the memory must be
// sealed, as create does it.
func (d *device) ImportFD(fd int, size uint64) (backend.Memory, error) {
	op := d.op("import %d bytes", size)
	if err := d.importable(op, fd, size); err != nil {
		return nil, err
	}
	m, err := d.add(op, size, size, fd, 0)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// importable returns an error unless fd is memory of an emulated device, of so many bytes.
func (d *device) importable(op string, fd int, size uint64) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "descriptor %d: %w", fd, err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the descriptor is not memory of an emulated device")
	}
	if size == 0 || uint64(stat.Size) != size {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the descriptor's memory has %d bytes", stat.Size)
	}
	return nil
}

func (m *memory) Ptr() uint64  { return m.m.base }
func (m *memory) Size() uint64 { return uint64(len(m.m.bytes)) }

// Bytes returns all memory, as the host can access it.
func (m *memory) Bytes() []byte { return m.m.bytes }

func (m *memory) ExportFD() (int, error) {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	op := m.dev.op("export %d bytes", m.Size())
	if m.freed || m.dev.closed {
		return -1, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory is freed")
	}
	return m.m.export(op)
}

func (d *device) Export(ptr, size uint64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.op("export %d bytes at %#x", size, ptr)
	m := d.find(ptr)
	if m == nil {
		return -1, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory is freed")
	}
	return m.export(op)
}

// export duplicates the descriptor. The caller holds mu of the device.
func (m *mapping) export(op string) (int, error) {
	if m.fd < 0 {
		return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this is a mapping of another process's memory, which only its owner can export, or host memory")
	}
	fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot duplicate the descriptor: %w", err)
	}
	return fd, nil
}

// Free removes the memory from the tables. It stays mapped until all work has ended on
// the devices with access to it, so a kernel that still uses it reads stale memory, as
// on a GPU, and does not crash the process.
func (m *memory) Free() error {
	m.dev.mu.Lock()
	freed := m.freed
	m.freed = true
	m.dev.mu.Unlock()
	if freed {
		return nil
	}
	m.dev.release(m.m, m.own)
	m.m.mu.Lock()
	borrowers := m.m.borrowers
	m.m.borrowers = nil
	m.m.mu.Unlock()
	for _, b := range borrowers {
		b.release(m.m, 0)
	}
	return nil
}

// release removes a mapping from the table and drops it when the device is idle.
func (d *device) release(m *mapping, own uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, found := slices.BinarySearchFunc(d.table, m.base, compareBase)
	if !found || d.table[i] != m {
		return // Close dropped it
	}
	d.table = slices.Delete(d.table, i, i+1)
	d.used -= own
	if d.busy > 0 {
		d.grave = append(d.grave, m)
	} else {
		d.forget(m)
		m.drop()
	}
}

// Access makes d a holder of the memory. The devices of a process share its address
// space, so nothing is mapped.
func (d *device) Access(owner backend.Device, ptr, size uint64) error {
	op := d.op("access memory at %#x", ptr)
	o, ok := owner.(*device)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it belongs to %s, which is not an emulated device", owner.Info().Name)
	}
	if o == d {
		return nil
	}
	o.mu.Lock()
	m := o.find(ptr)
	if m != nil {
		m.holders.Add(1)
	}
	o.mu.Unlock()
	if m == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s has no memory at that address", o.info.Name)
	}
	// If the owner frees the memory meanwhile, it does not know of d yet, and the
	// mapping stays until d is closed.
	m.mu.Lock()
	defer m.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	i, found := slices.BinarySearchFunc(d.table, m.base, compareBase)
	if d.closed || found {
		m.drop()
		if d.closed {
			return d.gone(op)
		}
		return nil
	}
	d.table = slices.Insert(d.table, i, m)
	m.borrowers = append(m.borrowers, d)
	return nil
}

func (d *device) AllocHost(size uint64) (backend.HostMemory, error) {
	op := d.op("allocate %d bytes of host memory", size)
	if size > 1<<46 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "no host has that much memory")
	}
	m, err := d.add(op, size, size, -1, 0)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// hostMemory is memory of the process that the device did not allocate, which its kernels
// reach as the process does.
type hostMemory struct {
	dev   *device
	bytes []byte
	freed atomic.Bool
}

func (d *device) WrapHost(host []byte) (backend.HostMemory, error) {
	start := uintptr(unsafe.Pointer(&host[0]))
	page := uintptr(os.Getpagesize())
	first := start / page * page
	// msync does nothing to such memory, but fails where a page is not mapped.
	if _, _, errno := unix.Syscall(unix.SYS_MSYNC, first, start+uintptr(len(host))-first, unix.MS_ASYNC); errno != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("wrap %d bytes of the host at %#x", len(host), start), "the memory is not mapped")
	}
	m := &hostMemory{dev: d, bytes: host}
	if d.race != nil {
		d.race.Wrap(d.info.Name, m.Ptr(), uint64(len(host)))
	}
	return m, nil
}

func (m *hostMemory) Ptr() uint64   { return uint64(uintptr(unsafe.Pointer(&m.bytes[0]))) }
func (m *hostMemory) Bytes() []byte { return m.bytes }

func (m *hostMemory) Free() error {
	if m.dev.race != nil && !m.freed.Swap(true) {
		m.dev.race.Unwrap(m.Ptr(), uint64(len(m.bytes)))
	}
	return nil
}

// find returns the mapping around an address, or nil. The caller holds mu.
func (d *device) find(ptr uint64) *mapping {
	i, found := slices.BinarySearchFunc(d.table, ptr, compareBase)
	if !found {
		i--
	}
	if i < 0 || ptr-d.table[i].base >= uint64(len(d.table[i].bytes)) {
		return nil
	}
	return d.table[i]
}

// Range finds memory of any Device of this number, as all have one address space.
func (d *device) Range(ptr, bytes uint64) (base, size uint64, err error) {
	if !d.has(ptr) {
		if o := d.owner(ptr); o != nil {
			if err := d.Access(o, ptr, bytes); err != nil {
				return 0, 0, err
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.find(ptr)
	if m == nil {
		return 0, 0, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("find the memory at %#x", ptr), "the device has no memory at that address")
	}
	return m.base, uint64(len(m.bytes)), nil
}

func (d *device) IPCHandle(ptr uint64) (handle [64]byte, offset uint64, err error) {
	return handle, 0, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("make an IPC handle of %#x", ptr),
		"an emulated device's memory is shared by descriptor; allocate it with Alloc")
}

func (d *device) OpenIPC(handle [64]byte, size uint64) (backend.Memory, error) {
	return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("open an IPC handle of %d bytes", size),
		"an emulated device's memory is shared by descriptor")
}

func (d *device) DMABuf(ptr, size uint64) (int, error) {
	return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("export %d bytes at %#x as a dma-buf", size, ptr),
		"an emulated device's memory is the process's own, which drivers reach by its address")
}
