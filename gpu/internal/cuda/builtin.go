package cuda

// #include "module.h"
import "C"

import (
	"sync"
	"unsafe"
)

// builtin is kernels of this package's own, loaded when they are first used. As PTX they need
// no compiler but the driver's.
type builtin struct {
	what  string // for errors
	code  []byte
	names []string

	mu        sync.Mutex
	module    C.CUmodule
	functions []C.CUfunction // in the order of the names; nil until all are loaded
}

// load returns the kernels.
func (b *builtin) load(p *primary) ([]C.CUfunction, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.functions != nil {
		return b.functions, nil
	}
	if b.module == nil {
		var log [1]C.char
		p.awaitIdle()
		code := append(append([]byte(nil), b.code...), 0)
		if rc := C.module_load(p.context, unsafe.Pointer(&code[0]), &log[0], 0, &b.module); rc != 0 {
			return nil, p.fail(rc, "%s", b.what)
		}
	}
	functions := make([]C.CUfunction, len(b.names))
	if rc := C.module_load_kernels(p.context, b.module, &functions[0], C.uint(len(functions))); rc != 0 {
		return nil, p.fail(rc, "%s", b.what)
	}
	for i, name := range b.names {
		text := append([]byte(name), 0)
		if rc := C.module_kernel(p.context, b.module, (*C.char)(unsafe.Pointer(&text[0])), &functions[i]); rc != 0 {
			return nil, p.fail(rc, "%s", b.what)
		}
	}
	b.functions = functions
	return functions, nil
}

// drop unloads the kernels.
func (b *builtin) drop(p *primary) C.status {
	if b.module == nil {
		return 0
	}
	return C.module_unload(p.context, b.module)
}
