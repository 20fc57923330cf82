// Package dlpack takes over tensors that other code of the process hands out by DLPack, the
// exchange format of NumPy, PyTorch, JAX, CuPy and others
// (https://dmlc.github.io/dlpack/latest), as buffers for kernels and collectives.
package dlpack

// #include "dlpack.h"
import "C"

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// Tensor is a tensor that was taken over. Its elements lie in a row, in the order of C: the
// last index is the fastest.
type Tensor struct {
	Buffer *gpu.Buffer // the elements, or nil if there are none
	Type   collective.Type
	Shape  []int64 // empty for a single element without a dimension

	managed   uintptr
	versioned bool
	deleter   C.dl_deleter
	closed    atomic.Bool
}

// Options tell what a pointer is of. The zero value is for a DLManagedTensor, the content of
// a Python capsule named "dltensor".
type Options struct {
	// Versioned is for a DLManagedTensorVersioned, of a capsule named "dltensor_versioned".
	Versioned bool
	// ReadOnly takes a tensor that is marked as read-only, too. It must not be written.
	ReadOnly bool
}

// mostDimensions bounds what is read of a shape. NumPy and PyTorch have at most 64.
const mostDimensions = 64

// Take takes over the tensor that a pointer to a DLManagedTensor or DLManagedTensorVersioned
// refers to. From then on the caller owns it, and calls [Tensor.Close], which calls its deleter.
// After an error its previous owner still owns it, and calls its deleter, as the destructor of
// a Python capsule does.
//
// A tensor in the host's memory is wrapped by [gpu.Device.WrapHost], which pins it until
// Close; on an emulated device these are the only ones. Nothing is copied, and Take waits
// for no stream: the producer's work on the tensor is ordered as __dlpack__(stream=...)
// says.
//
// Errors: ErrInvalid for a pointer that is 0, a tensor on another device, one that is not
// contiguous, is read-only, or was taken before and not closed, a tensor of another major version,
// and one whose memory is not the device's, as after it was freed; ErrUnsupported for
// elements of a type that package collective does not have.
func Take(d *gpu.Device, managed uintptr, o Options) (*Tensor, error) {
	const op = "dlpack: take a tensor"
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...)
	}
	if d == nil {
		return nil, invalid("the device is nil")
	}
	if managed == 0 {
		return nil, invalid("the pointer is 0; a capsule whose tensor was consumed has none")
	}
	place := C.dl_find(C.uintptr_t(managed), C.bool(o.Versioned))
	switch {
	case place.major != C.DL_MAJOR:
		return nil, invalid("the tensor is of DLPack %d, and this package knows version %d", place.major, C.DL_MAJOR)
	case bool(C.dl_is_consumed(place)):
		return nil, invalid("the tensor was taken before, and a tensor can be consumed once; have its owner export it again")
	case place.flags&C.DL_READ_ONLY != 0 && !o.ReadOnly:
		return nil, invalid("the tensor is read-only; copy it, or take it to be read only (Options.ReadOnly)")
	}
	t := &Tensor{managed: managed, versioned: o.Versioned}
	bytes, err := t.describe(op, place.tensor)
	if err != nil {
		return nil, err
	}
	if bytes > 0 {
		if t.Buffer, err = wrap(d, op, place.tensor, bytes); err != nil {
			return nil, err
		}
	}
	t.deleter = C.dl_consume(place)
	return t, nil
}

