package native

// #include "native/ring.h"
import "C"

import "unsafe"

// Ring is a native_ring: a ring of triggers as who serves it sees it, in pinned
// memory. One thread at a time has it, in Go or in C.
type Ring struct {
	Tail    unsafe.Pointer // a word: triggers popped, for kernels
	Entries unsafe.Pointer // 4 words each
	Size    uint64         // entries, a power of two
	Polled  uint64         // triggers polled
	Popped  uint64         // triggers popped; a copy of what kernels see
}

var _ [C.sizeof_native_ring]byte = [unsafe.Sizeof(Ring{})]byte{}
