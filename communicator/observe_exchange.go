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

// exchange notes that this rank begins its next exchange. closes is whether it closes the group by it. done is called
// with the exchange's error when it is over, and returns how long it lasted if its deadline has passed.
func (o *observer) exchange(closes bool) (done func(error) time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exchanging = ownExchange{number: o.exchanging.number + 1, since: o.now(), closes: closes}
	number := o.exchanging.number
	return func(err error) time.Duration {
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case o.exchanging.number != number: // of two at once, which is an error
		case errors.Is(err, mscclgo.ErrTimeout):
			o.exchanging.ended = o.now()
		default:
			o.exchanging.since = time.Time{}
		}
		return o.exchanging.ended.Sub(o.exchanging.since)
	}
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

// judge returns the verdict of a wait of this rank's that has passed its deadline. It reports whether this rank knows what
// others tell. describe puts the wait into the rank's status; it is called with mu held.
func (o *observer) judge(describe func(s *watch.Status, now time.Time)) (v watch.Verdict, known bool) {
	outer := o.outerGroup()
	o.mu.Lock()
	defer o.mu.Unlock()
	ranks, now := make([]watch.Rank, o.size), o.now()
	if known = o.board != nil; known {
		ranks = o.ranks(now)
	}
	me := &ranks[o.rank]
	if me.Status == nil {
		me.Status = &watch.Status{}
	}
	describe(me.Status, now)
	return watch.JudgePart(ranks, outer, watch.Limits{Silence: max(o.heartbeat, 0), Stuck: o.stuck()}), known
}

// stuck is how long a wait or a handler that a failed wait leads to has lasted to count.
func (o *observer) stuck() time.Duration { return min(o.timeout/4, mostStuck) }

// overdue returns the error of a wait of this rank's on the host, in op, whose deadline has passed. It ended with err and
// lasted for so long. The rank that err names may wait itself: the error names the verdict's culprit, or ranks that wait
// for each other, if there are such. describe is for judge.
func (o *observer) overdue(op string, err error, lasted time.Duration, describe func(s *watch.Status, now time.Time)) error {
	select {
	case <-o.boot.Done(): // a wait of a kernel, perhaps, has said the same
		return err
	case <-time.After(o.ask()): // for all ranks to report what they wait for
	}
	if lasted < o.stuck() {
		return err // of a context that ended before anybody was late
	}
	v, known := o.judge(describe)
	rank, text := o.rank, fmt.Sprintf("%s (%v)", v.Text, err)
	switch {
	case !known || v.Culprit == mscclgo.NoRank && !v.Outside && !v.Cycle:
		return err
	case v.Culprit == rank || v.Cycle: // the peer that err names is not to blame
		return mscclgo.Errorf(mscclgo.ErrTimeout, op, "%w", o.judged(v, mscclgo.NoRank, text, nil)).At(rank, mscclgo.NoRank)
	}
	return mscclgo.Errorf(mscclgo.ErrTimeout, op, "%w", o.judged(v, mscclgo.NoRank, text, err)).At(rank, v.Culprit)
}
