package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// A Rendezvous is where the ranks of one group find each other. Each rank sends
// its number, the world size and its own address. When the last has come, all
// receive the table of addresses, and the group no longer needs the Rendezvous.
//
// [Connect] on rank 0 opens one for an id from [NewUniqueID] or the environment. A
// launcher, or a rank 0 that can pass its id to the others by other means, opens
// its own, and so has the port before any rank starts.
//
// A dialer that does not prove to have the id is refused and logged. Each rank
// that joins chooses whether it does so under TLS.
type Rendezvous struct {
	id  UniqueID
	log *slog.Logger
	acc *handshake.Acceptor

	member *handshake.Member

	mu      sync.Mutex
	size    int  // the world size of the first rank that came
	tls     bool // whether that rank encrypts
	first   int  // that rank
	joins   int  // ranks that came, those that were refused included
	members map[int]*member
	table   []byte   // set when the group is complete
	refused *refusal // set when the group can no longer form
	timer   *time.Timer
	expires time.Time
	changed chan struct{} // closed and replaced at every join
	closed  bool
}

// A member is a rank that came and waits for the others.
type member struct {
	rank int
	nc   net.Conn
	join joinMessage
	sent sync.Once
}

// NewRendezvous listens at addr, "host:port", and returns the rendezvous of a
// new group. If the port is 0 the system chooses one. If the host is empty it
// listens on every address of this machine, and the id has those that other
// machines may reach. A nil logger discards.
//
// The caller closes the rendezvous; a group that is complete stays.
func NewRendezvous(addr string, log *slog.Logger) (*Rendezvous, error) {
	const op = "bootstrap: open a rendezvous"
	host, _, err := splitHostPort(addr)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "address %q: %w", addr, err)
	}
	hosts := []string{host}
	if host == "" {
		if hosts, err = machineAddrs(); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot list this machine's addresses: %w", err)
		}
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot listen at %s: %w", addr, err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return serveRendezvous(ln, newID(hosts, uint16(port), false), log), nil
}

// hostRendezvous opens, on rank 0, the rendezvous of a hosted id. If the id has a
// name, which this machine may resolve to another address than its peers do, or an
// address that is not this machine's (a service's, for example), it listens on
// every address. It waits a short while for a port that an ending group still
// holds.
func hostRendezvous(ctx context.Context, id UniqueID, log *slog.Logger) (*Rendezvous, error) {
	const op = "bootstrap: open the rendezvous"
	wait, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var lc net.ListenConfig
	addr, anywhere := id.addrs()[0], ":"+strconv.Itoa(int(id.port))
	if net.ParseIP(id.hosts) == nil && !isLoopback(id.hosts) {
		addr = anywhere
	}
	for {
		ln, err := lc.Listen(wait, "tcp", addr)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			ln, err = lc.Listen(wait, "tcp", anywhere)
		}
		if err == nil {
			return serveRendezvous(ln, id, log), nil
		}
		if errors.Is(err, syscall.EADDRINUSE) && sleep(wait, 50*time.Millisecond) == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, mscclgo.FromContext(ctx, op, "while waiting for the port of "+addr).At(0, mscclgo.NoRank)
		}
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op,
			"cannot listen at %s; is another group using the port? %w", addr, err).At(0, mscclgo.NoRank)
	}
}

func serveRendezvous(ln net.Listener, id UniqueID, log *slog.Logger) *Rendezvous {
	r := &Rendezvous{id: id, log: logger(log), member: id.member(handshake.Either), members: map[int]*member{}, changed: make(chan struct{})}
	r.acc = handshake.NewAcceptor("bootstrap", r.log, r.shake, ln)
	return r
}

// ID returns the group's id, for [Options].
func (r *Rendezvous) ID() UniqueID { return r.id }

// Close stops listening. Ranks that still wait for others get an ErrAborted. It
// is safe to call twice.
func (r *Rendezvous) Close() error {
	r.acc.Stop()
	r.mu.Lock()
	r.refuse(refusal{mscclgo.ErrAborted, "the rendezvous was closed before all ranks had come"})
	if r.timer != nil {
		r.timer.Stop()
	}
	r.closed = true
	r.mu.Unlock()
	r.acc.Wait()
	return nil
}

