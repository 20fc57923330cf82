package bootstrap

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// lostTime is how long a rank whose connection to the rendezvous broke, or that lost
// the rendezvous, has to connect again before the other side is taken for dead.
const lostTime = 500 * time.Millisecond

// A member is a rank at the rendezvous.
type member struct {
	rank  int
	nc    net.Conn
	join  joinMessage
	until time.Time // when it gives up

	beats   atomic.Uint64 // its signs of life
	silence silence       // with the rendezvous' lock held

	mu    sync.Mutex
	queue []frame
	wake  sync.Cond
	ended bool // nothing more will be queued
}

func newMember(rank int, nc net.Conn, join joinMessage) *member {
	m := &member{rank: rank, nc: nc, join: join, until: time.Now().Add(join.left), silence: silence{far: elsewhere(nc) != nil}}
	m.wake.L = &m.mu
	return m
}

// send queues f. A member that does not read delays nobody, and holds its connection for
// a bounded time.
func (m *member) send(f frame) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.queue = append(m.queue, f)
		m.wake.Signal()
	}
}

// end closes the connection when what is queued has been sent.
func (m *member) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.wake.Signal()
}

// answer sends f, which is the last that the rank hears.
func (m *member) answer(f frame) {
	m.nc.SetReadDeadline(time.Now().Add(handshake.DefaultPatience)) // until it has read it and closes
	m.send(f)
}

// write sends what is queued.
func (m *member) write() {
	for {
		m.mu.Lock()
		for len(m.queue) == 0 && !m.ended {
			m.wake.Wait()
		}
		if len(m.queue) == 0 {
			m.mu.Unlock()
			m.nc.Close()
			return
		}
		f := m.queue[0]
		m.queue = m.queue[1:]
		m.mu.Unlock()
		m.nc.SetWriteDeadline(time.Now().Add(handshake.DefaultPatience))
		m.nc.Write(f.encode())
	}
}

// serve keeps m until it is connected to the other ranks, has heard that it will not be,
// or leaves.
func (r *Rendezvous) serve(m *member) {
	defer m.nc.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.end()
	wg.Go(m.write)
	r.awaitOver(m)
	if !r.admit(m) {
		return
	}
	f, err := m.readMember()
	var why watch.Fact
	if err == nil && f.kind == frameFailed {
		why, err = watch.DecodeFact(f.payload, m.join.size)
	} else if err == nil && f.kind != frameGoodbye && f.kind != frameConnected {
		err = fmt.Errorf("it sent a frame of kind %d", f.kind)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[m.rank] != m || r.refused != nil || r.closed {
		return
	}
	delete(r.members, m.rank)
	switch {
	case err == nil && f.kind == frameGoodbye && r.table == nil:
		r.forget(m)
		r.log.Warn("bootstrap: a rank left the rendezvous before the others came", "rank", m.rank, "from", m.join.addr)
	case err == nil && f.kind == frameConnected && r.table != nil:
		if len(r.members) == 0 {
			r.finish()
		}
	case err == nil && f.kind == frameGoodbye:
		r.fail(watch.Lost(toRendezvous, m.rank, "it gave up before the ranks were connected"))
	case r.table == nil: // also if it says that it is connected, to whom it cannot be
		r.log.Warn("bootstrap: the rendezvous lost a rank before the others came", "rank", m.rank, "from", m.join.addr)
		r.lost[m.rank] = time.AfterFunc(lostTime, func() { r.lose(m) })
	case err == nil:
		r.fail(why)
	default:
		r.fail(watch.Lost(toRendezvous, m.rank, fmt.Sprintf("its connection to the rendezvous ended before the ranks were connected: its process, at %s, has ended", m.join.addr)))
	}
}

// lose ends the rendezvous because m died, unless it has come back.
func (r *Rendezvous) lose(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost[m.rank] == nil || r.closed {
		return
	}
	r.refuse(refusal(mscclgo.ErrRemote, m.rank, fmt.Sprintf(
		"rank %d, at %s, was lost before all ranks had come: its process has ended", m.rank, m.join.addr)), m.rank)
}

// noJoin notes that a rank has proved that it is of the group, and then has not joined it: its
// process has ended, is stopped, or its host is silent, unless it comes again in a time-out of
// those that wait. One that made room for others comes again at once.
func (r *Rendezvous) noJoin(rank int, from net.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	silence := time.Duration(0)
	for _, m := range r.members {
		silence = max(silence, m.join.silence)
	}
	if silence == 0 || r.closed || r.table != nil || rank >= r.size || r.members[rank] != nil || r.lost[rank] != nil {
		return
	}
	r.lost[rank] = time.AfterFunc(silence, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.lost[rank] != nil && !r.closed {
			r.refuse(refusal(mscclgo.ErrRemote, rank, fmt.Sprintf(
				"rank %d, without which the group cannot form, came from %v and then was silent: its process has ended or is stopped, or its host is silent", rank, from)), rank)
		}
	})
}

