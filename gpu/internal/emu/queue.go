package emu

// #include "queue.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
)

// queue is a stream's side of what it gives to threads in C.
type queue struct {
	native *native.Queue
	c      *C.emu_queue
}

// Native gives the stream to threads in C, which find it busy while it has work
// of Go's, captures or has failed.
func (s *stream) Native() *native.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := native.NewQueue(C.sizeof_emu_queue)
	c := (*C.emu_queue)(q.Pointer())
	barred := s.pending
	if s.capture != nil {
		barred++
	}
	if s.err != nil {
		barred++
	}
	C.emu_queue_init(c, (*C.native_gate)(s.dev.gate.Pointer()), C.uint32_t(barred))
	s.native = &queue{q, c}
	return q
}

// NativeError is for errors that are not: this device does its work at once.
func (s *stream) NativeError(f native.Failure) error {
	return mscclgo.Errorf(mscclgo.ErrSystem, s.dev.op("work for a thread in C"), "operation %d failed with code %d", f.Op, f.Code)
}

// bar keeps threads in C from the stream, for one more reason, and waits until
// none uses it. A stream that was not given to them has no queue.
func (q *queue) bar() {
	if q == nil {
		return
	}
	claimed := (*atomic.Uint32)(unsafe.Pointer(&q.c.claimed))
	for !claimed.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	q.barred().Add(1)
	claimed.Store(0)
}

// unbar takes a reason back.
func (q *queue) unbar() {
	if q != nil {
		q.barred().Add(^uint32(0))
	}
}

// settle waits for a thread in C that uses the stream.
func (q *queue) settle() {
	q.bar()
	q.unbar()
}

func (q *queue) barred() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&q.c.barred)) }
