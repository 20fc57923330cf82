package cuda

// #include "memory.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// plainGranularity is what cuMemAlloc aligns to.
const plainGranularity = 256

// Alloc allocates virtual memory (cuMemCreate), which can be exported as a descriptor,
// or plain memory (cuMemAlloc) if the device or a sandbox around the process does not
// permit that.
func (d *device) Alloc(size uint64) (backend.Memory, error) {
	granularity := uint64(d.ordinal.facts.granularity)
	if granularity == 0 {
		return d.allocPlain(size)
	}
	rounded := roundUp(size, granularity)
	if rounded < size {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("allocate %d bytes", size), "no device has that much memory")
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	m := &virtual{held: held{primary: d.primary}, size: rounded, own: true, rdma: d.ordinal.facts.rdma}
	rc := C.virtual_create(d.context, d.ordinal.facts.rdma, C.size_t(rounded), &m.handle, &m.ptr)
	switch rc {
	case 0:
		return m, nil
	case C.CUDA_ERROR_NOT_SUPPORTED, C.CUDA_ERROR_NOT_PERMITTED:
		defer d.drop()
		return d.allocPlain(size)
	}
	defer d.drop()
	return nil, d.fail(rc, "allocate %d bytes", rounded)
}

func roundUp(n, multiple uint64) uint64 { return (n + multiple - 1) / multiple * multiple }

// virtual is memory from cuMemCreate, of this process or imported by descriptor.
type virtual struct {
	held
	ptr    C.CUdeviceptr
	size   uint64
	handle C.CUmemGenericAllocationHandle
	own    bool
	rdma   C.int        // as it was created
	using  sync.RWMutex // ExportFD reads; Free, Renew and Remap write
	freed  bool
}

func (m *virtual) Ptr() uint64  { return uint64(m.ptr) }
func (m *virtual) Size() uint64 { return m.size }

func (m *virtual) ExportFD() (int, error) {
	m.using.RLock()
	defer m.using.RUnlock()
	if m.freed {
		return -1, mscclgo.Errorf(mscclgo.ErrInvalid, m.op("export %d bytes", m.size), "the memory is freed")
	}
	if !m.own {
		return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, m.op("export %d bytes", m.size),
			"this is a mapping of another process's memory, which only its owner can export")
	}
	var fd C.int
	if rc := C.virtual_export(m.context, m.handle, &fd); rc != 0 {
		return -1, m.fail(rc, "export %d bytes as a descriptor", m.size)
	}
	return int(fd), nil
}

func (m *virtual) Renew() error {
	if !m.own {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, m.op("renew %d bytes", m.size), "this is a mapping of another process's memory")
	}
	return m.replace("renew", func() C.status { return C.virtual_renew(m.context, m.rdma, C.size_t(m.size), &m.handle, m.ptr) })
}

func (m *virtual) Remap(fd int) error {
	if m.own {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, m.op("remap %d bytes", m.size), "this is memory of this process")
	}
	return m.replace("remap", func() C.status {
		return C.virtual_remap(m.context, C.int(fd), C.size_t(m.size), &m.handle, m.ptr)
	})
}

// replace calls swap, which changes the handle, unless the memory is freed.
func (m *virtual) replace(verb string, swap func() C.status) error {
	m.using.Lock()
	defer m.using.Unlock()
	if m.freed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, m.op("%s %d bytes", verb, m.size), "the memory is freed")
	}
	if rc := swap(); rc != 0 {
		return m.fail(rc, "%s %d bytes", verb, m.size)
	}
	return nil
}

func (m *virtual) Free() error {
	return m.end(func() error {
		m.using.Lock()
		defer m.using.Unlock()
		m.freed = true
		return m.result(C.virtual_free(m.context, m.handle, m.ptr, C.size_t(m.size)), "free %d bytes", m.size)
	})
}

