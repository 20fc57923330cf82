package cuda

// #include "module.h"
import "C"

import "github.com/mscclgo/mscclgo/gpu/internal/backend"

// kernel is an entry point. It is valid as long as its module.
type kernel struct {
	*primary
	image  *image // of its module
	handle C.CUfunction
	name   string
	params []backend.Param
	// overlaps is whether a launch may begin before the kernel before it has ended. Code
	// that was compiled for architectures before sm_90 does not wait for that kernel.
	overlaps bool
}

func (k *kernel) Params() []backend.Param { return k.params }

func (k *kernel) Attributes() (backend.Attributes, error) {
	var f C.kernel_facts
	if rc := C.kernel_query(k.context, k.handle, &f); rc != 0 {
		return backend.Attributes{}, k.fail(rc, "get the attributes of kernel %q", k.name)
	}
	return backend.Attributes{
		MaxThreadsPerBlock: int(f.max_threads),
		StaticShared:       int(f.static_shared),
		MaxDynamicShared:   int(f.max_dynamic_shared),
		Registers:          int(f.registers),
		LocalBytes:         int(f.local_bytes),
	}, nil
}

func (k *kernel) SetMaxDynamicShared(bytes int) error {
	now := func() (int, error) {
		a, err := k.Attributes()
		return a.MaxDynamicShared, err
	}
	return k.image.allow(k.name, bytes, now, func() error {
		return k.result(C.kernel_set_max_dynamic_shared(k.context, k.handle, C.int(bytes)),
			"allow kernel %q %d bytes of dynamic shared memory (a block can have at most %d)",
			k.name, bytes, int(k.ordinal.facts.max_shared))
	})
}

func (k *kernel) MaxResidentBlocks(threads, dynamicShared int) (int, error) {
	var blocks C.int
	rc := C.kernel_resident(k.context, k.handle, C.int(threads), C.size_t(dynamicShared), &blocks)
	if rc != 0 {
		return 0, k.fail(rc, "count resident blocks of kernel %q with %d threads and %d bytes of dynamic shared memory",
			k.name, threads, dynamicShared)
	}
	return int(blocks) * int(k.ordinal.facts.multiprocessors), nil
}
