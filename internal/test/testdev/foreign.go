package testdev

// #cgo LDFLAGS: -ldl
// #include "foreign.h"
import "C"

import (
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Kind is how memory of frameworks is allocated.
type Kind int

// The kinds of memory. Expandable memory is virtual memory in mappings of 2 MiB, without
// descriptors, as PyTorch's expandable segments are.
const (
	Plain Kind = iota
	Pool
	Expandable
)

// Foreign returns memory of an NVIDIA GPU that did not come from package gpu but from
// the driver's cuMemAlloc, as a framework's would. free releases it.
//
// Errors: ErrUnsupported on an emulated device, which has no other allocator.
func Foreign(d *gpu.Device, size uint64) (b *gpu.Buffer, free func(), err error) {
	return ForeignOf(d, Plain, size)
}

// ForeignOf is Foreign for memory of any kind.
func ForeignOf(d *gpu.Device, kind Kind, size uint64) (b *gpu.Buffer, free func(), err error) {
	op := fmt.Sprintf("testdev: allocate %d foreign bytes on %v", size, d)
	var ordinal C.int
	if _, err := fmt.Sscanf(d.String(), "cuda:%d", &ordinal); err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it is no NVIDIA GPU")
	}
	var ptr C.ulonglong
	if rc := C.foreign_alloc(ordinal, C.foreign_kind(kind), C.size_t(size), &ptr); rc != 0 {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "the driver says %d", int(rc))
	}
	free = func() { C.foreign_free(ordinal, C.foreign_kind(kind), C.size_t(size), ptr) }
	b, err = d.Wrap(gpu.Ptr(ptr), size)
	if err != nil {
		free()
		return nil, nil, err
	}
	return b, free, nil
}
