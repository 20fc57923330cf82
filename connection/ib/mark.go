package ib

// #include "post.h"
import "C"

import "github.com/mscclgo/mscclgo/connection"

// mark is a point in a connection's queues: the numbers of the requests and of the
// messages before it.
type mark struct {
	conn  *conn
	c     C.ib_mark
	sent  uint32 // messages that change words
	unset bool   // there was no room for what it takes; guarded by the connection's lock
}

// NewMark makes a mark.
func (c *conn) NewMark() (connection.DriverMark, error) { return &mark{conn: c}, nil }

// Set requests a completion for what was posted, which means that it is in place. Where there is no room for that, or
// something waits to be posted, it leaves it to Reached, since that may last as long as the peer is silent.
func (m *mark) Set() error {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	const op = "ib: mark"
	m.unset = true
	for range 2 { // the first may only lack what polling frees
		if err := m.set(op); err != nil || !m.unset {
			return err
		}
	}
	return nil
}

// set sets the mark behind all that is posted, if that takes no wait. The caller holds mu.
func (m *mark) set(op string) error {
	c := m.conn
	rc := C.int(0)
	if c.parked() {
		rc = C.ib_unpark(c.c)
	}
	if rc == 0 {
		rc = C.ib_settle(c.c, &m.c)
	}
	switch rc {
	case 0:
		m.sent, m.unset = c.out.changes, false
		return nil
	case C.IB_BROKEN:
		return c.usable(op)
	}
	return c.pollAll(op)
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
	if m.unset {
		if err := m.set(op); err != nil || m.unset {
			return false, err
		}
	}
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
