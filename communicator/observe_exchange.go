package communicator

import (
	"errors"
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// ownExchange is the exchange that this rank is in, or was in last. Ranks number their
// exchanges alike.
type ownExchange struct {
	number uint64
	since  time.Time // zero if it is done
	closes bool      // by it this rank closes the group
	ended  time.Time // when the call returned because its deadline had passed, or zero
}

// exchange notes that this rank begins its next exchange, by which it closes the group or not. done is called with the
// exchange's error when that is over.
func (o *observer) exchange(closes bool) (done func(error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exchanging = ownExchange{number: o.exchanging.number + 1, since: o.now(), closes: closes}
	number := o.exchanging.number
	return func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case o.exchanging.number != number: // of two at once, which is an error
		case errors.Is(err, mscclgo.ErrTimeout):
			o.exchanging.ended = o.now()
		default:
			o.exchanging.since = time.Time{}
		}
	}
}

// exchanged returns how long the exchange lasted whose deadline has passed.
func (o *observer) exchanged() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.exchanging.ended.Sub(o.exchanging.since)
}

// describe adds the exchange to this rank's status.
func (e ownExchange) describe(s *watch.Status, now time.Time) {
	s.Exchange, s.ExchangeEnded, s.Closes = e.number, !e.ended.IsZero(), e.closes
	if s.ExchangeEnded {
		now = e.ended
	}
	if !e.since.IsZero() {
		s.Exchanging = max(now.Sub(e.since), 1)
	}
}

// judgeNow returns the verdict of a wait of this rank's on the host, whose deadline has passed. describe
// brings the rank's status up to date; mu is held.
func (o *observer) judgeNow(describe func(s *watch.Status, now time.Time)) (watch.Verdict, bool) {
	outer := o.outerGroup()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return watch.Verdict{}, false
	}
	now := o.now()
	ranks := o.ranks(now)
	if me := &ranks[o.c.Rank()]; me.Status != nil {
		describe(me.Status, now)
	}
	return o.verdict(ranks, outer), true
}

// verdict judges what is known of all ranks.
func (o *observer) verdict(ranks []watch.Rank, outer watch.OuterGroup) watch.Verdict {
	return watch.JudgePart(ranks, outer, watch.Limits{Silence: max(o.heartbeat, 0), Stuck: o.stuck()})
}

// stuck is how long a wait or a handler that a failed wait leads to has lasted to count.
func (o *observer) stuck() time.Duration { return min(o.c.options.Timeout/4, mostStuck) }

// explain returns the error of an exchange. Where its deadline has passed, the rank that
// the bootstrap awaited may wait itself: the error names the cause.
func (f *failure) explain(err error) error {
	if !errors.Is(err, mscclgo.ErrTimeout) {
		return err
	}
	select {
	case <-f.boot.Done(): // a wait of a kernel, perhaps, has told the same
		return f.err()
	case <-time.After(f.observer.ask()): // for all ranks to report what they wait for
	}
	if cause := f.err(); cause != nil {
		return cause
	}
	o := f.observer
	if o.exchanged() < o.stuck() {
		return err // of a context that ended before anybody was late
	}
	if v, ok := o.judgeNow(func(s *watch.Status, now time.Time) { o.exchanging.describe(s, now) }); ok {
		return o.overdue("communicator: exchange", v, err)
	}
	return err
}

// overdue returns the error of a wait on the host whose deadline has passed, by which it has ended with err:
// one that names the verdict's culprit, or ranks that wait for each other, if there are such.
func (o *observer) overdue(op string, v watch.Verdict, err error) error {
	rank, text := o.c.Rank(), fmt.Sprintf("%s (%v)", v.Text, err)
	switch {
	case v.Culprit == mscclgo.NoRank && !v.Outside && !v.Cycle:
		return err
	case v.Culprit == rank || v.Cycle: // the peer that err names is not to blame
		return mscclgo.Errorf(mscclgo.ErrTimeout, op, "%w", o.judged(v, mscclgo.NoRank, text, nil)).At(rank, mscclgo.NoRank)
	}
	return mscclgo.Errorf(mscclgo.ErrTimeout, op, "%w", o.judged(v, mscclgo.NoRank, text, err)).At(rank, v.Culprit)
}
