package ib

import (
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
)

// completionError is the error of a request that did not succeed.
type completionError struct {
	what   entry
	queue  string
	status uint32
	vendor uint32
}

func (e *completionError) Error() string {
	return fmt.Sprintf("%v ended with %s (status %d, vendor's %#x) on %s",
		&e.what, verbs.StatusText(e.status), e.status, e.vendor, e.queue)
}

// explain returns the error of a completion.
func (c *conn) explain(q *queue, what entry, d *verbs.Completion) *mscclgo.Error {
	kind := mscclgo.ErrSystem
	if verbs.Remote(d.Status) {
		kind = mscclgo.ErrRemote
	}
	return mscclgo.Errorf(kind, "ib: complete a request", "%w", &completionError{what, q.String(), d.Status, d.Vendor})
}

// fail fails the connection and returns the error. The first reason stays.
func (c *conn) fail(err *mscclgo.Error) error {
	err.At(c.t.reg.Rank(), c.peer)
	if c.broken.CompareAndSwap(nil, err) {
		c.t.o.Logger.Warn("a connection failed", "rank", c.t.reg.Rank(), "peer", c.peer, "error", err)
		return err
	}
	return c.failed(err.Op)
}

// failed returns an error if the connection has failed.
func (c *conn) failed(op string) error {
	err := c.broken.Load()
	if err == nil {
		return nil
	}
	return mscclgo.Errorf(err.Kind, op, "the connection has failed: %w", err).At(c.t.reg.Rank(), c.peer)
}