// Ended tells the ranks that are not connected to each other yet that the process of one
// has ended, and how ("was killed"), which the process that started it knows even if it never
// came here. They fail with an ErrRemote whose peer it is. The rendezvous is not concerned
// with a rank any more once it is connected.
func (r *Rendezvous) Ended(rank int, how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || rank < 0 || r.size > 0 && rank >= r.size:
	case r.table == nil:
		r.refuse(endedEarly(rank, how))
	case r.members[rank] == nil:
		r.ended[rank] = how
	default:
		r.fail(watch.Lost(toRendezvous, rank, "it "+how+" before the ranks were connected"))
	}
}

func endedEarly(rank int, how string) watch.Fact {
	return refusal(mscclgo.ErrRemote, rank, fmt.Sprintf("rank %d %s before all ranks had come", rank, how))
}

// Stopped tells the ranks that came that the process of one has been stopped by a signal
// since a time, which the process that started it can see even if it never came here. They are
// told, and fail with an ErrRemote whose peer it is, once that is longer ago than the heartbeat
// time-out of one of them, so Stopped is called again and again while the process is stopped.
// It reports whether they were told.
func (r *Rendezvous) Stopped(rank, process int, since time.Time) (told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	impatient := false
	for _, m := range r.members {
		impatient = impatient || m.rank != rank && m.join.silence > 0 && time.Since(since) >= m.join.silence
	}
	text := fmt.Sprintf("is stopped (process %d): a signal, a shell or a debugger stopped it", process)
	switch {
	case !impatient || r.closed || r.refused != nil || r.failure != nil || rank < 0 || rank >= r.size:
		return false
	case r.table == nil:
		r.refuse(refusal(mscclgo.ErrRemote, rank, fmt.Sprintf("rank %d, without which the group cannot form, %s", rank, text)))
		return true
	case r.members[rank] != nil:
		r.fail(watch.Lost(toRendezvous, rank, "it "+text))
		return true
	}
	return false
}

// fail tells the ranks of a complete group that are not connected yet why they will not
// be. The first failure counts.
func (r *Rendezvous) fail(f watch.Fact) {
	if r.failure != nil {
		return
	}
	r.failure = &f
	r.finish()
	r.log.Error("bootstrap: the group failed before it was connected", "failed", f.Culprit(), "why", f.Text)
	for _, m := range r.members {
		m.answer(failed(f))
	}
}

