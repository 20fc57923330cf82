package ib

import "github.com/mscclgo/mscclgo/connection"

// mark is a point in a connection's queues: the numbers of the requests and of the
// messages before it.
type mark struct {
	conn *conn
	upTo [maxQueuePairs]uint64
	read uint64 // the number below which are the reads
	sent uint32 // messages that change words
}

// NewMark makes a mark.
func (c *conn) NewMark() (connection.DriverMark, error) { return &mark{conn: c}, nil }

// Set requests a completion for what was posted, which means that it is in place. The
// other queue pairs than the first end each part of a write with a read.
func (m *mark) Set() error {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, q := range c.queues {
		// Once the connection has failed no completion comes any more.
		if !c.closed && c.broken.Load() == nil {
			settle := func() error { return c.fence(q) }
			if i == 0 {
				settle = c.settle
			}
			if err := settle(); err != nil {
				return err
			}
		}
		m.upTo[i] = q.posted
	}
	if first := c.queues[0]; first.posted == c.news.to {
		m.upTo[0] = c.news.from
	}
	m.sent, m.read = c.out.changes, c.landing.newest
	return nil
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
	for i, q := range c.queues {
		if q.done >= m.upTo[i] {
			continue
		}
		if err := c.usable(op); err != nil {
			return false, err
		}
		if err := c.poll(op, q); err != nil {
			return false, err
		}
		if q.done < m.upTo[i] {
			return false, nil
		}
	}
	if landed, err := c.landed(op, m.read); !landed {
		return false, err
	}
	return c.applied(op, m.sent)
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
