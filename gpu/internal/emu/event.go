package emu

import (
	"context"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/race"
)

// mark is a point in a stream's work.
type mark struct {
	done chan struct{} // closed when it is reached
	at   time.Time     // set, as is err, before done is closed
	err  error         // of the work before it

	queue *workQueue // whose work it marks
	clock race.Clock // set when it is reached, for the race finder
}

func newMark(w *workQueue) *mark { return &mark{done: make(chan struct{}), queue: w} }

// reach is called when the work before the mark is done.
func (m *mark) reach() { m.clock = m.queue.race.Clock() }

func (m *mark) finish(err error) {
	m.at, m.err = time.Now(), err
	close(m.done)
}

func (m *mark) step(*workQueue) (step, error) {
	return step{run: func() error { m.reach(); return nil }, done: m.finish}, nil
}

func (m *mark) reached() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// wait waits until the mark is reached.
func (m *mark) wait(ctx context.Context, op string) error {
	select {
	case <-m.done:
		m.learned()
		return m.err
	default:
	}
	m.queue.owner.turns.Self().Until(op, false, m.reached)
	if m.reached() {
		ctx = context.Background() // what is explored does not depend on time
	}
	defer m.queue.owner.still.host(m)()
	select {
	case <-m.done:
		m.learned()
		return m.err
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, "its work has not ended")
	}
}

// event is a device's view of a point: its own, or another device's that it wraps.
type event struct {
	dev *device
	*point
	wrapped bool // another closes the point
}

// point is recorded as a new mark each time.
type point struct {
	owner *device

	mu     sync.Mutex
	handle handle   // 0 until it is asked for
	last   *mark    // nil before the first Record
	inside *capture // that the stream took part in at the last Record, or nil
	before known    // what comes before the event in it
}

func (d *device) NewEvent() (backend.Event, error) {
	return &event{dev: d, point: &point{owner: d}}, nil
}

func (e *event) mark() *mark {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// own returns the event as one of this package.
func (d *device) own(op string, e backend.Event) (*event, error) {
	if own, ok := e.(*event); ok {
		return own, nil
	}
	return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the event is not one of an emulated device")
}

func (s *stream) Record(b backend.Event) error {
	op := s.dev.op("record an event")
	e, err := s.dev.own(op, b)
	if err != nil {
		return err
	}
	m := s.guarded(op, e.marker())
	s.mu.Lock()
	c := s.capture
	var before known
	if c != nil && s.open(op) == nil {
		before = c.mark(s.workQueue, m)
	}
	s.mu.Unlock()
	e.place(c, before)
	if before != nil {
		return nil
	}
	return s.do(op, e.marker())
}

// place notes where in a capture the event was recorded last, or that it was in none.
func (e *event) place(inside *capture, before known) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inside, e.before = inside, before
}

// marker makes a new mark, which is what the event stands for then.
func (e *event) marker() maker {
	return func(by *workQueue) (step, error) {
		m := newMark(by)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.last = m
		return m.step(by)
	}
}

// WaitEvent makes the stream wait for the event's last mark. It does not wait for an
// event that was never recorded. Where the event was recorded in a capture, the stream takes part
// in that.
func (s *stream) WaitEvent(b backend.Event) error {
	op := s.dev.op("wait for an event")
	e, err := s.dev.own(op, b)
	if err != nil {
		return err
	}
	e.mu.Lock()
	c, before := e.inside, e.before
	e.mu.Unlock()
	if c != nil {
		if joined, err := s.join(op, c, before); joined || err != nil {
			return err
		}
	}
	return s.waitFor(op, e)
}

// join has the stream take part in a capture from a point on, unless that has ended, which it reports.
func (s *stream) join(op string, c *capture, from known) (joined bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := s.open(op); {
	case err != nil:
		return false, err
	case s.capture != nil && s.capture != c && c.isUnderway():
		return false, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the event was recorded in another capture than the stream takes part in")
	case s.owner != c.origin.owner && c.isUnderway():
		return false, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "a stream of another device is capturing the event; an emulated device captures its own streams")
	case s.capture != c && s.capture != nil || !c.wait(s.workQueue, from):
		return false, nil
	case s.capture == nil:
		s.native.bar()
		s.capture = c
	}
	return true, nil
}

// waitFor queues a wait for what the event marks then.
func (s *stream) waitFor(op string, e *event) error {
	return s.do(op, func(by *workQueue) (step, error) {
		m := e.mark()
		return step{run: func() error {
			if m == nil {
				return nil
			}
			if by.inTurn() {
				by.party.Until("wait for an event", false, m.reached)
			}
			if m.queue.owner == by.owner {
				defer m.queue.owner.still.queue(m)()
			}
			select {
			case <-m.done:
				by.race.Learn(m.clock)
				return m.err
			case <-s.dev.ending:
				return s.dev.open("wait for an event")
			}
		}}, nil
	})
}

func (s *stream) RecordAcross(b backend.Event) error {
	op := s.dev.op("record an event")
	e, err := s.dev.own(op, b)
	if err != nil {
		return err
	}
	e.place(nil, nil)
	return s.do(op, e.marker())
}

func (s *stream) WaitAcross(b backend.Event) error {
	op := s.dev.op("wait for an event")
	e, err := s.dev.own(op, b)
	if err != nil {
		return err
	}
	return s.waitFor(op, e)
}

func (e *event) Query() (bool, error) {
	e.dev.turns.Self().Poll("query an event")
	m := e.mark()
	if m == nil {
		return true, nil
	}
	select {
	case <-m.done:
		m.learned()
		return true, m.err
	default:
		return false, nil
	}
}

func (e *event) Synchronize(ctx context.Context) error {
	m := e.mark()
	if m == nil {
		return nil
	}
	return m.wait(ctx, e.dev.op("synchronize an event"))
}

func (e *event) Since(b backend.Event) (time.Duration, error) {
	op := e.dev.op("time between events")
	start, err := e.dev.own(op, b)
	if err != nil {
		return 0, err
	}
	from, to := start.mark(), e.mark()
	for _, m := range []*mark{from, to} {
		if m == nil {
			return 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "one of them was never recorded")
		}
		select {
		case <-m.done:
			if m.err != nil {
				return 0, m.err
			}
		default:
			return 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "one of them has not been reached; synchronize it first")
		}
	}
	return to.at.Sub(from.at), nil
}

// Close leaves a wrapped event alone.
func (e *event) Close() error {
	if !e.wrapped {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.handle.end()
	}
	return nil
}
