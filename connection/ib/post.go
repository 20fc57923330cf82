package ib

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/internal -I${SRCDIR}/../../internal
#cgo noescape ib_request
#cgo nocallback ib_request
#cgo noescape ib_poll
#cgo nocallback ib_poll
#cgo noescape ib_fence
#cgo nocallback ib_fence
#cgo noescape ib_write
#cgo nocallback ib_write
#cgo noescape ib_read
#cgo nocallback ib_read
#cgo noescape ib_store
#cgo nocallback ib_store
#cgo noescape ib_follow
#cgo nocallback ib_follow
#cgo noescape ib_update
#cgo nocallback ib_update
#cgo noescape ib_increase
#cgo nocallback ib_increase
#cgo noescape ib_changed
#cgo nocallback ib_changed
#cgo noescape ib_settle
#cgo nocallback ib_settle
#cgo noescape ib_reached
#cgo nocallback ib_reached
#cgo noescape ib_fits
#cgo nocallback ib_fits
#cgo noescape ib_pieces
#cgo nocallback ib_pieces
#cgo noescape ib_spread
#cgo nocallback ib_spread
#cgo noescape ib_unpark
#cgo nocallback ib_unpark
#cgo noescape ib_landed
#cgo nocallback ib_landed
#include "post.h"
*/
import "C"

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// theirs returns the peer's memory as requests of q name it.
func (k *key) theirs(m *registeredmem.Memory, q *queue) C.ib_memory {
	return C.ib_memory{
		memory: C.uint64_t(m.ID()) + 1, size: C.uint64_t(m.Size()), base: C.uint64_t(k.base), place: C.uint64_t(k.place),
		key: C.uint32_t(k.keys[q.peer.nic]), device: C.bool(k.device),
	}
}

// own returns this rank's memory likewise.
func (r *registration) own(q *queue) C.ib_memory {
	return C.ib_memory{
		memory: C.uint64_t(r.memory.ID()) + 1, size: C.uint64_t(r.memory.Size()), base: C.uint64_t(r.base), place: C.uint64_t(r.address),
		key: C.uint32_t(r.mrs[q.nic.index].LocalKey()), device: C.bool(r.device),
	}
}

// until has C post requests. Where C must not do so before others are done, it polls until they
// are.
func (c *conn) until(op string, post func() C.int) error {
	for i := 0; ; i++ {
		switch post() {
		case 0:
			return nil
		case C.IB_BROKEN:
			return c.usable(op)
		}
		if i > 0 {
			pause(i)
		}
		if err := c.pollAll(op); err != nil {
			return err
		}
	}
}

// pollAll takes the completions of all queues on which requests are under way.
func (c *conn) pollAll(op string) error {
	for _, q := range c.queues {
		if q.done == q.posted {
			continue
		}
		if err := c.poll(op, q); err != nil {
			return err
		}
	}
	return nil
}

// pieces returns how many requests n bytes take on the first queue pair, of a write or of a read.
func (c *conn) pieces(n uint64, read bool) uint64 {
	if n <= min(c.queues[0].max, spreadFrom) { // a call of C takes longer
		return min(n, 1)
	}
	return uint64(C.ib_pieces(c.c, 0, C.uint64_t(n), C.bool(read)))
}

// parked reports whether anything waits, which is rare: a call of C takes longer than to look.
func (c *conn) parked() bool { return c.c.parked_from < c.c.queue.taken }

// unpark waits until what threads in C have left to wait is posted. The caller holds mu, and
// queues what comes behind.
func (c *conn) unpark(op string) error {
	if !c.parked() {
		return nil
	}
	return c.until(op, func() C.int { return C.ib_unpark(c.c) })
}

// request posts a request of this package's own, for which there is room, with a completion.
func (c *conn) request(op string, q *queue, what entry, w verbs.Work) error {
	if C.ib_request(c.c, C.uint32_t(q.at), (*C.ib_entry)(unsafe.Pointer(&what)), (*C.verbs_work)(unsafe.Pointer(&w))) != 0 {
		return c.usable(op)
	}
	return nil
}

// poll takes the completions of q.
func (c *conn) poll(op string, q *queue) error {
	if err := c.failed(op); err != nil {
		return err
	}
	if C.ib_poll(c.c, C.uint32_t(q.at)) != 0 {
		return c.failed(op)
	}
	return nil
}

// reserve waits until q has room for n more requests.
func (c *conn) reserve(op string, q *queue, n int) error {
	if q.room() >= n {
		return nil
	}
	return c.await(op, q, q.posted-q.depth+uint64(n))
}

// await polls until all requests below a number are done.
func (c *conn) await(op string, q *queue, number uint64) error {
	for i := 0; q.done < number; i++ {
		if err := c.poll(op, q); err != nil {
			return err
		}
		if q.done < number {
			pause(i)
		}
	}
	return nil
}

// fence makes sure that a completion will cover all requests posted so far.
func (c *conn) fence(op string, q *queue) error {
	return c.until(op, func() C.int { return C.ib_fence(c.c, C.uint32_t(q.at)) })
}

// follow waits until what is posted next on the first queue comes behind all that was posted
// before, for the peer's process too.
func (c *conn) follow(op string, word *C.ib_memory, what *entry) error {
	return c.until(op, func() C.int {
		return C.ib_follow(c.c, word, C.uint64_t(what.there.offset), C.uint32_t(what.doing), false)
	})
}

// pause yields between two polls, for longer after many of them.
func pause(i int) {
	if i < 2000 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}
