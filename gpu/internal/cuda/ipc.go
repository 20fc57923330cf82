package cuda

// #include "memory.h"
import "C"

import (
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

type ipcKey = [C.CU_IPC_HANDLE_SIZE]byte

// opened is a mapping of another process's memory. A handle can be opened once in a
// context, so all users share the mapping.
type opened struct {
	ptr   C.CUdeviceptr
	size  uint64
	users int // guarded by primary.mu
}

func (d *device) IPCHandle(ptr uint64) (handle [64]byte, offset uint64, err error) {
	var h C.CUipcMemHandle
	var o C.size_t
	if rc := C.ipc_handle(d.context, C.CUdeviceptr(ptr), &h, &o); rc != 0 {
		err := d.fail(rc, "get an IPC handle of the memory at %#x", ptr)
		if rc == C.CUDA_ERROR_INVALID_VALUE || rc == C.CUDA_ERROR_NOT_SUPPORTED {
			err.Kind = mscclgo.ErrUnsupported
			err.Text = unshared[C.memory_kind_of(d.context, C.CUdeviceptr(ptr))]
		}
		return handle, 0, err
	}
	return *(*ipcKey)(unsafe.Pointer(&h)), uint64(o), nil
}

// unshared tells why other processes cannot map memory, and what to do.
var unshared = map[C.memory_kind]string{
	C.MEMORY_OTHER:   "only memory from cudaMalloc has an IPC handle",
	C.MEMORY_MANAGED: "managed memory cannot be mapped by other processes; take memory from cudaMalloc, or make calls that take any buffer, which copy it",
	C.MEMORY_OF_POOL: "memory of an asynchronous pool (cudaMallocAsync) cannot be mapped by other processes; take memory from cudaMalloc " +
		"(in PyTorch leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF), or make calls that take any buffer, which copy it",
	C.MEMORY_VIRTUAL: "this virtual memory has no descriptor for other processes, or is of several pieces, as expandable segments of PyTorch are; " +
		"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or make calls that take any buffer, which copy it",
}

// Export exports virtual memory, of this package or of other code, of which there is one
// piece.
func (d *device) Export(ptr, size uint64) (int, error) {
	fd := C.int(-1)
	if rc := C.memory_export(d.context, C.CUdeviceptr(ptr), C.size_t(size), &fd); rc != 0 {
		err := d.fail(rc, "export %d bytes at %#x as a descriptor", size, ptr)
		if rc == C.CUDA_ERROR_NOT_SUPPORTED {
			err.Text = "the memory has no descriptor"
		}
		return -1, err
	}
	return int(fd), nil
}

func (d *device) OpenIPC(handle [64]byte, size uint64) (backend.Memory, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	o, err := d.open(handle)
	if err != nil {
		d.drop()
		return nil, err
	}
	m := &borrowed{held: held{primary: d.primary}, key: handle, opened: o}
	if size > o.size {
		m.Free()
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("map %d bytes by IPC handle", size),
			"the allocation of the handle has only %d bytes from there", o.size)
	}
	return m, nil
}

// open maps the memory of a handle, or adds a user to the mapping that there is.
func (p *primary) open(key ipcKey) (*opened, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.opened[key]; o != nil {
		o.users++
		return o, nil
	}
	o := &opened{users: 1}
	var size C.size_t
	rc := C.ipc_open(p.context, (*C.CUipcMemHandle)(unsafe.Pointer(&key)), &o.ptr, &size)
	if rc != 0 {
		err := p.fail(rc, "map memory by IPC handle")
		if rc == C.CUDA_ERROR_INVALID_CONTEXT {
			err.Text = "a handle cannot be opened by the process that made it; use the pointer itself"
		}
		return nil, err
	}
	o.size = uint64(size)
	p.opened[key] = o
	return o, nil
}

// close undoes one open.
func (p *primary) close(key ipcKey, o *opened) error {
	p.mu.Lock()
	last := o.users == 1
	p.mu.Unlock()
	if last {
		p.awaitIdle()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.users--; o.users > 0 {
		return nil
	}
	delete(p.opened, key)
	return p.result(C.ipc_close(p.context, o.ptr), "unmap %d bytes of another process", o.size)
}

// borrowed is one user's share of a mapping.
type borrowed struct {
	held
	key    ipcKey
	opened *opened
}

func (m *borrowed) Ptr() uint64  { return uint64(m.opened.ptr) }
func (m *borrowed) Size() uint64 { return m.opened.size }

func (m *borrowed) ExportFD() (int, error) {
	return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, m.op("export %d bytes", m.opened.size),
		"this is a mapping of another process's memory, which only its owner can export")
}

func (m *borrowed) Free() error {
	return m.end(func() error { return m.close(m.key, m.opened) })
}
