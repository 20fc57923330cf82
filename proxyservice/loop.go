package proxyservice

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/../internal
#cgo noescape proxy_finish
#cgo nocallback proxy_finish
#include "loop.h"
*/
import "C"

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// loop is the part of a proxy that is in C. One goroutine at a time adds to its
// tables, also while it runs. What it is given must live as long as it.
type loop struct{ c *C.proxy_loop }

// newLoop returns a loop for a proxy. Triggers of the kinds from firstUser are for the
// user's handler.
func newLoop(o Options, firstUser int) *loop {
	l := &loop{C.proxy_loop_new()}
	if o.Count {
		l.c.counters = &l.c.counted
	}
	l.c.tables.first_user_kind = C.uint32_t(firstUser)
	runtime.AddCleanup(l, func(c *C.proxy_loop) { C.proxy_loop_free(c) }, l.c)
	return l
}

// job is a trigger that C has decoded, looked up and checked; see job.h.
type job = C.proxy_job

// waiting returns the number of triggers in backlogs, which Go keeps.
func (l *loop) waiting() *atomic.Int64 { return (*atomic.Int64)(unsafe.Pointer(&l.c.waiting)) }

// serving returns the trigger that is served, as loop.h describes it.
func (l *loop) serving() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&l.c.serving)) }

func triggerOf(j *job) fifo.Trigger { return *(*fifo.Trigger)(unsafe.Pointer(&j.trigger)) }

// entry returns a job's entry of the ring.
func (l *loop) entry(j *job) unsafe.Pointer {
	return unsafe.Pointer(C.native_ring_entry(l.c.ring, j.position))
}

// still implements Still of inside.Service for what runs in C. taken is read first.
func (l *loop) still() (rounds, taken uint64) {
	defer runtime.KeepAlive(l) // the counts lie in C, and go with it
	taken = (*atomic.Uint64)(unsafe.Pointer(&l.c.begun)).Load()
	return (*atomic.Uint64)(unsafe.Pointer(&l.c.rounds)).Load(), taken
}

// begin takes back stop and quit, before the loop's goroutine is started.
func (l *loop) begin() { l.c.stop, l.c.quit = 0, 0 }

// stop ends the proxy's run when nothing is left. Any goroutine.
func (l *loop) stop() {
	(*atomic.Uint32)(unsafe.Pointer(&l.c.stop)).Store(1)
	runtime.KeepAlive(l) // the word lies in C, and goes with it
}

// quit ends the proxy's run at once. Any goroutine.
func (l *loop) quit() {
	(*atomic.Uint32)(unsafe.Pointer(&l.c.quit)).Store(1)
	runtime.KeepAlive(l)
}

var (
	_ [C.sizeof_proxy_counters]byte = [unsafe.Sizeof(counters{})]byte{}
	_ [C.sizeof_proxy_failure]byte  = [unsafe.Sizeof(native.Failure{})]byte{}
)

// finish takes note of what Go did, as a turn does first.
func (l *loop) finish() { C.proxy_finish(l.c) }

// failed returns the operation that failed.
func (l *loop) failed() native.Failure { return *(*native.Failure)(unsafe.Pointer(&l.c.failure)) }

// addConnection adds the next connection. done and taken are pinned; taken may be nil. It
// returns the number of triggers in the connection's backlog, which Go keeps.
func (l *loop) addConnection(conn *connection.Connection, done, taken *atomic.Uint64) (waiting *atomic.Int64) {
	p := conn.Internal().Path()
	c := C.proxy_connection{
		registry: C.uint64_t(p.Registry), rank: C.uint32_t(p.Rank), peer: C.uint32_t(p.Peer),
		inline_limit: C.uint64_t(conn.InlineLimit()), transport: C.uint32_t(transportNumber(conn.Transport())),
		number: l.c.tables.connections.size, failed: (*C.uint32_t)(p.Failed.Pointer()), done: (*C.uint64_t)(unsafe.Pointer(done)), taken: (*C.uint64_t)(unsafe.Pointer(taken)),
	}
	if p.Queue != nil {
		c.queue = (*C.native_queue)(p.Queue.Pointer())
	}
	add(&l.c.tables.connections, &c)
	added := (*C.proxy_connection)(C.proxy_table_get(&l.c.tables.connections, C.uint64_t(c.number)))
	return (*atomic.Int64)(unsafe.Pointer(&added.waiting))
}

// addPort adds the next port, of a connection. A thread in C can signal its
// semaphore where it can use the connection and the peer's memory.
func (l *loop) addPort(connection int, s inside.Semaphore[turn]) {
	c := (*C.proxy_connection)(C.proxy_table_get(&l.c.tables.connections, C.uint64_t(connection)))
	port := C.proxy_port{connection: c, where: C.uint64_t(native.WhereOf(s.Channel, int(s.Rank)))}
	if c.queue != nil && s.Peer != nil {
		words := (*C.native_range)(s.Peer.Pointer())
		word := C.uint64_t(s.Offset)
		if words.registry == c.registry && words.rank == c.peer && word+8 <= words.size && (words.address+word)%8 == 0 &&
			bool(words.mapped || c.queue.operations.remote) {
			port.sent, port.words, port.word = (*C.native_count)(s.Sent.Pointer()), words, word
		}
	}
	add(&l.c.tables.ports, &port)
}

// addMemory adds the next memory.
func (l *loop) addMemory(m *registeredmem.Memory) {
	memory := C.proxy_memory{
		registry: C.uint64_t(m.Registry().Internal().Instance()), rank: C.uint32_t(m.Rank()), size: C.uint64_t(m.Size()),
	}
	if r := m.Internal().Range(); r != nil {
		memory._range = (*C.native_range)(r.Pointer())
	}
	add(&l.c.tables.memories, &memory)
}

func add[T any](t *C.proxy_table, entry *T) {
	C.proxy_table_add(t, unsafe.Pointer(entry), C.size_t(unsafe.Sizeof(*entry)))
}

// transportNumber returns the number of a transport's bit.
func transportNumber(t registeredmem.Transports) int {
	return bits.TrailingZeros32(uint32(t)) % len(counters{}.bytes)
}
