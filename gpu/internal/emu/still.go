package emu

/*
#include <stdlib.h>
#include "pool.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// stillness is what a device knows of whether anything on it can go on by itself.
type stillness struct {
	changes atomic.Uint64 // counts what begins or ends to work or to wait, but for threads of kernels

	waiting sync.Mutex
	queues  map[*mark]int // of this device, by the work queues of this device that wait for them
	hosts   map[*mark]int // likewise by goroutines of the host

	mu       sync.Mutex
	closed   bool
	answers  *C.stall_answer // of the resident blocks, or nil
	question uint32          // the last that was asked
	last     inside.Still
}

// queue notes that a work queue of the device begins to wait for another's mark, and returns what
// notes the end of that. host does so for a goroutine of the host.
func (s *stillness) queue(m *mark) (done func()) { return s.waits(&s.queues, m) }
func (s *stillness) host(m *mark) (done func())  { return s.waits(&s.hosts, m) }

func (s *stillness) waits(set *map[*mark]int, m *mark) (done func()) {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	s.changes.Add(1)
	if *set == nil {
		*set = map[*mark]int{}
	}
	(*set)[m]++
	return func() {
		s.waiting.Lock()
		defer s.waiting.Unlock()
		s.changes.Add(1)
		if (*set)[m]--; (*set)[m] == 0 {
			delete(*set, m)
		}
	}
}

// waiters returns how many work queues and goroutines of the host wait. ok is false if one of them
// may go on.
func (s *stillness) waiters() (queues, hosts int, ok bool) {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	count := func(set map[*mark]int) (all int) {
		for m, n := range set {
			select {
			case <-m.done:
				return -1
			default:
				all += n
			}
		}
		return all
	}
	queues, hosts = count(s.queues), count(s.hosts)
	return queues, hosts, queues >= 0 && hosts >= 0
}

// Still returns when last all work of this device stood still, and asks the blocks again.
// Work that does not, such as a copy or a wait of a stream for a value, leaves that as it was.
// Its first call only asks.
func (d *device) Still() inside.Still {
	s := &d.still
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.changes.Load() // first: what changes meanwhile shows the next time
	d.mu.Lock()
	busy := d.busy
	d.mu.Unlock()
	queues, hosts, ok := s.waiters()
	if s.closed || !ok {
		return s.last
	}
	if s.answers == nil {
		s.answers = (*C.stall_answer)(C.calloc(C.size_t(d.residentBlocks()), C.sizeof_stall_answer))
	}
	if s.answers == nil {
		return s.last
	}
	if s.question > 0 {
		var load C.pool_load
		told := int(C.pool_told(d.pool, C.uint32_t(s.question), s.answers, &load))
		if told < 0 || busy != queues+int(load.launches) {
			return s.last
		}
		s.last = stillOf(unsafe.Slice(s.answers, told))
		s.last.Rounds, s.last.Hosts, s.last.Unbegun = uint64(s.question), hosts, uint64(load.unbegun)
		s.last.Epoch += uint64(load.epoch) + changes
	}
	s.question++
	C.pool_ask(d.pool, C.uint32_t(s.question))
	return s.last
}

// stillOf returns what blocks have answered.
func stillOf(answers []C.stall_answer) (s inside.Still) {
	for i := range answers {
		a := &answers[i]
		s.Epoch += uint64(a.epoch)
		for _, e := range a.entries[:a.count] {
			s.Threads = append(s.Threads, inside.StillThreads{
				Kernel: C.GoString(&a.kernel[0]), Block: uint32(a.block), First: uint32(e.first), Count: uint32(e.threads),
				At:    inside.StillAt(e.what),
				Group: uint64(uintptr(e.wait.group)), Channel: uint32(e.wait.channel), Peer: uint32(e.wait.peer), Number: uint64(e.wait.number),
			})
		}
	}
	return s
}

// close frees what it has, and has Still use the pool no more.
func (s *stillness) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	C.free(unsafe.Pointer(s.answers))
	s.answers = nil
}
