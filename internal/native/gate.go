package native

// #include "gate.h"
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Gate guards something that threads in C use until it is closed.
type Gate struct{ c *C.native_gate }

// NewGate returns an open gate.
func NewGate() *Gate {
	g := &Gate{(*C.native_gate)(allocate(C.sizeof_native_gate))}
	free(g, unsafe.Pointer(g.c))
	return g
}

// Close keeps threads from entering, and waits for those inside. Any goroutine may
// call it, any number of times.
func (g *Gate) Close() { closeGate(g.c) }

// Pointer returns the native_gate.
func (g *Gate) Pointer() unsafe.Pointer { return unsafe.Pointer(g.c) }

func closeGate(c *C.native_gate) {
	const closed = 1
	word := (*atomic.Uint64)(unsafe.Pointer(&c.word))
	word.Or(closed)
	for word.Load() != closed {
		time.Sleep(10 * time.Microsecond)
	}
}
