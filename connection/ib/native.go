package ib

// #include "post.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// NativeQueue returns the connection to threads in C. Without atomics it returns nil: updates are then messages, which Go sends.
func (c *conn) NativeQueue() *native.Queue {
	if !c.adds {
		return nil
	}
	return c.native
}

// NativeError returns the error of an operation that failed in C.
func (c *conn) NativeError(f native.Failure) error {
	const op = "ib: complete a request"
	if err := c.failed(op); err != nil {
		return err
	}
	if f.Closed() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the connection is closed")
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, op, "operation %d gave %d", f.Op, f.Code)
}

// newState returns the memory of a connection with queues of a depth, in C.
func newState(queues []*queue, depth int) (*native.Queue, *C.ib_conn) {
	count := C.uint32_t(len(queues))
	memory := native.NewQueue(uintptr(C.ib_size(count, C.uint64_t(depth))))
	c := (*C.ib_conn)(memory.Pointer())
	C.ib_init(c, count, C.uint64_t(depth))
	for i, q := range queues {
		n := (*C.ib_queue)(unsafe.Add(unsafe.Pointer(c), C.sizeof_ib_conn+uintptr(i)*C.sizeof_ib_queue))
		n.qp, n.cq, n.max = (*C.struct_ibv_qp)(q.qp.Pointer()), (*C.struct_ibv_cq)(q.cq.Pointer()), C.uint64_t(q.max)
		q.at, q.ledger = i, (*ledger)(unsafe.Pointer(&n.ledger))
	}
	return memory, c
}

// setScratchKey sets the key of this side's scratch memory for requests of q.
func (c *conn) setScratchKey(q *queue) {
	n := (*C.ib_queue)(unsafe.Pointer(q.ledger))
	n.scratch_key = C.uint32_t(c.scratch.mrs[q.nic.index].LocalKey())
}

// know tells threads in C of a memory of the peer's, unless they know it or this rank knows that it
// is closed. The caller holds mu.
func (c *conn) know(k *key, m *registeredmem.Memory) {
	c.news.mu.Lock()
	defer c.news.mu.Unlock()
	if !knows(&c.c.theirs, m.ID()) && !c.news.gone.Has(m.ID()) {
		remember(&c.c.theirs, c.queues, func(q *queue) C.ib_memory { return k.theirs(m, q) })
	}
}

// knowOwn tells them of one of this rank's. They do not use it once it is closed.
func (c *conn) knowOwn(r *registration) {
	if !knows(&c.c.own, r.memory.ID()) {
		remember(&c.c.own, c.queues, r.own)
	}
}

// known are the memories of one side that threads in C know.
type known = [C.IB_SETS][C.IB_WAYS]C.ib_known

// wayOf returns where among its ways a memory is, or -1. 0 is none.
func wayOf(ways *[C.IB_WAYS]C.ib_known, memory uint64) int {
	for i := range ways {
		if atomic.LoadUint64((*uint64)(&ways[i].memory.memory)) == memory {
			return i
		}
	}
	return -1
}

// knows reports whether a memory is in a table. No other of its registry ever has its number.
func knows(table *known, memory uint32) bool {
	return wayOf(&table[memory%C.IB_SETS], uint64(memory)+1) >= 0
}

// remember puts a memory, as requests of each queue name it, into a table that it is not in, for the one
// there that was put there first if none was forgotten. Nobody else does so meanwhile.
func remember(table *known, queues []*queue, on func(*queue) C.ib_memory) {
	m := on(queues[0])
	ways := &table[(m.memory-1)%C.IB_SETS]
	at := wayOf(ways, 0)
	if at < 0 {
		at = len(ways) - 1
	}
	copy(ways[1:at+1], ways[:at])
	ways[0] = C.ib_known{memory: m}
	for i, q := range queues {
		ways[0].keys[i] = on(q).key
	}
}

// forget has threads in C leave what is for a memory of the peer's to Go. They may use the table
// meanwhile; nobody remembers, as the caller holds the lock of the news.
func (c *conn) forget(memory uint32) {
	ways := &c.c.theirs[memory%C.IB_SETS]
	if at := wayOf(ways, uint64(memory)+1); at >= 0 {
		atomic.StoreUint64((*uint64)(&ways[at].memory.memory), 0)
	}
}