func (d *device) ImportFD(fd int, size uint64) (backend.Memory, error) {
	f := &d.ordinal.facts
	switch granularity := uint64(f.granularity); {
	case granularity == 0:
		return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, d.op("import %d bytes by descriptor", size),
			"this device or driver cannot share memory by descriptor")
	case fd < 0 || size == 0 || size%granularity != 0:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("import %d bytes by descriptor %d", size, fd),
			"the descriptor must be open, and the size must be the exporter's, a multiple of %d",
			granularity)
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	m := &virtual{held: held{primary: d.primary}, size: size}
	rc := C.virtual_import(d.context, C.int(fd), C.size_t(size), &m.handle, &m.ptr)
	if rc != 0 {
		defer d.drop()
		err := d.fail(rc, "import %d bytes by descriptor %d", size, fd)
		switch rc {
		// The driver's errors (seen: 580) for a size that is not the memory's and for
		// a descriptor of something else.
		case C.CUDA_ERROR_INVALID_VALUE, C.CUDA_ERROR_NOT_SUPPORTED, C.CUDA_ERROR_UNKNOWN:
			err.Kind = mscclgo.ErrInvalid
			err.Text = "the descriptor is not of GPU memory, or the memory has another size"
		}
		return nil, err
	}
	return m, nil
}

// allocPlain allocates memory by cuMemAlloc, of which IPCHandle works.
func (d *device) allocPlain(size uint64) (backend.Memory, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	m := &plain{held: held{primary: d.primary}, size: size}
	if rc := C.plain_create(d.context, C.size_t(size), &m.ptr); rc != 0 {
		defer d.drop()
		return nil, d.fail(rc, "allocate %d bytes", size)
	}
	return m, nil
}

// plain is memory from cuMemAlloc.
type plain struct {
	held
	ptr  C.CUdeviceptr
	size uint64
}

func (m *plain) Ptr() uint64  { return uint64(m.ptr) }
func (m *plain) Size() uint64 { return m.size }

func (m *plain) ExportFD() (int, error) {
	return -1, mscclgo.Errorf(mscclgo.ErrUnsupported, m.op("export %d bytes", m.size),
		"this device or driver cannot share memory by descriptor; use its IPC handle")
}

func (m *plain) Free() error {
	return m.end(func() error {
		m.awaitIdle()
		return m.result(C.plain_free(m.context, m.ptr), "free %d bytes", m.size)
	})
}

func (d *device) AllocHost(size uint64) (backend.HostMemory, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	d.tryCleanUp()
	m := &pinned{held: held{primary: d.primary}}
	var host unsafe.Pointer
	rc := C.host_create(d.context, C.size_t(size), &host, &m.ptr)
	if rc == C.CUDA_ERROR_OUT_OF_MEMORY {
		d.awaitIdle()
		d.tryCleanUp() // which may give some back
		rc = C.host_create(d.context, C.size_t(size), &host, &m.ptr)
	}
	if rc != 0 {
		defer d.drop()
		err := d.ordinal.driver.failure(rc, d.op("allocate %d bytes of pinned host memory", size))
		if rc == C.CUDA_ERROR_OUT_OF_MEMORY { // the device may have plenty
			err.Err = fmt.Errorf("%w; the host has too little memory, or too little that can be pinned", err.Err)
		}
		return nil, err
	}
	m.bytes = unsafe.Slice((*byte)(host), size)
	return m, nil
}

// pinned is host memory that the device can access.
type pinned struct {
	held
	ptr   C.CUdeviceptr
	bytes []byte
}

func (m *pinned) Ptr() uint64   { return uint64(m.ptr) }
func (m *pinned) Bytes() []byte { return m.bytes }

func (m *pinned) Free() error {
	return m.end(func() error {
		rc := m.freeHost(unsafe.Pointer(unsafe.SliceData(m.bytes)))
		return m.result(rc, "free %d bytes of pinned host memory", len(m.bytes))
	})
}

func (d *device) DMABuf(ptr, size uint64) (int, error) {
	fd := C.int(-1)
	if rc := C.dmabuf_export(d.context, C.CUdeviceptr(ptr), C.size_t(size), &fd); rc != 0 {
		err := d.fail(rc, "export %d bytes as a dma-buf", size)
		if rc == C.CUDA_ERROR_NOT_SUPPORTED {
			err.Kind = mscclgo.ErrUnsupported
		}
		return -1, err
	}
	return int(fd), nil
}
