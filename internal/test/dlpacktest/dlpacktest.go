// Package dlpacktest makes tensors of DLPack in memory of C, as a framework would.
package dlpacktest

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra
#include <stdlib.h>
#include <string.h>
#include "../../../dlpack/dlpack.h"

typedef struct {
  union {
    dl_plain plain;
    dl_versioned versioned;
  } managed;  // the first member, since the deleter gets its address
  int deleted, correct;
  int64_t shape[65], strides[65];
} holder;

static void deleted(dl_managed* self) {
  holder* h = (holder*)self;
  h->deleted++;
  if (h->managed.plain.context == h || h->managed.versioned.context == h) h->correct++;
}

static holder* make(bool versioned, uint32_t major, uint64_t flags, dl_tensor* t, bool strides, bool deleter) {
  holder* h = calloc(1, sizeof *h);
  t->shape = h->shape;
  if (strides) t->strides = h->strides;
  if (versioned) {
    h->managed.versioned.version.major = major;
    h->managed.versioned.context = h;
    h->managed.versioned.flags = flags;
    h->managed.versioned.tensor = *t;
    if (deleter) h->managed.versioned.deleter = deleted;
  } else {
    h->managed.plain.context = h;
    h->managed.plain.tensor = *t;
    if (deleter) h->managed.plain.deleter = deleted;
  }
  return h;
}

static dl_tensor describe(uintptr_t data, int32_t kind, int32_t number, int32_t n, uint8_t code, uint8_t bits,
                          uint16_t lanes, uint64_t offset) {
  return (dl_tensor){.data = data, .device = {kind, number}, .dimensions = n, .type = {code, bits, lanes},
                     .byte_offset = offset};
}
*/
import "C"

import "unsafe"

// Tensor describes a tensor. The zero values describe a DLManagedTensor of the first
// version in the host's memory.
type Tensor struct {
	Versioned  bool
	Major      uint32 // 0 means 1
	Flags      uint64
	Data       uintptr
	Offset     uint64
	Kind       int32 // of device; 0 means the host
	Number     int32 // of the device
	Code, Bits uint8
	Lanes      uint16 // 0 means 1
	Shape      []int64
	Strides    []int64 // nil for none
	Dimensions int32   // 0 means as many as Shape has
	NoDeleter  bool
}

// Managed is a managed tensor.
type Managed struct{ h *C.holder }

// Make makes a managed tensor. The caller frees it.
func Make(t Tensor) Managed {
	if t.Major == 0 {
		t.Major = 1
	}
	if t.Kind == 0 {
		t.Kind = 1
	}
	if t.Lanes == 0 {
		t.Lanes = 1
	}
	if t.Dimensions == 0 {
		t.Dimensions = int32(len(t.Shape))
	}
	dl := C.describe(C.uintptr_t(t.Data), C.int32_t(t.Kind), C.int32_t(t.Number), C.int32_t(t.Dimensions),
		C.uint8_t(t.Code), C.uint8_t(t.Bits), C.uint16_t(t.Lanes), C.uint64_t(t.Offset))
	h := C.make(C.bool(t.Versioned), C.uint32_t(t.Major), C.uint64_t(t.Flags), &dl, C.bool(t.Strides != nil), C.bool(!t.NoDeleter))
	for i, n := range t.Shape {
		h.shape[i] = C.int64_t(n)
	}
	for i, n := range t.Strides {
		h.strides[i] = C.int64_t(n)
	}
	return Managed{h}
}

// Pointer returns the address of the managed tensor.
func (m Managed) Pointer() uintptr { return uintptr(unsafe.Pointer(m.h)) }

// Deleted returns how often the deleter was called, and with the right tensor.
func (m Managed) Deleted() (calls, correct int) { return int(m.h.deleted), int(m.h.correct) }

// Free frees the tensor.
func (m Managed) Free() { C.free(unsafe.Pointer(m.h)) }
