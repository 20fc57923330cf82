package cuda

// #include <stdlib.h>
// #include "module.h"
import "C"

import (
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// module is loaded device code.
type module struct {
	held
	handle C.CUmodule
	image  *image // where others may load the same, else nil
}

// LoadModule takes PTX, a cubin or a fatbin. The driver compiles PTX and keeps the
// result in its own cache (~/.nv/ComputeCache). When LoadModule returns, all kernels
// are loaded, even if the process loads lazily, so that neither finding nor launching a
// kernel waits for another that spins.
func (d *device) LoadModule(image []byte) (backend.Module, error) {
	image, _, err := signature.Split(image) // package gpu has read the description
	if err == nil {
		err = checkImage(image)
	}
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, d.op("load a module of %d bytes", len(image)), "%w", err)
	}
	if err := d.hold(); err != nil {
		return nil, err
	}
	m := &module{held: held{primary: d.primary}}
	load := func() (C.CUmodule, error) { return d.loadImage(image) }
	if stateless(image) {
		m.handle, m.image, err = d.share(image, load)
	} else {
		m.handle, err = load()
	}
	if err != nil {
		return nil, errors.Join(err, d.drop())
	}
	return m, nil
}

// loadImage loads an image with its kernels.
func (p *primary) loadImage(image []byte) (handle C.CUmodule, err error) {
	const logSize = 16 << 10
	log := (*C.char)(C.calloc(1, logSize))
	defer C.free(unsafe.Pointer(log))
	ended := append(slices.Clone(image), 0) // PTX is a C string; the other kinds ignore the byte
	p.awaitIdle()
	rc := C.module_load(p.context, unsafe.Pointer(unsafe.SliceData(ended)), log, logSize, &handle)
	if rc != 0 {
		err := p.fail(rc, "load a module of %d bytes", len(image))
		err.Text = strings.TrimSpace(C.GoString(log))
		return nil, err
	}
	if rc := p.loadKernels(handle); rc != 0 {
		return nil, errors.Join(p.fail(rc, "load the kernels of a module of %d bytes", len(image)), p.unload(handle))
	}
	return handle, nil
}

func (p *primary) unload(handle C.CUmodule) error {
	return p.result(C.module_unload(p.context, handle), "unload a module")
}

func (p *primary) loadKernels(handle C.CUmodule) C.status {
	var n C.uint
	if rc := C.module_count(p.context, handle, &n); rc != 0 || n == 0 {
		return rc
	}
	functions := make([]C.CUfunction, n)
	return C.module_load_kernels(p.context, handle, &functions[0], n)
}

func (m *module) Kernel(name string) (backend.Kernel, error) {
	cname, err := m.cstring(name)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(cname))
	k := &kernel{primary: m.primary, image: m.image, name: name}
	switch rc := C.module_kernel(m.context, m.handle, cname, &k.handle); rc {
	case 0:
	case C.CUDA_ERROR_NOT_FOUND:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, m.op("find kernel %q", name),
			"the module has no such kernel%s; declare it extern \"C\" __global__", m.kernels())
	default:
		return nil, m.fail(rc, "find kernel %q", name)
	}
	var version C.int
	if rc := C.kernel_architecture(m.context, k.handle, &version); rc != 0 {
		return nil, m.fail(rc, "ask what kernel %q was compiled for", name)
	}
	k.overlaps = version >= 90
	for {
		var p C.parameter
		rc := C.kernel_parameter(m.context, k.handle, C.size_t(len(k.params)), &p)
		if rc == C.CUDA_ERROR_INVALID_VALUE {
			return k, nil
		}
		if rc != 0 {
			return nil, m.fail(rc, "get the parameters of kernel %q", name)
		}
		k.params = append(k.params, backend.Param{Offset: uint32(p.offset), Size: uint32(p.size)})
	}
}

// kernels lists the module's kernels for an error, if the driver can list them.
func (m *module) kernels() string {
	var n C.uint
	if C.module_count(m.context, m.handle, &n) != 0 {
		return ""
	}
	if n == 0 {
		return " and no other"
	}
	n = min(n, 32)
	functions, names := make([]C.CUfunction, n), make([]*C.char, n)
	if C.module_names(m.context, m.handle, &functions[0], &names[0], n) != 0 {
		return ""
	}
	list := make([]string, n)
	for i, name := range names {
		list[i] = C.GoString(name)
	}
	slices.Sort(list)
	return "; it has " + strings.Join(list, ", ")
}

func (m *module) Symbol(name string) (ptr, size uint64, err error) {
	cname, err := m.cstring(name)
	if err != nil {
		return 0, 0, err
	}
	defer C.free(unsafe.Pointer(cname))
	var p C.CUdeviceptr
	var s C.size_t
	switch rc := C.module_symbol(m.context, m.handle, cname, &p, &s); rc {
	case 0:
		return uint64(p), uint64(s), nil
	case C.CUDA_ERROR_NOT_FOUND:
		return 0, 0, mscclgo.Errorf(mscclgo.ErrInvalid, m.op("find symbol %q", name),
			"the module has no such variable; declare it extern \"C\" __device__, not static, and use it in a kernel")
	default:
		return 0, 0, m.fail(rc, "find symbol %q", name)
	}
}

// cstring copies a name to C memory.
func (m *module) cstring(name string) (*C.char, error) {
	if name == "" || strings.ContainsRune(name, 0) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, m.op("find %q", name), "the name is empty or has a zero byte")
	}
	return C.CString(name), nil
}

func (m *module) Close() error {
	return m.end(func() error {
		if m.image != nil && !m.part(m.image) {
			return nil // others use it
		}
		return m.unload(m.handle)
	})
}
