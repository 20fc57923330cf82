package bootstrap

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// lostTime is how long a rank whose connection to the rendezvous broke, or that lost
// the rendezvous, has to connect again before the other side is taken for dead.
const lostTime = 500 * time.Millisecond

// A member is a rank at the rendezvous. The rendezvous' lock guards it.
type member struct {
	*conn
	rank      int
	join      joinMessage
	until     time.Time // when it gives up
	connected bool      // to its parent in the tree
	leaves    bool      // it has said goodbye
}

// serve keeps m until all ranks are connected, it has heard that they will not be, or it leaves.
func (r *Rendezvous) serve(m *member) {
	defer m.nc.Close()
	if !r.admit(m) {
		return
	}
	err := m.serve(func(f frame) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hear(m, f)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[m.rank] != m || r.over() {
		return
	}
	delete(r.members, m.rank)
	switch {
	case r.addrs == nil: // also if it says that it is connected, to whom it cannot be
		r.log.Warn("bootstrap: the rendezvous lost a rank before the others came", "rank", m.rank, "from", m.join.addr)
		r.loseIn(lostTime, m.rank, refusal(mscclgo.ErrRemote, m.rank, fmt.Sprintf(
			"rank %d, at %s, was lost before all ranks had come: its process has ended", m.rank, m.join.addr)))
	case m.leaves:
		r.refuse(r.early(m.rank, "gave up"), m.rank)
	default:
		r.refuse(r.early(m.rank, fmt.Sprintf("lost its connection to the rendezvous (%v: its process, at %s, has ended)", err, m.join.addr)), m.rank)
	}
}

// hear notes what m says. The caller holds r.mu.
func (r *Rendezvous) hear(m *member, f frame) error {
	switch {
	case r.members[m.rank] != m || r.over():
	case f.kind == frameGoodbye:
		m.leaves = true
		if r.addrs == nil { // its place is free before it hears that the connection has ended
			delete(r.members, m.rank)
			r.log.Warn("bootstrap: a rank left the rendezvous before the others came", "rank", m.rank, "from", m.join.addr)
		}
	case r.addrs == nil:
		return fmt.Errorf("it sent a frame of kind %d before the others came", f.kind)
	case f.kind == frameConnected:
		m.connected = true
		for _, other := range r.members {
			if !other.connected {
				return nil
			}
		}
		r.formed()
	case f.kind == frameFailed:
		why, err := watch.DecodeFact(f.payload, r.size)
		switch {
		case err != nil:
			return err
		case why.Kind == mscclgo.ErrTimeout && why.Culprit() == m.rank: // and it does not know whom it waits for
			r.expire()
		default:
			r.refuse(why)
		}
	default:
		return fmt.Errorf("it sent a frame of kind %d", f.kind)
	}
	return nil
}

// formed tells all ranks that they are connected to each other, and needs them no longer.
func (r *Rendezvous) formed() {
	for _, m := range r.members {
		m.last(frame{kind: frameConnected})
	}
	clear(r.members)
	r.endForming()
}

// last sends f, which is the last that the rank hears.
func (m *member) last(f frame) {
	m.enqueue(f)
	m.endWithin(handshake.DefaultPatience)
}

// loseIn ends the rendezvous after a time because a rank is lost, unless it has come again.
func (r *Rendezvous) loseIn(after time.Duration, rank int, why watch.Fact) {
	r.lost[rank] = time.AfterFunc(after, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.lost[rank] != nil {
			r.refuse(why, rank)
		}
	})
}

// noJoin notes that a rank has proved that it is of the group, and then has not joined it: its
// process has ended, is stopped, or its host is silent, unless it comes again in a time-out of
// the waiting ranks. One that made room for others comes again at once.
func (r *Rendezvous) noJoin(rank int, from net.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	silence := time.Duration(0)
	for _, m := range r.members {
		silence = max(silence, m.join.silence)
	}
	if silence > 0 && r.addrs == nil && rank < r.size && r.members[rank] == nil && r.lost[rank] == nil {
		r.loseIn(silence, rank, without(rank, "came from %v and then was silent: its process has ended or is stopped, or its host is silent", from))
	}
}

func (r insideRendezvous) Ended(rank int, how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case rank < 0 || r.size > 0 && rank >= r.size:
	case r.addrs != nil && r.over():
		r.ended[rank] = how
	default:
		r.refuse(r.early(rank, how))
	}
}

// early is the refusal where a rank ended before the group had formed. The caller holds r.mu.
func (r *Rendezvous) early(rank int, how string) watch.Fact {
	before := "all ranks had come"
	if r.addrs != nil {
		before = "the ranks were connected"
	}
	return refusal(mscclgo.ErrRemote, rank, fmt.Sprintf("rank %d %s before %s", rank, how, before))
}

