package communicator

import (
	"errors"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// ownPair is a call that this rank makes with one other on the host, and in which it waits. One
// whose deadline has passed explains why the rank was late until it does something else.
type ownPair struct {
	name  string
	peer  int
	since time.Time
	ended time.Time // when its deadline had passed, or zero

	calls, exchanges uint64 // of this rank until then
}

// pair notes that this rank begins such a call.
func (o *observer) pair(name string, peer int) *ownPair {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &ownPair{name: name, peer: peer, since: o.now()}
	over := func(other *ownPair) bool { return !other.ended.IsZero() }
	o.pairs = append(slices.DeleteFunc(o.pairs, over), p)
	return p
}

// pairDone notes that such a call is over, but not by its deadline.
func (o *observer) pairDone(p *ownPair) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pairs = slices.DeleteFunc(o.pairs, func(other *ownPair) bool { return other == p })
}

// pairEnded notes that the deadline of such a call has passed, and returns how long it lasted.
func (o *observer) pairEnded(p *ownPair) time.Duration {
	last := o.calls.Load().Last()
	o.mu.Lock()
	defer o.mu.Unlock()
	p.ended, p.calls, p.exchanges = o.now(), last.Number, o.exchanging.number
	return p.ended.Sub(p.since)
}

// pairWaits returns the waits in such calls. The caller holds mu.
func (o *observer) pairWaits(last watch.Call, now time.Time) (waits []watch.Wait) {
	o.pairs = slices.DeleteFunc(o.pairs, func(p *ownPair) bool {
		same := p.calls == last.Number && p.exchanges == o.exchanging.number && o.explains(p.ended, now)
		return !p.ended.IsZero() && !same
	})
	for _, p := range o.pairs {
		waits = append(waits, p.wait(now))
	}
	return waits
}

// wait returns the call as others see it.
func (p *ownPair) wait(now time.Time) watch.Wait {
	w := watch.Wait{Kind: watch.Pair, Name: p.name, Peer: p.peer, Ended: !p.ended.IsZero()}
	if w.Ended {
		now = p.ended
	}
	w.For = max(now.Sub(p.since), 1)
	return w
}

// waitIn makes this rank's part of a call with one other rank. While it lasts, all ranks hear of
// the wait for that one. If its deadline passes, the peer may wait itself: the error names the cause.
func (c *Communicator) waitIn(name, op string, peer int, part func() error) error {
	if peer == c.Rank() {
		return part()
	}
	o := c.failure.observer
	p := o.pair(name, peer)
	err := part()
	if !errors.Is(err, mscclgo.ErrTimeout) {
		o.pairDone(p)
		return err
	}
	return o.overdue(op, err, o.pairEnded(p), p.describe)
}

// describe adds the call, whose deadline has passed, to this rank's status.
func (p *ownPair) describe(s *watch.Status, now time.Time) {
	same := func(w watch.Wait) bool { return w.Kind == watch.Pair && w.Peer == p.peer && w.Name == p.name }
	s.Waits = append(slices.DeleteFunc(s.Waits, same), p.wait(now))
}