// describe fills in type and shape, and returns the bytes of all elements.
func (t *Tensor) describe(op string, dl *C.dl_tensor) (bytes uint64, err error) {
	invalid := func(format string, args ...any) (uint64, error) {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...)
	}
	code := typeCode{uint8(dl._type.code), uint8(dl._type.bits)}
	typ, ok := types[code]
	if !ok || dl._type.lanes != 1 {
		return 0, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "elements of DLPack's type code %d with %d bits and %d lanes are none of package collective's: %v; convert the tensor, or view it as one of these",
			code.code, code.bits, dl._type.lanes, collective.Types())
	}
	t.Type = typ
	n := int(dl.dimensions)
	if n < 0 || n > mostDimensions || n > 0 && dl.shape == nil {
		return invalid("the tensor has %d dimensions, and there are at most %d, with a shape", n, mostDimensions)
	}
	t.Shape = make([]int64, n)
	for i, extent := range unsafe.Slice(dl.shape, n) {
		t.Shape[i] = int64(extent)
	}
	count := uint64(1)
	for _, extent := range t.Shape {
		if extent < 0 {
			return invalid("the shape is %v", t.Shape)
		}
		over, product := bits.Mul64(count, uint64(extent))
		if over != 0 || product > 1<<56 {
			return invalid("a tensor of shape %v is larger than there can be", t.Shape)
		}
		count = product
	}
	if count == 0 {
		return 0, nil
	}
	if dl.strides != nil {
		stride := int64(1)
		for i, s := range slices.Backward(unsafe.Slice(dl.strides, n)) {
			if t.Shape[i] != 1 && int64(s) != stride {
				return invalid("a tensor of shape %v with strides %v is not contiguous; make a contiguous copy first", t.Shape, unsafe.Slice(dl.strides, n))
			}
			stride *= t.Shape[i]
		}
	}
	if dl.data == 0 {
		return invalid("the tensor of shape %v has no memory", t.Shape)
	}
	return count * uint64(typ.Size()), nil
}

// typeCode is a DLDataType of one lane.
type typeCode struct{ code, bits uint8 }

// types are the element types by what DLPack calls them: integers (0), unsigned ones (1),
// IEEE floats (2), bfloat (4) and the fp8 without infinities (10) and with them (12).
// Nothing writes to it.
var types = map[typeCode]collective.Type{
	{0, 32}: collective.I32, {0, 64}: collective.I64, {1, 8}: collective.U8,
	{2, 16}: collective.F16, {2, 32}: collective.F32, {2, 64}: collective.F64,
	{4, 16}: collective.BF16, {10, 8}: collective.F8E4M3, {12, 8}: collective.F8E5M2,
}

// lowest and highest bound the addresses of processes.
const (
	lowest  = 1 << 16
	highest = 1 << 57
)

// wrap returns a buffer for the elements.
func wrap(d *gpu.Device, op string, dl *C.dl_tensor, bytes uint64) (*gpu.Buffer, error) {
	start, carry := bits.Add64(uint64(dl.data), uint64(dl.byte_offset), 0)
	if start < lowest || carry != 0 || bytes > highest-lowest || start > highest-bytes {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no memory of %d bytes at %#x, %d from there", bytes, uint64(dl.data), uint64(dl.byte_offset))
	}
	switch dl.device.kind {
	case C.DL_CPU, C.DL_CUDA_HOST:
		return d.WrapHost(unsafe.Slice((*byte)(C.dl_memory(C.uintptr_t(start))), bytes))
	case C.DL_CUDA:
		if name := fmt.Sprintf("cuda:%d", dl.device.number); name != d.String() {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the tensor is on %s, and the device is %v; copy it there", name, d)
		}
	case C.DL_CUDA_MANAGED:
	default:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the tensor is on a device of DLPack's kind %d, and the device is %v", dl.device.kind, d)
	}
	return d.Wrap(gpu.Ptr(start), bytes)
}

// Count returns the number of elements.
func (t *Tensor) Count() uint64 {
	count := uint64(1)
	for _, extent := range t.Shape {
		count *= uint64(extent)
	}
	return count
}

// Close hands the tensor back: it closes the buffer and calls the tensor's deleter, on the
// calling thread. Work that uses the buffer must have ended. It is safe to call twice, and
// does nothing on nil.
func (t *Tensor) Close() error {
	if t == nil || t.closed.Swap(true) {
		return nil
	}
	err := t.Buffer.Close()
	C.dl_delete(C.uintptr_t(t.managed), C.bool(t.versioned), t.deleter)
	return err
}
