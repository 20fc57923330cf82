package ib

// #include "post.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
)

// completionError is the error of a request that did not succeed.
type completionError struct {
	what   string
	queue  string
	status uint32
	vendor uint32
}

func (e *completionError) Error() string {
	return fmt.Sprintf("%s ended with %s (status %d, vendor's %#x) on %s",
		e.what, verbs.StatusText(e.status), e.status, e.vendor, e.queue)
}

// explain returns the error of a completion.
func (c *conn) explain(q *queue, what *entry, status, vendor uint32) *mscclgo.Error {
	kind := mscclgo.ErrSystem
	if verbs.Remote(status) {
		kind = mscclgo.ErrRemote
	}
	return mscclgo.Errorf(kind, "ib: complete a request", "%w", &completionError{what.text(c.peer), q.String(), status, vendor})
}

// reason returns the error of what has failed in C, during op if Go knows that.
func (c *conn) reason(op string) *mscclgo.Error {
	f := &c.c.failure
	q, what := c.queues[f.queue], (*entry)(unsafe.Pointer(&f.what))
	switch f.why {
	case C.IB_BAD_POST:
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "%v: the request was not posted: %w", q, syscall.Errno(f.code))
	case C.IB_BAD_POLL:
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "polling for completions on %v: the driver gave %d", q, f.code)
	case C.IB_BAD_NUMBER:
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "a completion of request %d, which is not under way on %v", f.number, q)
	case C.IB_SILENCE:
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the peer has acknowledged nothing for %v; the oldest request is a %s on %v", time.Duration(f.silent).Round(time.Millisecond), what.text(c.peer), q)
	}
	return c.explain(q, what, uint32(f.status), uint32(f.vendor))
}

// adopt has what has failed in C be the reason for which nothing more is queued, unless there is
// one. It returns the error if that is new.
func (c *conn) adopt(op string) *mscclgo.Error {
	if c.broken.Load() != nil || atomic.LoadUint32((*uint32)(&c.c.failed)) == 0 {
		return nil
	}
	err := c.reason(op).At(c.t.reg.Rank(), c.peer)
	if !c.keep(err) {
		return nil
	}
	c.warn(err)
	switch c.c.failure.what.doing {
	case C.IB_EMPTY, C.IB_NEWS, C.IB_GREETING, C.IB_GOODBYE: // of this package's own: the peer may have closed the connection
	default:
		c.tellLost(err)
	}
	return err
}

// tellLost tells the transport's user of a failure that is the peer's or the network's. A peer that has said that it
// closes is not lost.
func (c *conn) tellLost(err *mscclgo.Error) {
	if err.Kind == mscclgo.ErrRemote && c.t.o.Lost != nil && !c.scratch.left() {
		go c.t.o.Lost(c.peer, err)
	}
}

// keep keeps the first reason for which nothing more is queued, and reports whether it is this.
func (c *conn) keep(err *mscclgo.Error) bool {
	first := c.broken.CompareAndSwap(nil, err)
	atomic.StoreUint32((*uint32)(&c.c.broken), 1)
	return first
}

func (c *conn) warn(err error) {
	c.t.o.Logger.Warn("a connection failed", "rank", c.t.reg.Rank(), "peer", c.peer, "error", err)
}

// breaks is keep where something may have failed in C before, which then is the reason.
func (c *conn) breaks(err *mscclgo.Error) bool {
	c.adopt(err.Op)
	return c.keep(err)
}

// fail fails the connection and returns the error. The first reason stays.
func (c *conn) fail(err *mscclgo.Error) error {
	err.At(c.t.reg.Rank(), c.peer)
	if c.breaks(err) {
		c.warn(err)
		c.tellLost(err)
		return err
	}
	return c.failed(err.Op)
}

// failed returns an error if the connection has failed.
func (c *conn) failed(op string) error {
	if err := c.adopt(op); err != nil {
		return err
	}
	err := c.broken.Load()
	if err == nil {
		return nil
	}
	return mscclgo.Errorf(err.Kind, op, "the connection has failed: %w", err).At(c.t.reg.Rank(), c.peer)
}
