package connection

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Mark is a point in what a connection has queued.
type Mark struct {
	m    *mark
	turn uint64 // of m when it was set
}

// mark is what a Mark stands for. Marks are used again, so that marking and
// flushing allocate nothing.
type mark struct {
	c      *Connection
	driver DriverMark
	waits  WaitingMark // driver, or nil
	turn   atomic.Uint64
	since  uint64 // when it was set, for a trace
}

// marks holds a connection's marks that are not in use.
type marks struct {
	mu     sync.Mutex
	closed bool
	free   []*mark
}

// Mark queues a mark behind all that was queued before, for a caller that
// cannot wait in Flush. It waits only where the transport's queue is full.
func (c *Connection) Mark() (Mark, error) {
	t := c.turn()
	defer t.End()
	return t.Mark()
}

// Done reports whether all before the mark is done at the peer. Once it has
// reported true, or an error, the mark is used up. Any goroutine may call it.
//
// Errors: ErrSystem and ErrRemote when the transport failed; ErrInvalid for a
// mark that is used up, and for one that was not reached before the connection
// was closed.
func (m Mark) Done() (bool, error) {
	const op = "reach a mark"
	if m.m == nil {
		return false, mscclgo.Errorf(mscclgo.ErrInvalid, "connection: "+op, "the mark belongs to no connection")
	}
	c := m.m.c
	if m.m.turn.Load() != m.turn {
		return false, c.errorf(mscclgo.ErrInvalid, op, "the mark is used up")
	}
	done, err := m.m.driver.Reached()
	if !done && err == nil {
		return false, nil
	}
	if !m.m.turn.CompareAndSwap(m.turn, m.turn+1) {
		return false, c.errorf(mscclgo.ErrInvalid, op, "the mark is used up")
	}
	c.traced(native.EventFlush, m.m.since, 0, 0)
	return done && err == nil, c.wrap(op, errors.Join(err, c.marks.put(m.m)))
}

// setMark returns a mark behind all that is queued. It waits for the queue at most
// until ctx ends. closing is whether the connection may be closed.
func (c *Connection) setMark(ctx context.Context, op string, closing bool) (*mark, error) {
	// A call that waits in a full queue may have the turn until the transport fails.
	if !c.turns.wait(ctx) {
		return nil, mscclgo.FromContext(ctx, c.op(op), "the transport's queue is full").At(c.rank, c.peer)
	}
	defer c.turns.end()
	return c.newMark(op, closing)
}

// newMark is setMark for a caller that has the turn.
func (c *Connection) newMark(op string, closing bool) (*mark, error) {
	if c.closed.Load() && !closing {
		return nil, c.errorf(mscclgo.ErrInvalid, op, "the connection is closed")
	}
	m := c.marks.get()
	if m == nil {
		d, err := c.driver.NewMark()
		if err != nil {
			return nil, c.wrap(op, err)
		}
		m = &mark{c: c, driver: d}
		m.waits, _ = d.(WaitingMark)
	}
	if c.trace != nil {
		m.since = c.clock()
	}
	if err := m.driver.Set(); err != nil {
		return nil, c.wrap(op, errors.Join(err, c.marks.put(m)))
	}
	return m, nil
}

// wait waits for a mark of setMark and puts it back.
func (c *Connection) wait(ctx context.Context, op string, m *mark) error {
	var err error
	if m.waits != nil {
		err = m.waits.Wait(ctx)
	} else {
		err = c.poll(ctx, m.driver)
	}
	c.traced(native.EventFlush, m.since, 0, 0)
	m.turn.Add(1)
	if put := c.marks.put(m); put != nil {
		err = errors.Join(err, put)
	}
	return c.wrap(op, err)
}

// poll waits for a mark by asking.
func (c *Connection) poll(ctx context.Context, m DriverMark) error {
	for looks := 0; ; looks++ {
		switch done, err := m.Reached(); {
		case err != nil:
			return err
		case done:
			return nil
		case ctx.Err() != nil:
			return mscclgo.FromContext(ctx, "wait", "the peer has not acknowledged all that was queued")
		}
		pause(looks)
	}
}

// get returns a mark that is not in use, or nil.
func (s *marks) get() *mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return nil
	}
	m := s.free[last]
	s.free = s.free[:last]
	return m
}

// put takes a mark that is not in use any more.
func (s *marks) put(m *mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return m.driver.Close()
	}
	s.free = append(s.free, m)
	return nil
}

// close releases the marks that are not in use. Others are when they are put
// back.
func (s *marks) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, m := range s.free {
		errs = append(errs, m.driver.Close())
	}
	s.free = nil
	return errors.Join(errs...)
}
