package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// firstTell is how long a collective waits before it tells its neighbours for whom.
const firstTell = 50 * time.Millisecond

// maxAhead is how many calls a rank may be ahead of another that still hears of each how it
// ended. It bounds what is kept of them.
const maxAhead = 4096

// collectiveCalls numbers this rank's collectives, and holds what neighbours have said of
// the calls under way and of later ones. Its lock is taken before Bootstrap.mu.
type collectiveCalls struct {
	mu    sync.Mutex
	begun uint64 // calls so far; the next has this number
	known map[uint64]*callState
	// givenUp is the last call that was given up, unless one has ended well since.
	givenUp *givenUp
}

// A callState holds what is known of a call. The call is under way here, or others have begun it.
type callState struct {
	call   *call         // nil before it begins here
	left   *watch.Fact   // of the first that left it, of which this rank heard
	news   []*outgoing   // the frames that carry it to the neighbours
	awaits map[int][]int // by neighbour: the ranks that it waits for
}

func newCollectiveCalls() collectiveCalls {
	return collectiveCalls{known: map[uint64]*callState{}}
}

// of returns what is known of call n, or nil if it is over or far ahead.
// The caller holds s.mu.
func (s *collectiveCalls) of(n uint64) *callState {
	k := s.known[n]
	if k == nil && n >= s.begun && n-s.begun < maxAhead {
		k = &callState{awaits: map[int][]int{}}
		s.known[n] = k
	}
	return k
}

// wanted reports whether call n is under way or still to come.
func (s *collectiveCalls) wanted(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return n >= s.begun || s.known[n] != nil
}

// note keeps for whom a neighbour waits in call n.
func (s *collectiveCalls) note(n uint64, peer int, awaited []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(n)
	if k == nil {
		return
	}
	k.awaits[peer] = awaited
	if k.call != nil && k.call.said != nil {
		k.call.tell(false)
	}
}

// A call is one collective under way on this rank.
type call struct {
	b      *Bootstrap
	kind   collective
	number uint64
	root   int
	op     string
	outer  context.Context // the caller's
	ctx    context.Context // ends too when another rank leaves the call
	cancel context.CancelFunc
	state  *callState
	teller *time.Timer

	// Under collectiveCalls.mu:
	waits []int // the neighbours without which the call does not go on
	said  []int // the ranks for which the neighbours know that this one waits; nil at first
}

// begin starts a collective.
func (b *Bootstrap) begin(ctx context.Context, kind collective, root int) (*call, error) {
	op := fmt.Sprintf("bootstrap: %v", kind)
	// A context that is over counts: the other ranks call, and must hear that this one
	// does not take part.
	if err := b.usable(context.Background(), op, mscclgo.NoRank); err != nil {
		return nil, err
	}
	c := &call{b: b, kind: kind, root: root, op: op, outer: ctx}
	c.ctx, c.cancel = context.WithCancel(ctx)
	s := &b.calls
	s.mu.Lock()
	defer s.mu.Unlock()
	c.number = s.begun
	c.state = s.of(c.number) // there is one: it is the next
	c.state.call = c
	s.begun++
	if c.state.left != nil {
		c.cancel()
	}
	c.teller = time.AfterFunc(firstTell, func() { c.tellAgain(firstTell) })
	return c, nil
}

// end forgets the call and the messages that came for it and were not used.
func (c *call) end() {
	c.cancel()
	s := &c.b.calls
	s.mu.Lock()
	c.teller.Stop()
	delete(s.known, c.number)
	s.mu.Unlock()
	for _, peer := range neighbours(c.b.rank, c.b.size) {
		c.b.inbox.drop(mailKey{peer, frameCollective, c.number})
	}
}

// waitFor notes without which neighbours the call does not go on.
func (c *call) waitFor(peers ...int) {
	c.b.calls.mu.Lock()
	defer c.b.calls.mu.Unlock()
	c.waits = peers
}

// awaits returns the ranks for which this one waits in the end, in rising order:
// neighbours, or the ranks for which these wait themselves.
func (c *call) awaits() []int {
	c.b.calls.mu.Lock()
	defer c.b.calls.mu.Unlock()
	return c.awaited()
}

