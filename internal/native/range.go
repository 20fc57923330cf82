package native

// #cgo CFLAGS: -I${SRCDIR}/..
// #include "native/range.h"
import "C"

import "unsafe"

// Range is memory that transports may read and write.
type Range struct {
	c    *C.native_range
	gate *Gate
}

// RangeInfo says what a range is.
type RangeInfo struct {
	Address  uint64 // for this rank's device
	Size     uint64 // bytes
	Registry uint64 // the number of the one that it is registered in or imported by
	Rank     int    // whose memory it is
}

// NewRange gives a range that can be used until its gate, that of the whole
// allocation, or it itself is closed.
func NewRange(gate *Gate, about RangeInfo) *Range {
	r := &Range{(*C.native_range)(allocate(C.sizeof_native_range)), gate}
	free(r, unsafe.Pointer(r.c))
	*r.c = C.native_range{
		gate: gate.c, address: C.uint64_t(about.Address), size: C.uint64_t(about.Size),
		registry: C.uint64_t(about.Registry), rank: C.uint32_t(about.Rank),
	}
	return r
}

// Close lets nobody begin to use the range, and waits for who uses it. Any
// goroutine, any number of times.
func (r *Range) Close() { closeGate(&r.c.open) }

// Pointer gives the native_range.
func (r *Range) Pointer() unsafe.Pointer { return unsafe.Pointer(r.c) }
