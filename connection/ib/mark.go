package ib

import "github.com/mscclgo/mscclgo/connection"

// mark is a point in a connection's queues: the numbers of the requests before
// it.
type mark struct {
	conn *conn
	upTo [maxQueuePairs]uint64
}

// Mark makes a mark. It waits only where a queue is full.
func (c *conn) Mark() (connection.Mark, error) {
	m, err := c.mark("ib: mark")
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Done polls for completions.
func (m *mark) Done() (bool, error) { return m.reached("ib: reach a mark") }

func (m *mark) reached(op string) (bool, error) {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, c.invalid(op, "the connection is closed")
	}
	for i, q := range c.queues {
		if q.done >= m.upTo[i] {
			continue
		}
		if err := c.poll(op, q); err != nil {
			return false, err
		}
		if q.done < m.upTo[i] {
			return false, nil
		}
	}
	c.marks = append(c.marks, m)
	return true, nil
}

func (c *conn) mark(op string) (*mark, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, c.invalid(op, "the connection is closed")
	}
	if err := c.failed(op); err != nil {
		return nil, err
	}
	for _, q := range c.queues {
		if err := c.fence(q); err != nil {
			return nil, err
		}
	}
	var m *mark
	if last := len(c.marks) - 1; last >= 0 {
		m = c.marks[last]
		c.marks = c.marks[:last]
	} else {
		m = &mark{conn: c}
	}
	for i, q := range c.queues {
		m.upTo[i] = q.posted
	}
	return m, nil
}
