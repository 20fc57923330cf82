package fifo

// #include "native/ring.h"
import "C"

import "unsafe"

// Trigger is what a GPU thread asks of the host. Its fields travel unchanged; the
// goroutine that serves the ring knows what they mean. See Trigger in
// <mscclgo/fifo.cuh>.
type Trigger struct {
	A, B, C uint64
	Detail  uint64 // 52 bits
	Kind    uint8  // not 0
}

// FirstUserKind is the first of the kinds, up to 255, that the library never uses.
const FirstUserKind = 128

var _ [C.sizeof_native_trigger]byte = [unsafe.Sizeof(Trigger{})]byte{}