// shake runs the handshake of a rank and reads its join.
func (r *Rendezvous) shake(raw net.Conn) (func() error, error) {
	var rank int
	nc, err := r.member.Server(raw, func(_ net.Conn, b []byte) error {
		c, err := decodeClaim(b)
		if err != nil {
			return err
		}
		if c.role != roleJoin || c.to != toRendezvous {
			return fmt.Errorf("%v came to the rendezvous", c)
		}
		rank = int(c.from)
		return nil
	})
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Now().Add(handshake.DefaultPatience))
	f, err := readFrame(nc)
	if err != nil {
		return nil, fmt.Errorf("rank %d: waiting for its join: %w", rank, err)
	}
	if f.kind != frameJoin {
		return nil, fmt.Errorf("rank %d: a frame of kind %d instead of a join", rank, f.kind)
	}
	join, err := decodeJoin(f.payload)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", rank, err)
	}
	nc.SetDeadline(time.Time{})
	return func() error { r.serve(&member{rank: rank, nc: nc, join: join}); return nil }, nil
}

// serve keeps m until it has its answer or leaves.
func (r *Rendezvous) serve(m *member) {
	defer m.nc.Close()
	if !r.admit(m) {
		return
	}
	// A rank sends nothing more: this returns when the rank, which has its answer
	// or gave up, closes.
	readFrame(m.nc)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.members[m.rank] == m && r.table == nil && r.refused == nil {
		r.log.Warn("bootstrap: a rank left the rendezvous before the others came", "rank", m.rank, "from", m.join.addr)
		delete(r.members, m.rank)
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
	r.joins++
	close(r.changed)
	r.changed = make(chan struct{})
	switch old := r.members[m.rank]; {
	case r.refused != nil:
		m.answer(frame{kind: frameRefused, payload: r.refused.encode()})
		return true
	case r.table != nil:
		m.answer(frame{kind: frameRefused, payload: refusal{mscclgo.ErrInvalid, fmt.Sprintf(
			"the group of %d ranks is complete already; rank %d is at %s: is there a second rank %d, or is the unique id of an earlier run?",
			r.size, m.rank, old.describe(), m.rank)}.encode()})
		return true
	case r.size == 0:
		r.size, r.tls, r.first = m.join.size, m.join.tls, m.rank
	case old != nil && old.join.process == m.join.process:
		old.nc.Close() // it lost that connection and tries again
	}
	if text := r.conflict(m); text != "" {
		r.log.Error("bootstrap: the group cannot form", "err", text)
		r.refuse(refusal{mscclgo.ErrInvalid, text})
		m.answer(frame{kind: frameRefused, payload: r.refused.encode()})
		return true
	}
	r.members[m.rank] = m
	if len(r.members) == r.size {
		r.complete()
		return true
	}
	r.expireBy(time.Now().Add(m.join.left))
	return true
}

// describe returns a member's address; a nil one has none.
func (m *member) describe() string {
	if m == nil {
		return "no address"
	}
	return m.join.addr
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

// complete sends the table to all.
func (r *Rendezvous) complete() {
	addrs := make([]string, r.size)
	for rank, m := range r.members {
		addrs[rank] = m.join.addr
	}
	r.table = encodeTable(addrs)
	if r.timer != nil {
		r.timer.Stop()
	}
	r.answerAll(frame{kind: frameTable, payload: r.table})
}

// refuse ends the rendezvous for all ranks that came and will come, unless it has
// ended already.
func (r *Rendezvous) refuse(why refusal) {
	if r.table != nil || r.refused != nil {
		return
	}
	r.refused = &why
	r.answerAll(frame{kind: frameRefused, payload: why.encode()})
}

func (r *Rendezvous) answerAll(f frame) {
	for _, m := range r.members {
		m.answer(f)
	}
}

// answer sends f, which ends m's wait. A member that does not read delays
// nobody, and holds its connection for a bounded time.
func (m *member) answer(f frame) {
	m.sent.Do(func() {
		m.nc.SetDeadline(time.Now().Add(handshake.DefaultPatience))
		go m.nc.Write(f.encode())
	})
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
	if time.Now().Before(r.expires) {
		return // a stopped timer's late call
	}
	var missing []int
	for rank := range r.size {
		if r.members[rank] == nil {
			missing = append(missing, rank)
		}
	}
	r.refuse(refusal{mscclgo.ErrTimeout, fmt.Sprintf("%d of %d ranks did not come: %s",
		len(missing), r.size, rankList(missing))})
}

// awaitRefused returns when size ranks of a group that cannot form have come, and
// so know it, or after patience.
func (r *Rendezvous) awaitRefused(ctx context.Context, size int, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r.mu.Lock()
		over := r.refused == nil || r.joins >= size
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

// rankList formats ranks, in rising order, as "ranks 3, 5-8".
func rankList(ranks []int) string {
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
