package native

// #include "native/count.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Count is the number of signals that a semaphore has sent. A sender, in C or in Go,
// claims it first, so that the values arrive in order.
type Count struct{ c *C.native_count }

// NewCount returns a count of 0.
func NewCount() *Count {
	n := &Count{(*C.native_count)(allocate(C.sizeof_native_count))}
	free(n, unsafe.Pointer(n.c))
	return n
}

// Claim waits until no thread in C sends, and returns the number of signals sent so
// far. Goroutines take turns by a lock of their own.
func (n *Count) Claim() uint64 {
	for !n.claimed().CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	return uint64(n.c.sent)
}

// Value returns the number of signals sent so far, to a goroutine whose turn it is.
func (n *Count) Value() uint64 { return atomic.LoadUint64((*uint64)(&n.c.sent)) }

// Release ends what Claim began. sent is the number of signals sent by now.
func (n *Count) Release(sent uint64) {
	n.c.sent = C.uint64_t(sent)
	n.claimed().Store(0)
}

func (n *Count) claimed() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&n.c.claimed)) }

// Pointer returns the native_count.
func (n *Count) Pointer() unsafe.Pointer { return unsafe.Pointer(n.c) }
