package message

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
)

// mark is the number of operations that were queued before it.
type mark struct {
	q     *Queue
	until uint64
}

// NewMark makes a mark.
func (q *Queue) NewMark() (connection.DriverMark, error) { return &mark{q: q}, nil }

// Set notes how much is queued.
func (m *mark) Set() error {
	m.until = m.q.Queued.Load()
	return nil
}

// reached reports whether all before the mark is done. The caller holds Mu.
func (m *mark) reached() (bool, error) {
	m.q.carrier.Poll()
	switch {
	case m.q.Done.Load() >= m.until:
		return true, nil
	case m.q.end.Err != nil:
		return false, m.q.end.Failure()
	}
	return false, nil
}

// Reached reports whether the peer has done all before the mark, and answered. Once the
// connection has ended without that, it returns why.
func (m *mark) Reached() (bool, error) {
	q := m.q
	if q.Done.Load() >= m.until {
		return true, nil
	}
	if !q.polled && !q.end.Over() {
		return false, nil
	}
	q.end.Mu.Lock()
	defer q.end.Mu.Unlock()
	return m.reached()
}

// Wait waits until the peer has done as much.
func (m *mark) Wait(ctx context.Context) error {
	q := m.q
	var done bool
	var err error
	look := func() bool {
		done, err = m.Reached()
		return done || err != nil
	}
	if look() || q.end.rank.Spin.Until(look) {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		q.end.Mu.Lock()
		defer q.end.Mu.Unlock()
		q.Changed.Broadcast()
	})()
	q.end.Mu.Lock()
	defer q.end.Mu.Unlock()
	for {
		if done, err := m.reached(); done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return mscclgo.FromContext(ctx, q.end.rank.Name+": wait", q.carrier.Missing(m.until))
		}
		q.carrier.Sleep(func() bool { return q.Done.Load() >= m.until })
	}
}

// Close does nothing, as a mark holds nothing.
func (m *mark) Close() error { return nil }
