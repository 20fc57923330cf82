package bootstrap

import (
	"context"
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo/internal/watch"
)

const (
	// farewellPatience bounds how long Close looks for a rank that stays.
	farewellPatience = time.Second
	// settleTime is how long the ranks below one that left have to connect to
	// another before that one looks for them.
	settleTime = 500 * time.Millisecond
	// deathTime is how long a rank that cannot be reached may be leaving before it
	// is taken for dead: longer than its farewell takes.
	deathTime = 2 * farewellPatience
)

// noteLeft marks a rank as departed and passes that on to the neighbours. If it
// was the rank from which this one receives news, another takes its place.
func (b *Bootstrap) noteLeft(rank int, how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.peers[rank]
	if p.left || rank == b.rank {
		return
	}
	p.left = true
	p.dialEnded(nil)
	p.checkGone()
	b.log.Debug("bootstrap: a rank left", "left", rank, "how", how)
	for _, q := range b.peers {
		if q.out != nil && q != p {
			q.out.enqueue(frame{kind: frameLeft, tag: uint64(rank)})
		}
	}
	b.rehook()
}

// noteLost marks a rank that should be there and cannot be reached. It is leaving
// and this rank does not know yet, or it is dead; verify finds out which.
func (b *Bootstrap) noteLost(p *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.lost = true
	b.rehook()
}

// rehook connects this rank to the one from which it receives news, if it is not.
// The caller holds b.mu.
func (b *Bootstrap) rehook() {
	if b.closing || b.failure != nil && b.over == nil || !b.linked || b.allLeave {
		return
	}
	if b.over != nil { // who listens to whom, both ends find out by themselves, also where the group has failed
		for _, p := range b.peers {
			if p.present() && p.out == nil && (b.watchParent(p.rank) == b.rank || b.watchParent(b.rank) == p.rank) {
				b.dial(p)
			}
		}
		return
	}
	if w := b.watchParent(b.rank); w >= 0 && b.peers[w].out == nil {
		b.dial(b.peers[w])
	}
	if !b.verifying {
		b.verifying = true
		time.AfterFunc(settleTime, b.verify)
	}
}

// watchParent returns the rank to which rank r keeps a connection to receive and
// pass on news: the nearest rank above it in the tree that has not left, or else
// the lowest rank that has not. It is -1 for the lowest rank itself. As each rank's is
// a lower one, the ranks that stay are always connected. The caller holds b.mu.
func (b *Bootstrap) watchParent(r int) int {
	for p := parent(r); p >= 0; p = parent(p) {
		if b.peers[p].present() {
			return p
		}
	}
	for p := range r {
		if b.peers[p].present() {
			return p
		}
	}
	return -1
}

// present reports whether p is in the group, as far as this rank knows.
func (p *peer) present() bool { return !p.left && !p.lost }

// verify finds ranks that died while they had no connection: their parent in
// the tree had left, and they had not connected to the next yet.
func (b *Bootstrap) verify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verifying = false
	if b.failure != nil || b.closing {
		return
	}
	for _, p := range b.peers {
		if p.rank != b.rank && !p.left && len(p.conns) == 0 && (p.lost || b.watchParent(p.rank) == b.rank) {
			b.wg.Go(func() { b.seek(p) })
		}
	}
}

// seek connects to p. If that fails, and no news of its leaving comes either, p is
// dead.
func (b *Bootstrap) seek(p *peer) {
	const op = "bootstrap: look for a rank"
	_, err := b.connTo(b.life, op, p)
	if err == nil {
		b.mu.Lock()
		p.lost = false
		b.mu.Unlock()
		return
	}
	if sleep(b.life, deathTime) != nil {
		return
	}
	b.mu.Lock()
	dead := !p.left && len(p.conns) == 0
	b.mu.Unlock()
	if dead {
		b.fail(watch.Lost(b.rank, p.rank, fmt.Sprintf("it cannot be reached and has not left in good order: its process has ended (%v)", err)))
	}
}

// farewell makes sure that a rank which stays knows that this one has left. Two
// ranks that leave at the same time may have said goodbye only to each other;
// then this one says it to another rank, which passes it on.
func (b *Bootstrap) farewell() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellPatience)
	defer cancel()
	for ctx.Err() == nil {
		p := b.toTell()
		if p == nil {
			return
		}
		nc, err := b.dialPeer(ctx, p)
		if err == nil {
			c := newConn(nc, &b.mu, p, true)
			b.mu.Lock()
			p.conns[c] = true
			b.mu.Unlock()
			b.establish(c) // which says goodbye
			b.serve(c)
		}
		b.mu.Lock()
		p.lost = !p.heard
		b.mu.Unlock()
	}
}

// toTell returns a rank that may stay, or nil if there is none or one that stays
// has read this rank's goodbye.
func (b *Bootstrap) toTell() *peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure != nil || !b.linked {
		return nil
	}
	var next *peer
	for _, p := range b.peers {
		if p.heard {
			return nil
		}
		if next == nil && p.rank != b.rank && p.present() {
			next = p
		}
	}
	if w := b.watchParent(b.rank); w >= 0 {
		next = b.peers[w] // most likely to answer
	}
	return next
}
