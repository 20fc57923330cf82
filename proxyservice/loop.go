package proxyservice

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -I${SRCDIR}/../internal
#cgo noescape proxy_serve
#cgo nocallback proxy_serve
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
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// loop is the part of a proxy that runs in C: it waits for triggers and serves
// those whose connections are native. One goroutine at a time adds to it, also
// while it runs. What it is given must live as long as it.
type loop struct{ c *C.proxy_loop }

// newLoop gives a loop that spins and sleeps as Options says.
func newLoop(spin, sleep time.Duration) (*loop, error) {
	c := (*C.proxy_loop)(C.calloc(1, C.sizeof_proxy_loop))
	if c == nil {
		return nil, outOfMemory()
	}
	c.backoff.spin, c.backoff.longest = C.int64_t(spin), C.int64_t(sleep)
	l := &loop{c}
	runtime.AddCleanup(l, func(c *C.proxy_loop) { C.proxy_loop_free(c) }, c)
	return l, nil
}

func outOfMemory() error {
	return mscclgo.Errorf(mscclgo.ErrSystem, "allocate", "out of host memory")
}

// orders are what other goroutines tell a loop that runs.
type orders struct {
	stop atomic.Uint32 // 1: end when nothing is left
	quit atomic.Uint32 // 1: end
}

var (
	_ [C.sizeof_proxy_orders]byte   = [unsafe.Sizeof(orders{})]byte{}
	_ [C.sizeof_proxy_counters]byte = [unsafe.Sizeof(counters{})]byte{}
)

// end is why a loop came back to Go.
type end int

const (
	endQuit        end = C.PROXY_QUIT         // it was told to
	endDrained     end = C.PROXY_DRAINED      // it was told to stop, and nothing is left
	endYours       end = C.PROXY_YOURS        // the ring's oldest trigger is for Go
	endLooked      end = C.PROXY_LOOKED       // it was to look once
	endIdle        end = C.PROXY_IDLE         // it was to look once, and has found nothing for a while
	endFailed      end = C.PROXY_FAILED       // an operation failed for the ring's oldest trigger
	endFlushFailed end = C.PROXY_FLUSH_FAILED // the wait for a flush's end failed
)

// serve serves a ring, as long as there is nothing for Go, or only looks once.
func (l *loop) serve(ring *native.Ring, o *orders, counts *counters, once bool) end {
	return end(C.proxy_serve(l.c, (*C.native_ring)(unsafe.Pointer(ring)), (*C.proxy_orders)(unsafe.Pointer(o)),
		(*C.proxy_counters)(unsafe.Pointer(counts)), C.bool(once)))
}

// failure gives the operation behind endFailed or endFlushFailed, and the number of
// its line.
func (l *loop) failure() (native.Failure, int) {
	f := &l.c.failure
	return native.Failure{
		Op: native.Op(f.op), Code: int(f.code), Dst: uint64(f.dst), Src: uint64(f.src), Bytes: uint64(f.bytes),
	}, int(f.line)
}

// addLine adds the next line: nil is for one of Go. done is pinned.
func (l *loop) addLine(p *native.Path, t registeredmem.Transports, done *atomic.Uint64) error {
	var line *C.proxy_line
	if p != nil {
		if line = (*C.proxy_line)(C.calloc(1, C.sizeof_proxy_line)); line == nil {
			return outOfMemory()
		}
		line.queue = (*C.native_queue)(p.Queue.Pointer())
		line.registry, line.rank, line.peer = C.uint64_t(p.Registry), C.uint32_t(p.Rank), C.uint32_t(p.Peer)
		line.transport = C.uint32_t(transportNumber(t))
		line.number = l.c.lines.size
		line.done = (*C.uint64_t)(unsafe.Pointer(done))
	}
	return l.add(&l.c.lines, unsafe.Pointer(line))
}

// addPort adds the next port, of a line. It is for Go if the line is, or if the
// line does not take the semaphore's memory.
func (l *loop) addPort(line int, s native.SemaphoreInfo) error {
	var port *C.proxy_port
	if to := (*C.proxy_line)(C.proxy_table_get(&l.c.lines, C.uint64_t(line))); to != nil && s.Peer != nil {
		words := (*C.native_range)(s.Peer.Pointer())
		word := words.address + C.uint64_t(s.Offset)
		if words.registry == to.registry && words.rank == to.peer && bool(C.native_range_holds(words, C.uint64_t(s.Offset), 8)) && word%8 == 0 {
			if port = (*C.proxy_port)(C.calloc(1, C.sizeof_proxy_port)); port == nil {
				return outOfMemory()
			}
			*port = C.proxy_port{line: to, sent: (*C.native_count)(s.Sent.Pointer()), words: words, word: word}
		}
	}
	return l.add(&l.c.ports, unsafe.Pointer(port))
}

// addMemory adds the next memory: nil is for one of Go.
func (l *loop) addMemory(r *native.Range) error {
	var p unsafe.Pointer
	if r != nil {
		p = r.Pointer()
	}
	return l.add(&l.c.memories, p)
}

func (l *loop) add(t *C.proxy_table, entry unsafe.Pointer) error {
	if !C.proxy_table_add(t, entry) {
		return outOfMemory()
	}
	return nil
}

// transportNumber gives the number of a transport's bit.
func transportNumber(t registeredmem.Transports) int {
	return bits.TrailingZeros32(uint32(t)) % len(counters{}.bytes)
}
