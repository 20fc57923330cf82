package bootstrap

import (
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/watch"
)

const (
	// DefaultHeartbeatTimeout is how long a rank may be silent in Connect if
	// Options.HeartbeatTimeout is zero.
	DefaultHeartbeatTimeout = 5 * time.Second

	minHeartbeat = 100 * time.Millisecond
	// beatShare is the part of the time-out after which a sign of life is sent, and looked
	// for.
	beatShare = 10
	// askShare is the part after which ranks that are connected ask each other for one.
	askShare = 20
	// quietShare is the part after which a rank that others wait for is suspected.
	quietShare = 4
)

// A silence is what is known of the signs of life of one that gives them.
type silence struct {
	far         bool // it is of another machine
	beats       uint64
	heard, look time.Time
}

// lasts reports whether there was no sign of life for the time-out; beats counts them. It
// is called at least beatShare times in that time. After a gap in which nobody looked, silence on
// this machine counts from then on, as perhaps nobody ran there; see grace.AfterGap for others.
func (s *silence) lasts(now time.Time, beats uint64, timeout time.Duration) bool {
	gap := now.Sub(s.look)
	late := gap > timeout/grace.GapShare
	switch {
	case s.look.IsZero() || beats != s.beats || late && !s.far:
		s.beats, s.heard = beats, now
	case late:
		s.heard = grace.AfterGap(s.heard, now, gap, timeout)
	}
	s.look = now
	return now.Sub(s.heard) >= timeout
}

// A pulse is a rank's connection to the rendezvous, on which it gives signs of life once it
// has joined, until it closes it.
type pulse struct {
	net.Conn
	heard  atomic.Uint64 // signs of life of the rendezvous
	silent atomic.Bool   // there were none for too long; then the connection is closed
	stop   chan struct{}
	once   sync.Once
}

func newPulse(nc net.Conn) *pulse { return &pulse{Conn: nc, stop: make(chan struct{})} }

// Close ends the signs of life too.
func (p *pulse) Close() error {
	p.once.Do(func() { close(p.stop) })
	return p.Conn.Close()
}

// beat gives signs of life, if they are to be given. The rendezvous has to give them if
// hears is set.
func (p *pulse) beat(timeout time.Duration, hears bool) {
	if timeout <= 0 {
		return
	}
	go func() {
		tick := time.NewTicker(timeout / beatShare)
		defer tick.Stop()
		s := silence{far: elsewhere(p.Conn) != nil}
		alive := frame{kind: frameAlive}.encode()
		for {
			select {
			case <-p.stop:
				return
			case now := <-tick.C:
				p.Conn.Write(alive) // the reader finds out if it cannot be sent
				if hears && s.lasts(now, p.heard.Load(), timeout) {
					p.silent.Store(true)
					p.Conn.Close()
					return
				}
			}
		}
	}()
}

// readNews reads the next frame of the rendezvous that is not a sign of life.
func (p *pulse) readNews() (frame, error) {
	for {
		f, err := readFrame(p.Conn)
		if err != nil || f.kind != frameAlive {
			return f, err
		}
		p.heard.Add(1)
	}
}