// awaited is awaits for callers that hold collectiveCalls.mu.
func (c *call) awaited() []int {
	var ranks []int
	for _, peer := range c.pending() {
		theirs := slices.DeleteFunc(slices.Clone(c.state.awaits[peer]), func(r int) bool { return r == c.b.rank })
		if len(theirs) == 0 || c.b.isQuiet(peer) { // what it said is old
			theirs = []int{peer}
		}
		ranks = append(ranks, theirs...)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// pending returns the neighbours for which this rank waits and from which nothing has
// come.
func (c *call) pending() []int {
	return slices.DeleteFunc(slices.Clone(c.waits), func(peer int) bool {
		return c.b.inbox.has(mailKey{peer, frameCollective, c.number})
	})
}

// tellAgain tells the neighbours now, and once more after twice the time.
func (c *call) tellAgain(after time.Duration) {
	s := &c.b.calls
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[c.number] != c.state {
		return // it has ended
	}
	c.tell(true) // a neighbour may have connected since
	after = min(2*after, time.Second)
	c.teller = time.AfterFunc(after, func() { c.tellAgain(after) })
}

// tell tells the neighbours that may wait for this rank for whom it waits itself, if that
// has changed or again is set: the rank whose time is up first can then say who is missing. The
// caller holds collectiveCalls.mu.
func (c *call) tell(again bool) {
	awaited := c.awaited()
	if !again && slices.Equal(awaited, c.said) || c.state.left != nil {
		return
	}
	c.said = append([]int{}, awaited...)
	pending := c.pending()
	c.b.tellNeighbours(frame{kind: frameAwaits, tag: c.number, payload: watch.Fact{Rank: c.b.rank, Kind: mscclgo.ErrTimeout, Peers: awaited}.Encode()}, func(peer int) bool {
		return !slices.Contains(pending, peer)
	})
}

// tellNeighbours queues f for the neighbours in the tree that it is for.
func (b *Bootstrap) tellNeighbours(f frame, isFor func(peer int) bool) (sent []*outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil
	}
	for _, peer := range neighbours(b.rank, b.size) {
		if out := b.peers[peer].out; out != nil && isFor(peer) {
			sent = append(sent, out.enqueue(f))
		}
	}
	return sent
}

// verdict returns the error of a call that came to err. If the call ends on this rank
// alone, the other ranks' calls end with it.
func (c *call) verdict(err error) error {
	b := c.b
	var e *mscclgo.Error
	if err == nil {
		b.calls.mu.Lock()
		b.calls.givenUp = nil
		b.calls.mu.Unlock()
	}
	if err == nil || !errors.As(err, &e) {
		return err
	}
	awaited := c.awaits()
	b.calls.mu.Lock()
	left := c.state.left
	b.calls.mu.Unlock()
	switch {
	case left != nil && c.outer.Err() == nil && !b.Internal().Left(left.Rank) && (errors.Is(err, context.Canceled) || b.failedBy(left.Rank)):
		// Also if the group has failed since, because that rank ended with its call.
		b.awaitNews(c)
		return c.leftBy(left)
	case b.Err() != nil && (errors.Is(err, context.Canceled) || c.outer.Err() != nil):
		return b.errFailed(c.op)
	case b.Err() != nil || b.isClosing():
		return err
	case c.outer.Err() != nil:
		text := "before it began"
		if len(awaited) > 0 {
			answer := "does"
			if len(awaited) > 1 {
				answer = "do"
			}
			text = fmt.Sprintf("waiting for %s, which did not call it or %s not answer", rankList(awaited), answer)
		}
		e = mscclgo.FromContext(c.outer, c.op, text).At(b.rank, mscclgo.NoRank)
		if len(awaited) > 0 {
			e.Peer = awaited[0]
		}
	case left != nil:
		return c.leftBy(left)
	}
	f := watch.Fact{Rank: b.rank, Kind: e.Kind, Text: ownText(e)}
	if e.Kind == mscclgo.ErrTimeout {
		f.Peers = awaited
	}
	b.callLeft(b.rank, c.number, f)
	b.awaitNews(c)
	return e
}

// leftBy returns the error of a call that another rank has left.
func (c *call) leftBy(left *watch.Fact) error {
	return left.Left(c.op, c.b.rank, fmt.Sprintf("call %d", c.number))
}

// awaitNews returns when the neighbours have been sent why c ends: this process may end
// with it, which would look like the failure of this rank.
func (b *Bootstrap) awaitNews(c *call) {
	b.calls.mu.Lock()
	news := c.state.news
	b.calls.mu.Unlock()
	awaitSent(news, newsPatience)
}

// failedBy reports whether the group has failed because of a rank.
func (b *Bootstrap) failedBy(rank int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure != nil && b.failure.Culprit() == rank
}

func (b insideBootstrap) Left(rank int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return rank >= 0 && rank < b.size && b.peers[rank].left
}

func (b *Bootstrap) isClosing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing
}
