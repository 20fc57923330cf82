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

// know tells threads in C of a memory of the peer's, unless this rank knows that it is closed.
// The caller holds mu.
func (c *conn) know(k *key, m *registeredmem.Memory) {
	c.news.mu.Lock()
	defer c.news.mu.Unlock()
	if !c.news.gone.Has(m.ID()) {
		remember(&c.c.theirs, c.queues, func(q *queue) C.ib_memory { return k.theirs(m, q) })
	}
}

// knowOwn tells them of one of this rank's. They do not use it once it is closed.
func (c *conn) knowOwn(r *registration) { remember(&c.c.own, c.queues, r.own) }

// remember puts a memory, as requests of each queue name it, into a table.
func remember(table *[C.IB_KNOWN]C.ib_known, queues []*queue, on func(*queue) C.ib_memory) {
	m := on(queues[0])
	slot := &table[(m.memory-1)%C.IB_KNOWN]
	if slot.memory == m {
		return
	}
	number := m.memory
	m.memory = 0
	slot.memory = m
	for i, q := range queues {
		slot.keys[i] = on(q).key
	}
	memoryOf(slot).Store(uint64(number))
}

// forget has threads in C leave what is for a memory of the peer's to Go. The caller holds the
// lock of the news.
func (c *conn) forget(memory uint32) {
	memoryOf(&c.c.theirs[memory%C.IB_KNOWN]).CompareAndSwap(uint64(memory)+1, 0)
}

func memoryOf(k *C.ib_known) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&k.memory.memory))
}