// watchNeighbours asks the ranks from which this one receives news, and those that receive
// theirs from it, for signs of life, and fails the group if one gives none for too long:
// what it should pass on reaches nobody behind it, and its connections may stay for hours.
func (b *Bootstrap) watchNeighbours() {
	timeout := b.options.HeartbeatTimeout
	every := timeout / askShare
	if timeout <= 0 {
		every = DefaultHeartbeatTimeout / askShare // only to look at the links
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	known := map[*conn]*silence{}
	for {
		select {
		case <-b.life.Done():
			return
		case <-b.failed:
			return
		case now := <-tick.C:
			if b.look(now); timeout <= 0 {
				continue
			}
			// A little later than a communicator, which knows more.
			if rank := b.ask(now, known, timeout+every); rank >= 0 {
				text := fmt.Sprintf("it has given no sign of life to rank %d for %v: it is stopped, its host hangs, or the network to it is down", b.rank, timeout+every)
				if peer, since := b.lossy(); peer == rank && !since.IsZero() {
					text += "; its host does not acknowledge what it is sent, as where large messages do not pass, since MTUs of interfaces and switches differ"
				}
				b.fail(watch.Lost(b.rank, rank, text))
			}
		}
	}
}

// look looks whether the hosts of the peers acknowledge what they are sent.
func (b *Bootstrap) look(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.peers {
		for c := range p.conns {
			c.lossy = c.link.Look(c.nc, now)
		}
	}
}

// ask asks the neighbours, and returns one that is silent, or -1. known is what was known of
// the connections at the call before.
func (b *Bootstrap) ask(now time.Time, known map[*conn]*silence, timeout time.Duration) (silent int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	silent = -1
	asked := map[*conn]bool{}
	for _, p := range b.peers {
		c := p.out
		if b.closing || c == nil || !p.present() || b.watchParent(b.rank) != p.rank && b.watchParent(p.rank) != b.rank {
			continue
		}
		asked[c] = true
		if known[c] == nil {
			known[c] = &silence{far: elsewhere(c.nc) != nil}
		}
		if known[c].lasts(now, c.signs.Load(), timeout) {
			silent = p.rank
		}
		p.quiet = now.Sub(known[c].heard) >= timeout/quietShare
		c.enqueue(frame{kind: frameAsk})
	}
	maps.DeleteFunc(known, func(c *conn, _ *silence) bool { return !asked[c] })
	return silent
}

// lossy returns the peer whose host has acknowledged nothing for longest, while this one sends again what it
// sent there, and since when; see grace.Lossy.
func (b *Bootstrap) lossy() (peer int, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.peers {
		for c := range p.conns {
			if at := c.lossy; !at.IsZero() && (since.IsZero() || at.Before(since)) {
				peer, since = p.rank, at
			}
		}
	}
	return peer, since
}

// isQuiet reports whether a neighbour has given no sign of life for a while.
func (b *Bootstrap) isQuiet(rank int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peers[rank].quiet
}

// errSilent is the error of a rank for a rendezvous on rank 0 that is silent.
func (j *joiner) errSilent() error {
	return mscclgo.Errorf(mscclgo.ErrRemote, opConnect, "rank 0, which holds the rendezvous at %s, has given no sign of life for %v: is it stopped?",
		j.o.ID.Addr(), j.o.HeartbeatTimeout).At(j.o.Rank, 0)
}

// readMember reads the next frame of a rank that is not a sign of life.
func (m *member) readMember() (frame, error) {
	for {
		f, err := readFrame(m.nc)
		if err != nil || f.kind != frameAlive {
			return f, err
		}
		m.beats.Add(1)
	}
}

// alive sends a sign of life, unless the member does not take what was sent before.
func (m *member) alive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended && len(m.queue) == 0 {
		m.queue = append(m.queue, frame{kind: frameAlive})
		m.wake.Signal()
	}
}

// watchOver has the rendezvous look for ranks that are silent, as often as the shortest
// time-out of those that came needs. The caller holds r.mu.
func (r *Rendezvous) watchOver(timeout time.Duration) {
	every := timeout / beatShare
	switch {
	case timeout <= 0:
	case r.looking == nil:
		r.lookEvery = every
		r.looking = time.AfterFunc(every, r.look)
	case every < r.lookEvery:
		r.lookEvery = every
		r.looking.Reset(every)
	}
}

// look gives all members a sign of life, and ends the group if one has given none for too
// long.
func (r *Rendezvous) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.refused != nil || r.failure != nil || len(r.members) == 0 {
		r.looking = nil
		return
	}
	now := time.Now()
	var quiet *member
	for _, m := range r.members {
		m.alive()
		if m.join.silence > 0 && m.silence.lasts(now, m.beats.Load(), m.join.silence) && (quiet == nil || m.silence.heard.Before(quiet.silence.heard)) {
			quiet = m
		}
	}
	r.looking.Reset(r.lookEvery)
	if quiet == nil {
		return
	}
	text := fmt.Sprintf("has given no sign of life for %v: its process, at %s, is stopped, or its host is silent", quiet.join.silence, quiet.join.addr)
	if r.table == nil {
		r.refuse(refusal(mscclgo.ErrRemote, quiet.rank, fmt.Sprintf("rank %d, without which the group cannot form, %s", quiet.rank, text)))
	} else {
		r.fail(watch.Lost(toRendezvous, quiet.rank, "before the ranks were connected it "+text))
	}
}