func (r insideRendezvous) Stopped(rank, process int, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	impatient := false
	for _, m := range r.members {
		impatient = impatient || m.rank != rank && m.join.silence > 0 && time.Since(since) >= m.join.silence
	}
	if !impatient || r.over() || rank < 0 || rank >= r.size {
		return false
	}
	r.refuse(without(rank, "is stopped (process %d): a signal, a shell or a debugger stopped it", process))
	return true
}

// hasMet reports whether m is a process of the last group that was complete, and has the rank it had.
func (r *Rendezvous) hasMet(m *member) bool {
	return m.rank >= 0 && m.rank < len(r.met) && r.met[m.rank] == m.join.program
}

// meetAgain has the processes of the last group meet for another one if m comes for that. Ranks that look for the
// rendezvous of the next group may find the one that rank 0 holds and is about to close.
func (r *Rendezvous) meetAgain(m *member) {
	if r.id.hosted || r.addrs == nil || r.refused != nil || !r.over() || !r.hasMet(m) {
		return
	}
	r.addrs = nil
	clear(r.heard)
	r.forming, r.endForming = context.WithCancel(context.Background())
	for rank, how := range r.ended {
		r.refuse(r.early(rank, how))
	}
}

// admit adds m to the group, answers it, and reports whether it stays connected
// until it has read the answer.
func (r *Rendezvous) admit(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.largest = max(r.largest, m.join.size)
	r.meetAgain(m)
	if r.refused == nil && r.addrs == nil && len(r.members) == 0 {
		r.size, r.tls = m.join.size, m.join.tls
		r.checkRoom(r.size)
	}
	if why := r.noPlace(m); why != nil {
		r.tell(m, *why)
		return true
	}
	if old := r.members[m.rank]; old != nil {
		old.nc.Close() // it lost that connection and tries again
	}
	if t := r.lost[m.rank]; t != nil {
		t.Stop()
		delete(r.lost, m.rank)
	}
	r.members[m.rank] = m
	r.lookAfter(m)
	if len(r.members) == r.size {
		r.complete()
	}
	return true
}

// noPlace returns why m is not taken in, or nil.
func (r *Rendezvous) noPlace(m *member) *watch.Fact {
	var text string
	switch {
	case r.refused != nil:
		late := *r.refused
		if late.Kind != mscclgo.ErrInvalid && late.Kind != mscclgo.ErrSystem { // these are not of time
			if text = late.Text; late.Rank != toRendezvous {
				text = fmt.Sprintf("rank %d failed: %s", late.Culprit(), text)
			}
			late = refusal(late.Kind, late.Culprit(), fmt.Sprintf("this rank came too late: the group gave up at %s, %v ago: %s",
				r.gaveUp.Format(time.TimeOnly), time.Since(r.gaveUp).Round(time.Millisecond), text))
		}
		return &late
	case r.addrs != nil && (m.join.size != r.size || m.rank >= r.size):
		text = fmt.Sprintf("the group of %d ranks is complete already, and this rank, %d, has a world size of %d: give all ranks the same", r.size, m.rank, m.join.size)
	case r.addrs != nil:
		text = fmt.Sprintf("the group of %d ranks is complete already; rank %d is at %s: is there a second rank %d, or is the unique id of an earlier run?", r.size, m.rank, r.addrs[m.rank], m.rank)
	case r.met != nil && !r.hasMet(m):
		text = fmt.Sprintf("the processes of a group meet here for another one, and rank %d is none of them: is there a second rank %d, or is the unique id of an earlier run?", m.rank, m.rank)
	default:
		if text = r.conflict(m); text == "" {
			return nil
		}
		r.log.Error("bootstrap: the group cannot form", "err", text)
		r.refuse(refusal(mscclgo.ErrInvalid, mscclgo.NoRank, text))
	}
	why := refusal(mscclgo.ErrInvalid, mscclgo.NoRank, text)
	return &why
}

