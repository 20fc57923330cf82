package testgroup

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
)

// Leaver is a rank's bootstrap with an exchange in which the context of the call ends.
type Leaver struct {
	*bootstrap.Bootstrap
	// Left reports whether it has ended in the latest call of Again.
	Left bool
	// Ends ends the context of the call, if it is not nil: an exchange that goes on for a while then is not left.
	Ends func()

	exchanges int  // so far
	leaves    int  // the exchange, by its number; 0 for none
	sent      bool // this rank's part has been sent by then, so that others complete the exchange
	outcomes  *outcomes
}

// outcomes are how the calls of all ranks ended, by the number of their last exchange.
type outcomes struct {
	mu     sync.Mutex
	change *sync.Cond
	ended  map[int][]error
}

// RunLeaving is RunEach with bootstraps that are Leavers.
func RunLeaving(t testing.TB, o []communicator.Options, rank func(ctx context.Context, c *communicator.Communicator, l *Leaver) error) {
	t.Helper()
	outcomes := &outcomes{ended: map[int][]error{}}
	outcomes.change = sync.NewCond(&outcomes.mu)
	leavers := make([]*Leaver, len(o))
	wrap := func(b *bootstrap.Bootstrap) communicator.Bootstrap {
		leavers[b.Rank()] = &Leaver{Bootstrap: b, outcomes: outcomes}
		return leavers[b.Rank()]
	}
	for i, err := range errorsOver(t, o, wrap, func(ctx context.Context, c *communicator.Communicator) error {
		return rank(ctx, c, leavers[c.Rank()])
	}) {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// Again makes a call of all ranks until it works on all, at most twice more than there are ranks. The context of the first
// ends in its exchange of that number, from 1, or not if it is 0: when this rank's part has been sent, or before.
func (l *Leaver) Again(exchange int, sent bool, call func() error) error {
	l.Left, l.leaves, l.sent = false, 0, sent
	if exchange > 0 {
		l.leaves = l.exchanges + exchange
	}
	defer func() { l.leaves = 0 }()
	for range l.Size() + 2 {
		err := call()
		if l.outcomes.add(l.exchanges, l.Size(), err) {
			return nil
		}
		if err != nil && l.Err() != nil {
			return err
		}
	}
	return errors.New("the call does not work on all ranks")
}

// add adds a call, and if it worked, waits for the other ranks' calls that ended with that exchange. It reports
// whether all worked.
func (o *outcomes) add(exchange, ranks int, err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended[exchange] = append(o.ended[exchange], err)
	o.change.Broadcast()
	for err == nil && len(o.ended[exchange]) < ranks {
		o.change.Wait()
	}
	return errors.Join(o.ended[exchange]...) == nil
}

// AllGather is the bootstrap's.
func (l *Leaver) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	l.exchanges++
	if l.exchanges != l.leaves {
		return l.Bootstrap.AllGather(ctx, mine)
	}
	l.Left = true
	ended, end := context.WithCancel(ctx)
	defer end()
	if l.Ends != nil {
		ended, end = ctx, func() {
			l.Ends()
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	if !l.sent {
		end()
		return l.Bootstrap.AllGather(ended, mine)
	}
	all, err := l.Bootstrap.AllGather(context.WithoutCancel(ctx), mine)
	if err != nil {
		return nil, err
	}
	if end(); ended.Err() == nil {
		return all, nil
	}
	return nil, mscclgo.FromContext(ended, "test: all-gather", "after its part was sent").At(l.Rank(), mscclgo.NoRank)
}
