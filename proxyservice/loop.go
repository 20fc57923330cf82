package proxyservice

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/../internal
#cgo noescape proxy_serve
#cgo nocallback proxy_serve
#cgo noescape proxy_answer
#cgo nocallback proxy_answer
#include "loop.h"
*/
import "C"

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// loop is the part of a proxy that runs in C. One goroutine at a time adds to its
// tables, also while it runs. What it is given must live as long as it.
type loop struct{ c *C.proxy_loop }

// newLoop returns a loop that spins and sleeps as Options says. Triggers of the
// kinds from firstUser are for the user's handler.
func newLoop(spin, sleep time.Duration, firstUser int) (*loop, error) {
	c := (*C.proxy_loop)(C.calloc(1, C.sizeof_proxy_loop))
	if c == nil {
		return nil, outOfMemory()
	}
	c.backoff.spin, c.backoff.longest = C.int64_t(spin), C.int64_t(sleep)
	c.tables.first_user_kind = C.uint32_t(firstUser)
	l := &loop{c}
	runtime.AddCleanup(l, func(c *C.proxy_loop) { C.proxy_loop_free(c) }, c)
	return l, nil
}

func outOfMemory() error {
	return mscclgo.Errorf(mscclgo.ErrSystem, "allocate", "out of host memory")
}

// orders are what other goroutines tell a loop that runs.
type orders struct {
	stop atomic.Uint32 // 1: return when nothing is left
	quit atomic.Uint32 // 1: return at once
}

// job is a trigger that C has decoded, looked up and checked: the proxy_job of job.h.
type job struct {
	fifo.Trigger
	request
	position uint64 // in the ring
	_        int64
	payload  *byte // of an inlined put
	_, _, _  uintptr
	verdict  verdict
}

// request is what a port's trigger asks for.
type request struct {
	port                        uint64
	dstOffset, srcOffset, bytes uint64
	dst, src                    uint16 // memories
	put, signal, flush          bool
	inlined                     bool // of a put: the bytes are in the entry's payload
}

// verdict is what is to be done about a trigger.
type verdict uint32

const (
	move          verdict = C.PROXY_MOVE // what the request says
	forUser       verdict = C.PROXY_USER // the user's handler serves it
	unknownKind   verdict = C.PROXY_UNKNOWN_KIND
	fieldOverflow verdict = C.PROXY_FIELD_OVERFLOW
	unknownPort   verdict = C.PROXY_UNKNOWN_PORT
	unknownDst    verdict = C.PROXY_UNKNOWN_DST
	unknownSrc    verdict = C.PROXY_UNKNOWN_SRC
	foreignDst    verdict = C.PROXY_FOREIGN_DST
	foreignSrc    verdict = C.PROXY_FOREIGN_SRC
	dstRange      verdict = C.PROXY_DST_RANGE
	srcRange      verdict = C.PROXY_SRC_RANGE
	noInline      verdict = C.PROXY_NO_INLINE
	noPayload     verdict = C.PROXY_NO_PAYLOAD
)

var (
	_ [C.sizeof_proxy_orders]byte   = [unsafe.Sizeof(orders{})]byte{}
	_ [C.sizeof_proxy_counters]byte = [unsafe.Sizeof(counters{})]byte{}
	_ [C.sizeof_proxy_job]byte      = [unsafe.Sizeof(job{})]byte{}
)

// end is why a loop returned to Go.
type end int

const (
	endQuit        end = C.PROXY_QUIT         // it was told to
	endDrained     end = C.PROXY_DRAINED      // it was told to stop, and nothing is left
	endJobs        end = C.PROXY_JOBS         // there are jobs for Go
	endQuery       end = C.PROXY_QUERY        // a mark of Go's is to be queried
	endFailed      end = C.PROXY_FAILED       // an operation failed for the first of jobs
	endFlushFailed end = C.PROXY_FLUSH_FAILED // the query of a mark failed
	endNoMemory    end = C.PROXY_NO_MEMORY    // of the host
)

// serve serves a ring until there is something for Go.
func (l *loop) serve(ring *native.Ring, o *orders, counts *counters) end {
	return end(C.proxy_serve(l.c, (*C.native_ring)(unsafe.Pointer(ring)), (*C.proxy_orders)(unsafe.Pointer(o)),
		(*C.proxy_counters)(unsafe.Pointer(counts))))
}

