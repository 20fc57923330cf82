package ethernet

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
)

// mark is the number of operations that were queued before it, and of the reads among
// them.
type mark struct {
	c     *conn
	until uint64
	reads uint64
}

// NewMark makes a mark.
func (c *conn) NewMark() (connection.DriverMark, error) { return &mark{c: c}, nil }

// Set notes how much is queued.
func (m *mark) Set() error {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.until, m.reads = m.c.queued.Load(), m.c.reads.asked
	return nil
}

// done reports whether the peer has done all before the mark, and answered.
func (m *mark) done() bool {
	return m.c.acked.Load() >= m.until && m.c.reads.answered.Load() >= m.reads
}

// Reached reports whether the peer has acknowledged and answered all before the mark. Once the
// connection has ended without that, it returns why.
func (m *mark) Reached() (bool, error) {
	c := m.c
	if !m.done() && !c.ended.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.done() {
		return false, c.failure()
	}
	return true, nil
}

// Wait waits until the peer has acknowledged and answered as much.
func (m *mark) Wait(ctx context.Context) error {
	c := m.c
	if !m.done() {
		c.t.spin.Until(func() bool { return m.done() || c.ended.Load() })
	}
	if m.done() {
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
		case m.done():
			return nil
		case c.err != nil:
			return c.failure()
		case ctx.Err() != nil:
			return mscclgo.FromContext(ctx, "ethernet: wait", m.missing())
		}
		c.changed.Wait()
	}
}

// missing says how far a mark is that is not reached.
func (m *mark) missing() string {
	text := fmt.Sprintf("the peer has done %d of %d operations", min(m.c.acked.Load(), m.until), m.until)
	if answered := m.c.reads.answered.Load(); answered < m.reads {
		text += fmt.Sprintf(", %d of them reads whose bytes are not all here", m.reads-answered)
	}
	return text
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
