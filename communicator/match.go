package communicator

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo"
)

const matchOp = "communicator: match a call"

// matcher is this rank's part in comparing the ranks' calls; see MatchCall.
type matcher struct {
	c       *Communicator
	board   *sharedBoard
	members []int // the ranks of the board, by index
	index   int   // of this rank

	mu      sync.Mutex
	closed  bool
	last    claim   // this rank's last call
	waiting []claim // of other ranks, of calls that no rank of this host has made
	next    uint64  // the lowest number in waiting

	stop func() // ends the comparing with other hosts; nil where there are none
}

// claim is what a rank says about a call.
type claim struct {
	rank   int
	number uint64 // 0 before the first call
	digest uint64 // of all calls up to this one
	text   string
}

// MatchCall numbers a call that all ranks make in the same order, such as a
// collective on a stream, and compares its description with the other ranks'
// without waiting for them. Of two ranks whose descriptions differ, the one that
// comes later finds it: at once among the ranks of a host, and otherwise within
// a second, or in the next collective call. It then fails the group, so that
// kernels that wait for each other end.
//
// Of a description the first 120 bytes are kept for the error; all of it is
// compared. MatchCall does not allocate, and takes about 100 ns.
//
// Errors: ErrInvalid that names the number of the call, the ranks and both
// descriptions when they differ, and for a communicator that is closed; the
// group's error when it has failed.
func (c *Communicator) MatchCall(description string) error {
	if c.failure.failed.Load() {
		return c.failure.err()
	}
	m := c.matcher
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return c.usable(matchOp)
	}
	err := m.call(description)
	m.mu.Unlock()
	if err != nil {
		c.failure.fail(err)
	}
	return err
}

// call notes this rank's next call. Any error is to be the group's. The caller
// holds mu.
func (m *matcher) call(text string) error {
	m.last.number++
	m.last.digest = extend(m.last.digest, text)
	m.last.text = text
	first, ok := m.board.post(m.index, m.last.number, m.last.digest, text)
	if ok && !first.matches(m.last.digest) {
		return m.differ(m.claimOf(first, m.last.number), m.last)
	}
	if m.last.number >= m.next {
		return m.settle()
	}
	return nil
}

// claimOf returns what a note says. The caller holds mu.
func (m *matcher) claimOf(n note, number uint64) claim {
	k := claim{rank: mscclgo.NoRank, number: number}
	if i := n.index(); i < len(m.members) {
		k.rank = m.members[i]
		k.text, _ = m.board.text(i, number)
	}
	return k
}

// differ returns the error of two claims of one call that do not fit together.
func (m *matcher) differ(theirs, ours claim) error {
	which := fmt.Sprintf("call %d", ours.number)
	if theirs.text == clip(ours.text) || theirs.text == "" || ours.text == "" {
		which += " or one before it"
	}
	us := "this rank"
	if ours.rank != m.c.Rank() {
		us = fmt.Sprintf("rank %d", ours.rank)
	}
	what := func(k claim) string {
		if k.text == "" {
			return "a call that differs"
		}
		return clip(k.text)
	}
	return mscclgo.Errorf(mscclgo.ErrInvalid, matchOp, "%s: rank %d makes %s; %s %s; all ranks must make the same calls in the same order",
		which, theirs.rank, what(theirs), us, what(ours)).At(m.c.Rank(), theirs.rank)
}

// clip shortens a text as the board does.
func clip(text string) string { return printable([]byte(text[:min(len(text), textBytes)])) }

// latest returns this rank's last call.
func (m *matcher) latest() claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// hear compares what another rank says about a call with this host's. Where no
// rank of this host has made the call yet, it is compared when this rank does.
// Any error is to be the group's.
func (m *matcher) hear(k claim) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k.number == 0 || m.board.board == nil {
		return nil
	}
	// A claim that waits is not replaced: later ones might never be reached, as
	// the other rank may always be ahead.
	waits := slices.ContainsFunc(m.waiting, func(w claim) bool { return w.rank == k.rank })
	if _, since := m.board.look(k.number); since < 0 && !waits {
		m.waiting = append(m.waiting, k)
		m.next = min(m.next, k.number)
		return nil
	}
	return m.compare(k)
}

// compare compares a claim with this host's note of the call, if there is one. The
// caller holds mu.
func (m *matcher) compare(k claim) error {
	n, since := m.board.look(k.number)
	if since != 0 || n.matches(k.digest) {
		return nil
	}
	return m.differ(k, m.claimOf(n, k.number))
}

// settle compares the claims that waited for the calls made so far. The caller
// holds mu.
func (m *matcher) settle() error {
	var failed error
	m.next = math.MaxUint64
	m.waiting = slices.DeleteFunc(m.waiting, func(k claim) bool {
		if k.number > m.last.number {
			m.next = min(m.next, k.number)
			return false
		}
		if err := m.compare(k); failed == nil {
			failed = err
		}
		return true
	})
	return failed
}

// refuse makes later calls fail.
func (m *matcher) refuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
}

// close ends the comparing with other hosts and releases the board. Calls have
// been refused before.
func (m *matcher) close() error {
	if m.stop != nil {
		m.stop()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.board == nil {
		return nil
	}
	return m.board.close()
}
