package ib

// #include "post.h"
import "C"

import "github.com/mscclgo/mscclgo/connection"

// mark is a point in a connection's queues: the numbers of the requests and of the
// messages before it.
type mark struct {
	conn *conn
	c    C.ib_mark
	sent uint32 // messages that change words
}

// NewMark makes a mark.
func (c *conn) NewMark() (connection.DriverMark, error) { return &mark{conn: c}, nil }

// Set requests a completion for what was posted, which means that it is in place.
func (m *mark) Set() error {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	const op = "ib: mark"
	if err := c.unpark(op); err != nil {
		return err
	}
	err := c.until(op, func() C.int { return C.ib_settle(c.c, &m.c) })
	m.sent = c.out.changes
	return err
}

// Reached reports whether all before the mark has completed, what was read has landed and the
// peer has applied the messages. It polls for that. While a call that queues polls itself, it
// leaves that to it and reports false.
func (m *mark) Reached() (bool, error) {
	const op = "ib: reach a mark"
	c := m.conn
	if !c.mu.TryLock() {
		return false, nil
	}
	defer c.mu.Unlock()
	switch C.ib_reached(c.c, &m.c) {
	case C.IB_WAIT:
		return false, nil
	case C.IB_BROKEN:
		return false, c.usable(op)
	}
	return c.applied(op, m.sent)
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
