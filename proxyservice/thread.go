package proxyservice

/*
#cgo noescape proxy_serve
#cgo nocallback proxy_serve
#include "thread.h"
*/
import "C"

import (
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"
)

// thread serves the rings of proxies in turn. One goroutine at a time uses it, but for
// call.
type thread struct {
	c       *C.proxy_thread
	cpus    string // that it may run on, as Threads names them
	runs    []*run
	joining []*run // to be added; guarded by Threads.mu
}

func newThread() *thread {
	t := &thread{c: C.proxy_thread_new()}
	runtime.AddCleanup(t, func(c *C.proxy_thread) { C.proxy_thread_free(c) }, t.c)
	return t
}

// call has serve return. Any goroutine.
func (t *thread) call() { (*atomic.Uint32)(unsafe.Pointer(&t.c.called)).Store(1) }

// answer takes back call.
func (t *thread) answer() { (*atomic.Uint32)(unsafe.Pointer(&t.c.called)).Store(0) }

// add has the thread serve a run's proxy too.
func (t *thread) add(r *run) {
	r.attach()
	t.runs = append(t.runs, r)
	C.proxy_thread_add(t.c, r.proxy.loop.c)
	t.settle()
}

// remove has it serve the proxy no more.
func (t *thread) remove(r *run) {
	C.proxy_thread_remove(t.c, r.proxy.loop.c)
	t.runs = slices.DeleteFunc(t.runs, func(other *run) bool { return other == r })
	r.pinned.Unpin()
	if len(t.runs) > 0 {
		t.settle()
	}
}

// settle has the thread wait as the most eager of its proxies.
func (t *thread) settle() {
	first := t.runs[0].proxy.options
	spin, sleep := first.Spin, first.Sleep
	for _, r := range t.runs[1:] {
		spin, sleep = max(spin, r.proxy.options.Spin), min(sleep, r.proxy.options.Sleep)
	}
	t.c.backoff.spin, t.c.backoff.longest = C.int64_t(spin), C.int64_t(sleep)
}

// attach lets threads in C use the ring, until it is unpinned.
func (r *run) attach() {
	ring := r.proxy.ring.Internal().State()
	r.pinned.Pin(ring)
	r.proxy.loop.c.ring = (*C.native_ring)(unsafe.Pointer(ring))
}

// next serves the rings until there is something for Go to do for a run. It returns nil
// if it was called.
func (t *thread) next() (r *run, why C.proxy_end) {
	if r := t.runs[0]; r.turns != nil {
		return r, r.next()
	}
	loop := C.proxy_serve(t.c, &why)
	for _, r := range t.runs {
		if r.proxy.loop.c == loop {
			return r, why
		}
	}
	return nil, why
}

// serve serves the rings until there is something for Go, and does that. It reports
// whether a run is over, and why. It returns too if it was called.
func (t *thread) serve() (r *run, over bool, err error) {
	r, why := t.next()
	if r != nil {
		over, err = r.proxy.attend(r, why, bool(t.c.idle))
	}
	return r, over, err
}
