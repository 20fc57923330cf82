package shm

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
)

// mark is the number of operations that were queued before it.
type mark struct {
	c     *conn
	until uint64
}

// NewMark makes a mark.
func (c *conn) NewMark() (connection.DriverMark, error) { return &mark{c: c}, nil }

// Set notes how much is queued.
func (m *mark) Set() error {
	m.until = m.c.queued.Load()
	return nil
}

// Reached reports whether the peer has done all before the mark.
func (m *mark) Reached() (bool, error) { return m.c.reached(m.until) }

// reached reports whether so many operations are done.
func (c *conn) reached(until uint64) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.poll()
	switch {
	case c.acked >= until:
		return true, nil
	case c.err != nil:
		return false, c.failure()
	}
	return false, nil
}

// Wait waits until the peer has done as much.
func (m *mark) Wait(ctx context.Context) error {
	c, until := m.c, m.until
	var done bool
	var err error
	look := func() bool {
		done, err = c.reached(until)
		return done || err != nil
	}
	if look() || c.t.spin.Until(look) {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.poll()
		switch {
		case c.acked >= until:
			return nil
		case c.err != nil:
			return c.failure()
		case ctx.Err() != nil:
			return mscclgo.FromContext(ctx, "shm: wait", fmt.Sprintf("the peer has done %d of %d operations", c.acked, until))
		}
		c.sleep(&c.changed, func() bool { return c.acked >= until })
	}
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