// conflict returns the reason why m cannot be in this group, or "".
func (r *Rendezvous) conflict(m *member) string {
	old := r.members[m.rank]
	first := func() int { return slices.Min(slices.Collect(maps.Keys(r.members))) } // all have said the same
	switch {
	case m.join.size != r.size:
		return fmt.Sprintf("the ranks disagree on the world size: rank %d has %d, rank %d has %d",
			first(), r.size, m.rank, m.join.size)
	case m.join.tls != r.tls:
		return fmt.Sprintf("rank %d and rank %d disagree on TLS: set Options.TLS, or %s, alike on all ranks", first(), m.rank, envTLS)
	case m.rank < 0 || m.rank >= r.size:
		return fmt.Sprintf("rank %d is outside a world of %d ranks, 0 to %d", m.rank, r.size, r.size-1)
	case old != nil && old.join.process != m.join.process:
		return fmt.Sprintf("two processes are rank %d: one at %s, one at %s", m.rank, old.join.addr, m.join.addr)
	}
	return ""
}

// peerAddrs returns the members' addresses by rank. A member on this machine that found
// none but a loopback address, such as before a link came up, is reached where those
// from other machines have reached the rendezvous.
func (r *Rendezvous) peerAddrs() []string {
	addrs := make([]string, r.size)
	var here net.IP
	for _, m := range r.members {
		if at := elsewhere(m.nc); at != nil {
			here = at
		}
	}
	for rank, m := range r.members {
		addrs[rank] = m.join.addr
		if host, port, _ := net.SplitHostPort(m.join.addr); here != nil && isLoopback(host) && elsewhere(m.nc) == nil {
			addrs[rank] = net.JoinHostPort(here.String(), port)
		}
	}
	return addrs
}

// complete sends the table to all.
func (r *Rendezvous) complete() {
	r.addrs = r.peerAddrs()
	table := encodeTable(r.addrs)
	r.met = make([][16]byte, r.size)
	for rank, m := range r.members {
		r.met[rank] = m.join.program
		m.enqueue(frame{kind: frameTable, payload: table})
	}
}

// over reports whether the ranks are connected to each other, or will not be.
func (r *Rendezvous) over() bool { return r.forming.Err() != nil }

// refuse ends the rendezvous for all ranks that came and will come, unless it has
// ended already. Nobody waits until the ranks in gone have heard.
func (r *Rendezvous) refuse(why watch.Fact, gone ...int) {
	if r.over() {
		return
	}
	r.refused, r.gaveUp = &why, time.Now()
	for _, rank := range gone {
		r.heard[rank] = true
	}
	r.endForming()
	if r.addrs != nil {
		r.log.Error("bootstrap: the group failed before it was connected", "failed", why.Culprit(), "why", why.Text)
	}
	for _, m := range r.members {
		r.tell(m, why)
	}
}

// tell answers m with a refusal.
func (r *Rendezvous) tell(m *member, why watch.Fact) {
	m.last(frame{kind: frameRefused, payload: why.Encode()})
	r.heard[m.rank] = true
}

// expire ends the rendezvous because the time of a rank is up. The caller holds r.mu.
func (r *Rendezvous) expire() {
	var missing []int
	for rank := range r.size {
		if m := r.members[rank]; m == nil || r.addrs != nil && !m.connected {
			missing = append(missing, rank)
		}
	}
	if r.addrs == nil {
		late := mscclgo.NoRank
		if len(missing) == 1 {
			late = missing[0]
		}
		r.refuse(refusal(mscclgo.ErrTimeout, late, fmt.Sprintf("%d of %d ranks did not come: %s", len(missing), r.size, rankList(missing))), missing...)
		return
	}
	// Each waits for a lower rank. One that is connected may be silent since, and keep those above it waiting.
	late := missing[0]
	if p := parent(late); p >= 0 && r.members[p].silence.heard.Before(r.members[late].silence.heard.Add(-2*r.members[p].timeout()/beatShare)) {
		late = p
	}
	r.refuse(refusal(mscclgo.ErrTimeout, late, fmt.Sprintf("time was up, and rank %d has not connected to the others: %d of %d ranks are not connected: %s", late, len(missing), r.size, rankList(missing))))
}

// awaitRefused returns when the ranks of a group that cannot form have heard why, or after patience. Rank 0, which
// calls it, does not count, nor do ranks that are gone.
func (r *Rendezvous) awaitRefused(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !r.allHeard() && sleep(ctx, 5*time.Millisecond) == nil {
	}
}

// allHeard reports whether all ranks but 0 have heard why the group cannot form. The largest world size that a rank
// claims tells how many they are.
func (r *Rendezvous) allHeard() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := true
	for rank := 1; rank < r.largest && r.refused != nil; rank++ {
		all = all && r.heard[rank]
	}
	return all
}

// rankList formats ranks, in rising order, as "rank 3" or "ranks 3, 5-8".
func rankList(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		} else {
			parts = append(parts, strconv.Itoa(ranks[i]))
		}
		i = j + 1
	}
	return clip("ranks "+strings.Join(parts, ", "), 1024)
}
