// Package nativetest lets tests do what threads in C do with the types of package
// native. It has a queue whose marks, failures and use a test controls.
package nativetest

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/../..
#include "fake.h"
#include "native/range.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/native"
)

// Results of operations other than the transports' codes.
const (
	Busy    = C.NATIVE_BUSY
	Pending = C.NATIVE_PENDING
	Closed  = C.NATIVE_CLOSED
)

// Marks is how many marks a queue has.
const Marks = C.NATIVE_MARKS

// EnterGate reports whether a gate is open. If so, the gate does not close until leave
// is called.
func EnterGate(g *native.Gate) (leave func(), ok bool) {
	c := (*C.native_gate)(g.Pointer())
	if !C.native_gate_enter(c) {
		return nil, false
	}
	return func() { C.native_gate_leave(c) }, true
}

// EnterRange reports whether a range is open. If so, it stays mapped until leave is
// called.
func EnterRange(r *native.Range) (leave func(), ok bool) {
	c := (*C.native_range)(r.Pointer())
	if !C.native_range_enter(c) {
		return nil, false
	}
	return func() { C.native_range_leave(c) }, true
}

// ClaimCount reports whether nobody else sends. If so, nobody else does until release
// is called.
func ClaimCount(n *native.Count) (release func(), ok bool) {
	c := (*C.native_count)(n.Pointer())
	if !C.native_count_claim(c) {
		return nil, false
	}
	return func() { C.native_count_release(c) }, true
}

// Do enters a queue, does one operation, and leaves it: a Write of n bytes from b
// to a, a Store of the value b at a, a Mark or Reach with the number a, or with
// Begin nothing. It returns the operation's result.
func Do(q *native.Queue, op native.Op, a, b, n uint64) int {
	return int(C.fake_do((*C.native_queue)(q.Pointer()), C.int(op), C.uint64_t(a), C.uint64_t(b), C.uint64_t(n)))
}

// Queue is a queue that works on host memory at once, unless a test changes that.
// Its methods may be called from any goroutine.
type Queue struct {
	*native.Queue
	c *C.fake_queue
}

// NewQueue returns a queue that is free, fails never and reaches its marks.
func NewQueue() *Queue {
	q := native.NewQueue(C.sizeof_fake_queue)
	c := (*C.fake_queue)(q.Pointer())
	C.fake_init(c)
	return &Queue{q, c}
}

// Hold sets whether marks are kept from being reached.
func (q *Queue) Hold(on bool) { flag(&q.c.held).Store(number(on)) }

// Busy sets whether somebody else seems to use the queue.
func (q *Queue) Busy(on bool) { flag(&q.c.busy).Store(number(on)) }

// Fail makes one kind of operation fail with a code, or succeed with code 0.
func (q *Queue) Fail(op native.Op, code int) { flag(&q.c.codes[op]).Store(uint32(code)) }

// Done returns how many operations of a kind were done.
func (q *Queue) Done(op native.Op) int { return int(flag(&q.c.done[op]).Load()) }

func flag(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }

func number(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}
