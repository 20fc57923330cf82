package native

// #include "gate.h"
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Gate lets threads in C use something until it is closed.
type Gate struct{ c *C.native_gate }

// NewGate gives one that is open.
func NewGate() *Gate {
	g := &Gate{(*C.native_gate)(allocate(C.sizeof_native_gate))}
	free(g, unsafe.Pointer(g.c))
	return g
}

// Close lets nobody in any more, and waits for who is inside. Any goroutine, any
// number of times.
func (g *Gate) Close() { closeGate(g.c) }

// Pointer gives the native_gate.
func (g *Gate) Pointer() unsafe.Pointer { return unsafe.Pointer(g.c) }

func closeGate(c *C.native_gate) {
	const closed = 1
	word := (*atomic.Uint64)(unsafe.Pointer(&c.word))
	word.Or(closed)
	for word.Load() != closed {
		time.Sleep(10 * time.Microsecond)
	}
}
