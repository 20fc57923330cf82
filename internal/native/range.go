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

// RangeInfo describes a range.
type RangeInfo struct {
	Address  uint64 // for this rank's device; where it is not mapped, its rank's modulo 8
	Size     uint64 // bytes
	Registry uint64 // the number of the registry that it is registered in or imported by
	Owner    uint64 // the number of the registry in which its rank has registered it
	Rank     int    // whose memory it is
	Number   uint32 // among the owner's; used once
	Mapped   bool   // for this rank's device
}

// NewRange returns a range that can be used until it or the gate is closed. The gate
// belongs to the whole allocation.
func NewRange(gate *Gate, about RangeInfo) *Range {
	r := &Range{(*C.native_range)(allocate(C.sizeof_native_range)), gate}
	free(r, unsafe.Pointer(r.c))
	*r.c = C.native_range{
		gate: gate.c, address: C.uint64_t(about.Address), size: C.uint64_t(about.Size),
		registry: C.uint64_t(about.Registry), owner: C.uint64_t(about.Owner), rank: C.uint32_t(about.Rank), number: C.uint32_t(about.Number), mapped: C.bool(about.Mapped),
	}
	return r
}

// Close keeps threads from entering the range, and waits for those inside. Any
// goroutine may call it, any number of times.
func (r *Range) Close() { closeGate(&r.c.open) }

// Pointer returns the native_range.
func (r *Range) Pointer() unsafe.Pointer { return unsafe.Pointer(r.c) }
