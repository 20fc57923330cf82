package cudaipc

import (
	"errors"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
)

// mark is an event behind what a connection had queued. Marks are used again, so
// that flushing allocates nothing.
type mark struct {
	conn  *conn
	event *gpu.Event
}

// Mark records an event on the connection's stream.
func (c *conn) Mark() (connection.Mark, error) {
	m, err := c.mark(opMark)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Done asks the event.
func (m *mark) Done() (bool, error) {
	done, err := m.event.Query()
	if !done && err == nil {
		return false, nil
	}
	return done, m.conn.wrap(opReach, errors.Join(err, m.conn.keep(m)))
}

func (c *conn) mark(op string) (*mark, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.invalid(op, "the connection is closed")
	}
	return c.record(op)
}

// record marks the stream as it is. The caller holds mu.
func (c *conn) record(op string) (*mark, error) {
	var m *mark
	if last := len(c.marks) - 1; last >= 0 {
		m = c.marks[last]
		c.marks = c.marks[:last]
	} else {
		event, err := c.reg.Device().NewEvent()
		if err != nil {
			return nil, c.wrap(op, err)
		}
		m = &mark{conn: c, event: event}
	}
	if err := c.stream.Record(m.event); err != nil {
		return nil, c.wrap(op, errors.Join(err, m.event.Close()))
	}
	return m, nil
}

// keep takes a mark that is not needed any more. Recording its event anew is
// fine even if the stream has not reached it.
func (c *conn) keep(m *mark) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return m.event.Close()
	}
	c.marks = append(c.marks, m)
	return nil
}
