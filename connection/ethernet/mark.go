package ethernet

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

// Reached compares it with what the peer has acknowledged.
func (m *mark) Reached() (bool, error) {
	c := m.c
	if c.acked.Load() < m.until && !c.ended.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked.Load() < m.until {
		return false, c.failure()
	}
	return true, nil
}

// Wait waits until the peer has acknowledged as much.
func (m *mark) Wait(ctx context.Context) error {
	c, until := m.c, m.until
	acked := func() bool { return c.acked.Load() >= until }
	if !acked() {
		c.t.spin.Until(func() bool { return acked() || c.ended.Load() })
	}
	if acked() {
		return nil
	}
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case acked():
			return nil
		case c.err != nil:
			return c.failure()
		case ctx.Err() != nil:
			return mscclgo.FromContext(ctx, "ethernet: wait", fmt.Sprintf("the peer has done %d of %d operations", c.acked.Load(), until))
		}
		c.changed.Wait()
	}
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
