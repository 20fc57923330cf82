package communicator

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo"
)

const matchOp = "communicator: match a call"

// matcher compares this rank's calls with those of the others; see MatchCall.
type matcher struct {
	c       *Communicator
	board   *sharedBoard
	members []int // the ranks of the board, by index
	index   int   // of this rank

	mu      sync.Mutex
	closed  bool
	last    claim   // this rank's last call
	waiting []claim // of other hosts, about calls that no rank of this host has made
	next    uint64  // the lowest number in waiting

	stop func() // ends the comparison with other hosts; nil if there is none
}

// claim is what a rank reports about a call.
type claim struct {
	rank   int
	number uint64 // 0 before the first call
	digest uint64 // of all calls up to this one
	text   string
}

// MatchCall numbers a call that all ranks make in the same order, such as a
// collective on a stream, and compares its description with the other ranks'
// without waiting for them. A difference is detected by the rank that makes the call
// later: at once among the ranks of a host, otherwise within a second or in the next
// collective method. That rank fails the group, so that waits in kernels end. Where all
// other ranks of the host agree, the one that differs is named as the one that failed.
//
// All of the description is compared; the error shows its first 120 bytes. MatchCall
// does not allocate and takes about 100 ns.
//
// Errors: ErrInvalid, naming the call's number, the ranks and both descriptions, when
// they differ; ErrInvalid for a closed communicator; the group's error if it has
// failed.
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
	number := m.last.number
	m.mu.Unlock()
	if err != nil {
		c.failure.failBy(m.odd(number), err)
	}
	return err
}

// call notes this rank's next call. The caller holds mu, and fails the group with the
// error.
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

// claimOf returns the claim of a note. The caller holds mu.
func (m *matcher) claimOf(n note, number uint64) claim {
	k := claim{rank: mscclgo.NoRank, number: number}
	if i := n.index(); i < len(m.members) {
		k.rank = m.members[i]
		k.text, _ = m.board.text(i, number)
	}
	return k
}

// differ returns the error of two claims about one call that differ.
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

// lastCall returns this rank's last call.
func (c *Communicator) lastCall() claim {
	if m := c.begun.Load(); m != nil {
		return m.latest()
	}
	return claim{}
}

// hear compares another rank's claim with this host's call. If no rank of this host
// has made the call yet, it is compared when this rank does. The caller fails the
// group with the error.
func (m *matcher) hear(k claim) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k.number == 0 || m.board.board == nil {
		return nil
	}
	// A waiting claim is not replaced by a later one: if the other rank is always
	// ahead, this rank would never reach any.
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

// settle compares the claims that waited for calls that are now made. The caller
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

// close ends the comparison with other hosts and closes the board. It is called
// after refuse.
func (m *matcher) close() error {
	if m.stop != nil {
		m.stop()
	}
	m.c.failure.observer.leave()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.board == nil {
		return nil
	}
	return m.board.close()
}
