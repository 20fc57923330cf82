package cuda

// #include "module.h"
// #include "stream.h"
import "C"

import (
	_ "embed"
	"sync"
	"unsafe"
)

// stampCode is a kernel that writes the time to a ring. As PTX it needs no compiler but the
// driver's.
//
//go:embed stamp.ptx
var stampCode []byte

// stamper is the kernel of Stream.Stamp, loaded when it is first used.
type stamper struct {
	mu       sync.Mutex
	module   C.CUmodule
	function C.CUfunction
}

// stampKernel returns the kernel.
func (p *primary) stampKernel() (C.CUfunction, error) {
	p.stamps.mu.Lock()
	defer p.stamps.mu.Unlock()
	if p.stamps.function != nil {
		return p.stamps.function, nil
	}
	const what = "load the kernel that stamps times"
	if p.stamps.module == nil {
		var log [1]C.char
		p.awaitIdle()
		code := append(append([]byte(nil), stampCode...), 0)
		if rc := C.module_load(p.context, unsafe.Pointer(&code[0]), &log[0], 0, &p.stamps.module); rc != 0 {
			return nil, p.fail(rc, what)
		}
	}
	name := []C.char{'m', 's', 'c', 'c', 'l', 'g', 'o', '_', 's', 't', 'a', 'm', 'p', 0}
	var functions [1]C.CUfunction
	if rc := C.module_load_kernels(p.context, p.stamps.module, &functions[0], 1); rc != 0 {
		return nil, p.fail(rc, what)
	}
	if rc := C.module_kernel(p.context, p.stamps.module, &name[0], &p.stamps.function); rc != 0 {
		return nil, p.fail(rc, what)
	}
	return p.stamps.function, nil
}

// dropStamps unloads the kernel.
func (p *primary) dropStamps() C.status {
	if p.stamps.module == nil {
		return 0
	}
	return C.module_unload(p.context, p.stamps.module)
}

// HostClock is false: a GPU's %globaltimer has an epoch of its own.
func (*device) HostClock() bool { return false }

// Stamp is a launch of one thread.
func (s *stream) Stamp(ring, what, value uint64) error {
	kernel, err := s.stampKernel()
	if err != nil {
		return err
	}
	args := [3]uint64{ring, what, value}
	rc := C.stream_launch(&s.c, kernel, 1, 1, 1, 1, 1, 1, 0, false, false, unsafe.Pointer(&args), C.size_t(unsafe.Sizeof(args)))
	return s.result(rc, "stamp the time")
}
