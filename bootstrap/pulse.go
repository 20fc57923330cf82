package bootstrap

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/watch"
)

const (
	// DefaultHeartbeatTimeout is how long a rank may be silent in Connect if
	// Options.HeartbeatTimeout is zero.
	DefaultHeartbeatTimeout = 5 * time.Second

	minHeartbeat = 100 * time.Millisecond
	// beatShare is the part of the time-out after which the ends of a connection to a rendezvous ask
	// each other for a sign of life, and askShare the part for two ranks that are connected.
	beatShare = 10
	askShare  = 20
	// quietShare is the part after which a rank that others wait for is suspected.
	quietShare = 4
)

// A silence holds what is known of another's signs of life.
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

// A place is a process's connection to a rendezvous.
type place struct {
	*conn
	heard  chan frame  // what the rendezvous says, until the connection ends
	err    error       // why it ended, once heard is closed
	silent atomic.Bool // the rendezvous gave no sign of life for too long
}

// serve passes on what the rendezvous says until the connection ends.
func (p *place) serve() {
	p.err = p.conn.serve(func(f frame) error {
		select {
		case p.heard <- f:
			return nil
		default:
			return fmt.Errorf("a frame of kind %d too many", f.kind)
		}
	})
	close(p.heard)
}

// watch asks the rendezvous for signs of life, and ends the connection if there are none for the time-out.
func (p *place) watch(timeout time.Duration) {
	again(timeout/beatShare, func(now time.Time) bool {
		p.owner.Lock()
		defer p.owner.Unlock()
		if p.ask(now, timeout) {
			p.silent.Store(true)
			p.nc.Close()
		}
		select {
		case <-p.written:
			return false
		default:
			return !p.silent.Load()
		}
	})
}

// again calls f after each time d, until f returns false.
func again(d time.Duration, f func(now time.Time) bool) {
	time.AfterFunc(d, func() {
		if f(time.Now()) {
			again(d, f)
		}
	})
}

// newPlace begins to listen to a rendezvous.
func newPlace(c *conn) *place {
	p := &place{conn: c, heard: make(chan frame, 4)}
	go p.serve()
	return p
}

// close ends the connection when what is queued has been sent.
func (p *place) close() {
	p.endWithin(verdictPatience)
	<-p.written
	p.nc.Close()
	for range p.heard {
	}
}

// watchNeighbours asks the ranks that pass news to this one, or receive it from here, for signs of life, and
// fails the group if one gives none for too long: no news would reach the ranks behind it, and its
// connections may stay for hours.
func (b *Bootstrap) watchNeighbours() {
	timeout := b.options.HeartbeatTimeout
	every := timeout / askShare
	if timeout <= 0 {
		every = DefaultHeartbeatTimeout / askShare // only to look at the links
	}
	again(every, func(now time.Time) bool {
		// A little later than a communicator, which knows more.
		if rank := b.ask(now, timeout+every); rank >= 0 && timeout > 0 {
			text := fmt.Sprintf("it has given no sign of life to rank %d for %v: it is stopped, its host hangs, or the network to it is down", b.rank, timeout+every)
			if peer, since := b.Internal().Lossy(); peer == rank && !since.IsZero() {
				text += "; its host does not acknowledge what it is sent, as where large messages do not pass, since MTUs of interfaces and switches differ"
			}
			b.fail(watch.Lost(b.rank, rank, text))
		}
		return b.Err() == nil && !b.isClosing()
	})
}

// ask looks whether the hosts of the peers acknowledge what they are sent, and asks the neighbours for signs of
// life where those count. It returns one that is silent, or -1.
func (b *Bootstrap) ask(now time.Time, timeout time.Duration) (silent int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	silent = -1
	for _, p := range b.peers {
		for c := range p.conns {
			c.lossy = c.link.Look(c.nc, now)
		}
		if p.out == nil || b.closing || b.options.HeartbeatTimeout <= 0 || !p.present() || b.watchParent(b.rank) != p.rank && b.watchParent(p.rank) != b.rank {
			continue
		}
		if p.out.ask(now, timeout) {
			silent = p.rank
		}
		p.quiet = now.Sub(p.out.silence.heard) >= timeout/quietShare
	}
	return silent
}

func (b insideBootstrap) Lossy() (peer int, since time.Time) {
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

// timeout returns for how long m may be silent. Of one that may be so for ever, too, it is known who lives when the time is up.
func (m *member) timeout() time.Duration { return cmp.Or(m.join.silence, DefaultHeartbeatTimeout) }

// lookAfter asks m for signs of life, as often as its time-out needs, and ends the group if it has given none for too long,
// or once m gives up: the group cannot form without it, and the others should learn who was missing. The caller holds r.mu.
func (r *Rendezvous) lookAfter(m *member) {
	timeout := m.timeout()
	time.AfterFunc(min(timeout/beatShare, time.Until(m.until)), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		now := time.Now()
		switch {
		case r.members[m.rank] != m || r.over():
		case !now.Before(m.until):
			r.expire()
		case m.ask(now, timeout) && m.join.silence > 0:
			r.refuse(without(m.rank, "has given no sign of life for %v: its process, at %s, is stopped, or its host is silent", m.join.silence, m.join.addr))
		default:
			r.lookAfter(m)
		}
	})
}
