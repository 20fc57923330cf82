package native

// #include "native/ring.h"
import "C"

import "unsafe"

// Ring is a native_ring: a ring of triggers as the thread that serves it sees it, in
// pinned memory. One thread at a time has it, in Go or in C.
type Ring struct {
	Tail          unsafe.Pointer // a word: triggers popped, for kernels; nil once closed
	Entries       unsafe.Pointer // EntryBytes each
	Payloads      unsafe.Pointer // PayloadStride bytes for each entry
	Size          uint64         // entries, a power of two
	Payload       uint64         // the most bytes that a thread sends with a trigger
	PayloadStride uint64
	Polled        uint64 // triggers polled
	Popped        uint64 // triggers popped; a copy of what kernels see
}

// EntryBytes is the size of an entry of a ring.
const EntryBytes = 8 * C.NATIVE_ENTRY_WORDS

var _ [C.sizeof_native_ring]byte = [unsafe.Sizeof(Ring{})]byte{}
