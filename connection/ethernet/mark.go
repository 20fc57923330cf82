package ethernet

import "github.com/mscclgo/mscclgo/connection"

// mark is the number of operations that were queued before it. Marks are used
// again, so that marking allocates nothing.
type mark struct {
	conn  *conn
	until uint64
}

// Mark notes how much is queued.
func (c *conn) Mark() (connection.Mark, error) {
	const what = "ethernet: mark"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, c.invalid(what, "the connection is closed")
	case c.err != nil:
		return nil, c.failure(what)
	}
	var m *mark
	if last := len(c.marks) - 1; last >= 0 {
		m = c.marks[last]
		c.marks = c.marks[:last]
	} else {
		m = &mark{conn: c}
	}
	m.until = c.queued.Load()
	return m, nil
}

// Done compares it with what the peer has acknowledged.
func (m *mark) Done() (bool, error) {
	c := m.conn
	if c.acked.Load() < m.until && !c.ended.Load() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked.Load() < m.until {
		return false, c.failure("ethernet: reach a mark")
	}
	c.marks = append(c.marks, m)
	return true, nil
}
