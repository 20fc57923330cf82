package emu

// #include "queue.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/native"
)

// queue is a stream's side of its native.Queue.
type queue struct {
	native *native.Queue
	c      *C.emu_queue
}

// Native returns the stream for threads in C. It is busy for them while Go has queued
// work on it, while it captures, when it has failed, and where schedules are explored, as they have
// no turns.
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
	if s.owner.turns != nil {
		barred++
	}
	C.emu_queue_init(c, (*C.native_gate)(s.dev.gate.Pointer()), C.uint32_t(barred))
	c.race, c.sequence = (*C.race_engine)(s.owner.race.Engine()), (*C.race_sequence)(s.race.Pointer())
	s.native = &queue{q, c}
	return q
}

// NativeError returns the error of the method that does the same.
func (s *stream) NativeError(f native.Failure) error {
	if f.Op == native.Write || f.Op == native.Read {
		return s.dev.accessed(false, "copy %d bytes from %#x to %#x", f.Bytes, f.Src, f.Dst)
	}
	return s.dev.accessed(false, "write a value to %#x", f.Dst)
}

// bar adds a reason for which threads in C must not use the stream, and waits until
// none does. q is nil if Native was not called.
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

// unbar removes a reason.
func (q *queue) unbar() {
	if q != nil {
		q.barred().Add(^uint32(0))
	}
}

// settle waits until no thread in C uses the stream.
func (q *queue) settle() {
	q.bar()
	q.unbar()
}

func (q *queue) barred() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&q.c.barred)) }
