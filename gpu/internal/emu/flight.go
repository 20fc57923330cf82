package emu

/*
#include <stdlib.h>
#include "pool.h"

static int flight_result(launch* l) { return atomic_load_explicit(&l->state, memory_order_acquire); }

static int flight_signalled(launch* l) {
	return atomic_load_explicit(&l->signalled, memory_order_acquire) == l->blocks;
}

static void flight_follows(launch* l) { atomic_store_explicit(&l->follows, 1, memory_order_relaxed); }

static void flight_leads(launch* l, uint32_t before) {
	l->before = before;
	atomic_store_explicit(&l->follows, 0, memory_order_release);
}
*/
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// flight is a launch under way. Its work queue ends it.
type flight struct {
	dev               *device
	by                *workQueue
	c                 *C.launch
	kernel            *kernel
	finished, watched chan struct{}
	rc                C.int

	of   step // set by the work queue, as is last
	last bool // of its call
}

// overlaps reports whether launches that ask for it overlap: where somebody looks for what goes
// wrong then, as else they would only take time from each other. Under the explorer they do so in
// time; for the race finder it is enough that nothing but awaitPrevious orders them.
func (d *device) overlaps() bool { return d.race != nil || d.turns != nil }

// fly begins a launch. It takes the launch over. The one before it in the stream goes on if beside
// is not nil.
func (k *kernel) fly(by *workQueue, l *C.launch, beside *flight) *flight {
	f := &flight{dev: k.mod.dev, by: by, c: l, kernel: k, finished: make(chan struct{}), watched: make(chan struct{})}
	if beside != nil {
		C.flight_follows(l)
	} else {
		l.before = C.uint32_t(by.race.Clock())
	}
	// Closing the device cancels the launch. The goroutine ends before end returns.
	go func() {
		defer close(f.watched)
		select {
		case <-f.dev.ending:
			C.pool_cancel(f.dev.pool, l)
		case <-f.finished:
		}
	}()
	f.dev.still.changes.Add(1)
	f.rc = C.pool_begin(f.dev.pool, l)
	return f
}

// ended reports whether end returns at once.
func (f *flight) ended() bool { return C.pool_ended(f.dev.pool, f.c) != 0 }

// end waits until the launch has ended, and returns its error. It is called once.
func (f *flight) end() error {
	C.pool_end(f.dev.pool, f.c)
	f.dev.still.changes.Add(1)
	close(f.finished)
	<-f.watched
	defer C.free(unsafe.Pointer(f.c))
	if f.by.race != nil {
		f.by.race.Finish(unsafe.Pointer(&f.c.raced))
	}
	op := f.dev.op("run %s", f.kernel.name)
	if f.rc != 0 {
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot start an OS thread for each of the kernel's blocks that run at a time: %w", syscall.Errno(f.rc))
	}
	switch C.flight_result(f.c) {
	case C.LAUNCH_FAILED:
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "%s", f.kernel.failure(f.c))
	case C.LAUNCH_CANCELLED:
		return f.dev.open("run " + f.kernel.name)
	}
	return nil
}

// lead tells the launch that the one before it has ended, after what the clock knows.
func (f *flight) lead(before race.Clock) { C.flight_leads(f.c, C.uint32_t(before)) }

// cancel has the launch end, as the one before it has failed.
func (f *flight) cancel() { C.pool_cancel(f.dev.pool, f.c) }

// beside waits until the launch has ended, or lets the next one begin if next reports one that does
// so. It reports whether the next one begins. Only explored schedules decide so.
func (f *flight) beside(next func() bool) bool {
	if !f.by.inTurn() {
		return false
	}
	both := func() bool { return C.flight_signalled(f.c) != 0 && next() }
	f.by.party.Until("run a kernel", false, func() bool { return f.ended() || both() })
	return f.by.inTurn() && !f.ended() && both()
}