// awaitOver waits until the ranks are connected where m was one of them, so that it comes for another group.
func (r *Rendezvous) awaitOver(m *member) {
	r.mu.Lock()
	wait := r.table != nil && r.failure == nil && r.hasMet(m) && r.members[m.rank] == nil
	over := r.over
	r.mu.Unlock()
	if !wait {
		return
	}
	timer := time.NewTimer(time.Until(m.until))
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// hasMet reports whether m is a process of the last group that was complete, and has the rank it had.
func (r *Rendezvous) hasMet(m *member) bool {
	return m.rank >= 0 && m.rank < len(r.met) && r.met[m.rank] == m.join.program
}

// mayMeetAgain reports whether m comes for another group. Ranks that look for the rendezvous
// of the next group may find the one that rank 0 holds and is about to close.
func (r *Rendezvous) mayMeetAgain(m *member) bool {
	return !r.closed && !r.id.hosted && r.table != nil && r.failure == nil && len(r.members) == 0 && r.hasMet(m)
}

// meetAgain has the processes of the last group meet for another one.
func (r *Rendezvous) meetAgain() {
	r.table, r.addrs, r.timer = nil, nil, nil
	clear(r.told)
	r.over = make(chan struct{})
	for rank, how := range r.ended {
		r.refuse(endedEarly(rank, how))
	}
}

// admit adds m to the group, answers it, and reports whether it stays connected
// until it has read the answer.
func (r *Rendezvous) admit(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.largest = max(r.largest, m.join.size)
	if r.mayMeetAgain(m) {
		if r.meetAgain(); r.refused != nil {
			r.tell(m, *r.refused)
			return true
		}
	}
	old := r.members[m.rank]
	switch {
	case r.closed:
		return false
	case r.refused != nil:
		late := *r.refused
		if late.Kind != mscclgo.ErrInvalid && late.Kind != mscclgo.ErrSystem { // these are not of time
			late.Text = fmt.Sprintf("this rank came too late: the group gave up at %s, %v ago: %s",
				r.gaveUp.Format(time.TimeOnly), time.Since(r.gaveUp).Round(time.Millisecond), late.Text)
		}
		r.tell(m, late)
		return true
	case r.table != nil && r.failure != nil:
		r.tell(m, refusal(r.failure.Kind, r.failure.Culprit(), fmt.Sprintf(
			"this rank came too late: the group of %d ranks was complete and rank %d failed: %s", r.size, r.failure.Culprit(), r.failure.Text)))
		return true
	case r.table != nil:
		text := fmt.Sprintf("the group of %d ranks is complete already", r.size)
		if m.join.size != r.size || m.rank >= r.size {
			text += fmt.Sprintf(", and this rank, %d, has a world size of %d: give all ranks the same", m.rank, m.join.size)
		} else {
			text += fmt.Sprintf("; rank %d is at %s: is there a second rank %d, or is the unique id of an earlier run?", m.rank, r.addrs[m.rank], m.rank)
		}
		r.tell(m, refusal(mscclgo.ErrInvalid, mscclgo.NoRank, text))
		return true
	case len(r.members) == 0 && len(r.lost) == 0:
		r.size, r.tls, r.first = m.join.size, m.join.tls, m.rank
		if r.checkRoom(r.size); r.refused != nil {
			r.tell(m, *r.refused)
			return true
		}
	case old != nil && old.join.process == m.join.process:
		old.nc.Close() // it lost that connection and tries again
	}
	if r.met != nil && !r.hasMet(m) {
		r.tell(m, refusal(mscclgo.ErrInvalid, mscclgo.NoRank, fmt.Sprintf(
			"the processes of a group meet here for another one, and rank %d is none of them: is there a second rank %d, or is the unique id of an earlier run?", m.rank, m.rank)))
		return true
	}
	if text := r.conflict(m); text != "" {
		r.log.Error("bootstrap: the group cannot form", "err", text)
		r.refuse(refusal(mscclgo.ErrInvalid, mscclgo.NoRank, text))
		r.tell(m, *r.refused)
		return true
	}
	if t := r.lost[m.rank]; t != nil {
		t.Stop()
		delete(r.lost, m.rank)
	}
	r.members[m.rank] = m
	r.watchOver(m.join.silence)
	if len(r.members) == r.size {
		r.complete()
		return true
	}
	r.expireBy(m.until)
	return true
}

// forget has a rank that left before the others came take its demands with it.
func (r *Rendezvous) forget(m *member) {
	if !m.until.After(r.expires) && r.timer != nil {
		r.timer.Stop()
		r.timer = nil
		for _, other := range r.members {
			r.expireBy(other.until)
		}
	}
	if m.rank == r.first {
		for r.first = range r.members { // all have said the same
			break
		}
	}
}

// conflict returns the reason why m cannot be in this group, or "".
func (r *Rendezvous) conflict(m *member) string {
	old := r.members[m.rank]
	switch {
	case m.join.size != r.size:
		return fmt.Sprintf("the ranks disagree on the world size: rank %d has %d, rank %d has %d",
			r.first, r.size, m.rank, m.join.size)
	case m.join.tls != r.tls:
		return fmt.Sprintf("rank %d and rank %d disagree on TLS: set Options.TLS, or %s, alike on all ranks", r.first, m.rank, EnvTLS)
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
	for rank, m := range r.members {
		addrs[rank] = m.join.addr
		if at := elsewhere(m.nc); at != nil {
			here = at
		}
	}
	if here == nil {
		return addrs
	}
	for rank, m := range r.members {
		if host, port, _ := net.SplitHostPort(addrs[rank]); isLoopback(host) && elsewhere(m.nc) == nil {
			addrs[rank] = net.JoinHostPort(here.String(), port)
		}
	}
	return addrs
}

// complete sends the table to all.
func (r *Rendezvous) complete() {
	r.addrs = r.peerAddrs()
	r.table = encodeTable(r.addrs)
	r.met = make([][16]byte, r.size)
	for rank, m := range r.members {
		r.met[rank] = m.join.program
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, m := range r.members {
		m.send(frame{kind: frameTable, payload: r.table})
	}
}

// refuse ends the rendezvous for all ranks that came and will come, unless it has
// ended already. Nobody waits until the ranks in gone have heard.
func (r *Rendezvous) refuse(why watch.Fact, gone ...int) {
	if r.table != nil || r.refused != nil {
		return
	}
	r.refused, r.gaveUp = &why, time.Now()
	for _, rank := range gone {
		r.told[rank] = true
	}
	r.finish()
	for _, m := range r.members {
		r.tell(m, why)
	}
}

// tell answers m with a refusal.
func (r *Rendezvous) tell(m *member, why watch.Fact) {
	m.answer(frame{kind: frameRefused, payload: why.Encode()})
	r.told[m.rank] = true
	close(r.changed)
	r.changed = make(chan struct{})
}

// expireBy ends the rendezvous at t, if not before, because a rank gives up then:
// the group cannot form without it, and the others should learn who was missing.
func (r *Rendezvous) expireBy(t time.Time) {
	if r.timer != nil && !t.Before(r.expires) {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.expires = t
	r.timer = time.AfterFunc(time.Until(t), r.expire)
}

func (r *Rendezvous) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil || time.Now().Before(r.expires) {
		return // a stopped timer's late call
	}
	var missing []int
	for rank := range r.size {
		if r.members[rank] == nil {
			missing = append(missing, rank)
		}
	}
	late := mscclgo.NoRank
	if len(missing) == 1 {
		late = missing[0]
	}
	r.refuse(refusal(mscclgo.ErrTimeout, late, fmt.Sprintf("%d of %d ranks did not come: %s", len(missing), r.size, rankList(missing))), missing...)
}

// awaitRefused returns when the ranks of a group that cannot form have heard why, or after patience. Rank 0, which
// calls it, does not count, nor do ranks that are gone. The largest world size that a rank claims tells how many they are.
func (r *Rendezvous) awaitRefused(ctx context.Context, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r.mu.Lock()
		over := r.refused == nil
		if !over {
			over = true
			for rank := 1; rank < r.largest; rank++ {
				over = over && r.told[rank]
			}
		}
		changed := r.changed
		r.mu.Unlock()
		if over {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
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