// jobs returns those of endJobs.
func (l *loop) jobs() []job {
	return unsafe.Slice((*job)(unsafe.Pointer(&l.c.jobs)), l.c.taken)
}

// first returns the job of endFailed.
func (l *loop) first() *job { return (*job)(unsafe.Pointer(&l.c.jobs)) }

// did notes that the next job is done, for the next serve.
func (l *loop) did() { l.c.done++ }

// reached notes that the mark of endQuery is reached, for the next serve.
func (l *loop) reached() { l.c.reached = true }

// finish takes the notes though there is no next serve.
func (l *loop) finish(counts *counters) {
	C.proxy_answer(l.c, (*C.proxy_counters)(unsafe.Pointer(counts)))
}

// connection returns the number of the connection of endQuery and endFlushFailed.
func (l *loop) connection() int { return int(l.c.connection) }

// idle reports whether nothing was found for a while.
func (l *loop) idle() bool { return bool(l.c.idle) }

// failure returns the operation behind endFailed and endFlushFailed.
func (l *loop) failure() native.Failure {
	f := &l.c.failure
	return native.Failure{
		Op: native.Op(f.op), Code: int(f.code), Dst: uint64(f.dst), Src: uint64(f.src), Bytes: uint64(f.bytes),
	}
}

// addConnection adds the next connection. done is pinned.
func (l *loop) addConnection(conn *connection.Connection, done *atomic.Uint64) error {
	c := (*C.proxy_connection)(C.calloc(1, C.sizeof_proxy_connection))
	if c == nil {
		return outOfMemory()
	}
	p := native.PathOf(conn)
	if p.Queue != nil {
		c.queue = (*C.native_queue)(p.Queue.Pointer())
	}
	c.registry, c.rank, c.peer = C.uint64_t(p.Registry), C.uint32_t(p.Rank), C.uint32_t(p.Peer)
	c.inline_limit = C.uint64_t(conn.InlineLimit())
	c.transport = C.uint32_t(transportNumber(conn.Transport()))
	c.number = l.c.tables.connections.size
	c.done = (*C.uint64_t)(unsafe.Pointer(done))
	return l.add(&l.c.tables.connections, unsafe.Pointer(c))
}

// addPort adds the next port, of a connection. A thread in C can signal its
// semaphore where it can use the connection and the peer's memory.
func (l *loop) addPort(connection int, s native.SemaphoreInfo) error {
	port := (*C.proxy_port)(C.calloc(1, C.sizeof_proxy_port))
	if port == nil {
		return outOfMemory()
	}
	port.connection = (*C.proxy_connection)(C.proxy_table_get(&l.c.tables.connections, C.uint64_t(connection)))
	if port.connection.queue != nil && s.Peer != nil {
		words := (*C.native_range)(s.Peer.Pointer())
		word := words.address + C.uint64_t(s.Offset)
		if words.registry == port.connection.registry && words.rank == port.connection.peer && s.Offset+8 <= uint64(words.size) && word%8 == 0 {
			port.sent, port.words, port.word = (*C.native_count)(s.Sent.Pointer()), words, word
		}
	}
	return l.add(&l.c.tables.ports, unsafe.Pointer(port))
}

// addMemory adds the next memory.
func (l *loop) addMemory(m *registeredmem.Memory) error {
	memory := (*C.proxy_memory)(C.calloc(1, C.sizeof_proxy_memory))
	if memory == nil {
		return outOfMemory()
	}
	if r := native.RangeOf(m); r != nil {
		memory._range = (*C.native_range)(r.Pointer())
	}
	memory.registry, memory.rank, memory.size = C.uint64_t(native.InstanceOf(m.Registry())), C.uint32_t(m.Rank()), C.uint64_t(m.Size())
	return l.add(&l.c.tables.memories, unsafe.Pointer(memory))
}

func (l *loop) add(t *C.proxy_table, entry unsafe.Pointer) error {
	if !C.proxy_table_add(t, entry) {
		C.free(entry)
		return outOfMemory()
	}
	return nil
}

// transportNumber returns the number of a transport's bit.
func transportNumber(t registeredmem.Transports) int {
	return bits.TrailingZeros32(uint32(t)) % len(counters{}.bytes)
}
