// Package nativetest lets tests do what threads in C do with package native's
// types, and gives them a queue whose marks, failures and use they control.
package nativetest

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -I${SRCDIR}/../..
#include "fake.h"
#include "native/range.h"
#include "native/request.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/native"
)

// Results of operations, beside the transports' codes.
const (
	Busy    = C.NATIVE_BUSY
	Pending = C.NATIVE_PENDING
	Closed  = C.NATIVE_CLOSED
)

// Marks is how many marks a queue has.
const Marks = C.NATIVE_MARKS

// EnterGate says whether a gate is open, and then keeps it from closing until
// leave.
func EnterGate(g *native.Gate) (leave func(), ok bool) {
	c := (*C.native_gate)(g.Pointer())
	if !C.native_gate_enter(c) {
		return nil, false
	}
	return func() { C.native_gate_leave(c) }, true
}

// EnterRange says whether a range is open, and then keeps it mapped until leave.
func EnterRange(r *native.Range) (leave func(), ok bool) {
	c := (*C.native_range)(r.Pointer())
	if !C.native_range_enter(c) {
		return nil, false
	}
	return func() { C.native_range_leave(c) }, true
}

// ClaimCount says whether nobody sends, and then keeps others from it until
// release.
func ClaimCount(n *native.Count) (release func(), ok bool) {
	c := (*C.native_count)(n.Pointer())
	if !C.native_count_claim(c) {
		return nil, false
	}
	return func() { C.native_count_release(c) }, true
}

// Do enters a queue, does one operation, and leaves it: a Write of n bytes from b
// to a, a Store of the value b at a, a Mark or Reach with the number a, or with
// Begin nothing. It gives the operation's result.
func Do(q *native.Queue, op native.Op, a, b, n uint64) int {
	return int(C.fake_do((*C.native_queue)(q.Pointer()), C.int(op), C.uint64_t(a), C.uint64_t(b), C.uint64_t(n)))
}

// Trigger is a fifo.Trigger.
type Trigger struct {
	A, B, C uint64
	Detail  uint64
	Kind    uint8
}

// Request is what C makes of a port's trigger.
type Request struct {
	Put, Signal, Flush, Inline  bool
	Dst, Src                    uint16
	Port                        uint64
	DstOffset, SrcOffset, Bytes uint64
}

// Decode gives the trigger of an entry's words, and its request, if it is a port's,
// as C decodes them.
func Decode(words [4]uint64) (Trigger, Request, bool) {
	t := C.native_trigger_decode((*C.uint64_t)(unsafe.Pointer(&words)))
	var r C.native_request
	ok := C.native_request_decode(&r, &t)
	return Trigger{A: uint64(t.a), B: uint64(t.b), C: uint64(t.c), Detail: uint64(t.detail), Kind: uint8(t.kind)},
		Request{
			Put: bool(r.put), Signal: bool(r.signal), Flush: bool(r.flush), Inline: bool(r.in_line), Dst: uint16(r.dst), Src: uint16(r.src), Port: uint64(r.port),
			DstOffset: uint64(r.dst_offset), SrcOffset: uint64(r.src_offset), Bytes: uint64(r.bytes),
		}, bool(ok)
}

// Queue is one that does its work at once, but for what a test tells it. Its
// methods may be called from any goroutine.
type Queue struct {
	*native.Queue
	c *C.fake_queue
}

// NewQueue gives a queue that behaves.
func NewQueue() *Queue {
	q := native.NewQueue(C.sizeof_fake_queue)
	c := (*C.fake_queue)(q.Pointer())
	C.fake_init(c)
	return &Queue{q, c}
}

// Hold keeps marks from being reached, or not any more.
func (q *Queue) Hold(on bool) { flag(&q.c.held).Store(number(on)) }

// Busy makes the queue one that somebody else uses, or not any more.
func (q *Queue) Busy(on bool) { flag(&q.c.busy).Store(number(on)) }

// Fail makes one kind of operation fail with a code, from now on.
func (q *Queue) Fail(op native.Op, code int) { flag(&q.c.codes[op]).Store(uint32(code)) }

// Done gives how many operations of a kind were done.
func (q *Queue) Done(op native.Op) int { return int(flag(&q.c.done[op]).Load()) }

func flag(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }

func number(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}
