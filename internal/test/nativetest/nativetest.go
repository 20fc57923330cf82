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
// to a, a Store of the value b at a, an Update of a from n to b, a Mark or Reach with the number a, a Progress, or with
// Begin nothing. It returns the operation's result.
func Do(q *native.Queue, op native.Op, a, b, n uint64) int {
	return int(C.fake_do((*C.native_queue)(q.Pointer()), C.int(op), C.uint64_t(a), C.uint64_t(b), C.uint64_t(n)))
}

// Request is what a trigger asks of a queue: a copy of Bytes, a store of Value to Dst, an update of
// Word, and a mark, each if it is there.
type Request struct {
	Dst, Src, Word Place
	Bytes          uint64
	Reads, Stores  bool // the copy is one from the peer's memory; there is a store
	Value          uint64
	From, To       uint64
	Mark           int // 1 + its number, or 0 for none
}

// Place is a place in memory, or none.
type Place struct {
	Range  *native.Range
	Offset uint64
}

func (p Place) c() (to C.native_place) {
	if p.Range != nil {
		to._range, to.offset = (*C.native_range)(p.Range.Pointer()), C.uint64_t(p.Offset)
	}
	return to
}

// Serve enters a queue for a request, does all of it, and leaves. It returns the result of the first
// operation that did not return 0, or 0.
func Serve(q *native.Queue, r Request) int {
	request := C.native_request{
		dst: r.Dst.c(), src: r.Src.c(), bytes: C.uint64_t(r.Bytes), reads: C.bool(r.Reads), stores: C.bool(r.Stores),
		marks: r.Mark > 0, word: r.Word.c(),
	}
	return int(C.fake_serve((*C.native_queue)(q.Pointer()), &request, C.uint64_t(r.Value), C.uint64_t(r.From), C.uint64_t(r.To), C.uint(r.Mark)))
}

// Queue is a queue that works on host memory at once, unless a test changes that.
// Its methods may be called from any goroutine.
type Queue struct {
	*native.Queue
	c *C.fake_queue
}

// NewQueue returns a queue that is free, fails never and reaches its marks.
func NewQueue() *Queue { return newQueue(false) }

// NewRemoteQueue is NewQueue for a queue over a network. What is done to memory that is not mapped
// here is only counted.
func NewRemoteQueue() *Queue { return newQueue(true) }

func newQueue(remote bool) *Queue {
	q := native.NewQueue(C.sizeof_fake_queue)
	c := (*C.fake_queue)(q.Pointer())
	C.fake_init(c, C.bool(remote))
	return &Queue{q, c}
}

// Hold sets whether marks are kept from being reached.
func (q *Queue) Hold(on bool) { flag(&q.c.held).Store(number(on)) }

// Park sets whether what requests end with waits, unless it is a mark, and with it all marks.
func (q *Queue) Park(on bool) { flag(&q.c.parks).Store(number(on)) }

// Unpark has nothing of the first n requests wait any more, though others' requests do.
func (q *Queue) Unpark(n int) { flag(&q.c.queued).Store(uint32(n)) }

// Wrong returns how many operations were not what their request asked for, in kind, places or
// order, and how many requests were left before all was done and nothing had failed.
func (q *Queue) Wrong() int { return int(flag(&q.c.wrong).Load()) }

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
