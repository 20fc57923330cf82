package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// verdictPatience bounds how long a rank that cannot be connected waits for the
// rendezvous to say which rank has failed, and to take its own word.
const verdictPatience = time.Second

// shortTime is how long a rank may have no descriptor for one that dials while the ranks
// connect to each other.
const shortTime = time.Second

// assemble connects this rank with its parent in the tree and returns when all ranks have done so, as
// the rendezvous says, at p, or with the reason why they will not. It closes p.
func (b *Bootstrap) assemble(ctx context.Context, p *place) error {
	defer p.close()
	dialing, stop := context.WithCancel(ctx)
	defer stop()
	short, dialed := make(chan error, 1), make(chan error, 1)
	b.acc.WhenShort(shortTime, func(err error) {
		select {
		case short <- err:
		default:
		}
	})
	go func() { dialed <- b.dialParent(dialing) }()
	return b.awaitAll(ctx, p, dialed, short)
}

// awaitAll is assemble once this rank dials its parent, of which dialed tells the outcome. short tells if it cannot
// accept peers.
func (b *Bootstrap) awaitAll(ctx context.Context, p *place, dialed, short <-chan error) error {
	var mine *watch.Fact // why this rank cannot be connected, as far as it knows
	sent := false        // to the rendezvous
	patience := time.NewTimer(time.Hour)
	patience.Stop()
	give := func(f watch.Fact, now bool) { // the rendezvous time to say what it knows, which comes first
		if mine == nil || now && !sent {
			mine, sent = &f, now
			patience.Reset(verdictPatience)
			if now {
				p.enqueue(failed(f))
			}
		}
	}
	over := ctx.Done()
	for {
		select {
		case err := <-dialed:
			switch parent := parent(b.rank); {
			case err == nil:
				p.enqueue(frame{kind: frameConnected})
			case ctx.Err() != nil: // see below
			case handshake.Shortage(err):
				give(watch.Blamed(b.rank, b.rank, err), true)
			default:
				give(watch.Lost(b.rank, parent, fmt.Sprintf("rank %d could not connect to it: %v", b.rank, err)), false)
			}
		case err := <-short:
			give(watch.Blamed(b.rank, b.rank, mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "this rank has accepted no peer for %v: %w", shortTime, err).At(b.rank, mscclgo.NoRank)), true)
		case <-over:
			over = nil
			err := mscclgo.FromContext(ctx, opConnect, "while the ranks connected to each other").At(b.rank, mscclgo.NoRank)
			give(watch.Blamed(b.rank, b.rank, err), true)
		case f, more := <-p.heard:
			switch {
			case !more:
				b.fail(b.cutOff(p))
				return b.errFailed(opConnect)
			case f.kind == frameConnected:
				return b.begun(ctx)
			case f.kind != frameRefused:
				continue
			}
			why, err := watch.DecodeFact(f.payload, b.size)
			if err != nil {
				return err
			}
			if mine != nil && mine.Cause != nil && why.Culprit() == b.rank && why.Rank == b.rank {
				return mine.Cause
			}
			return b.options.refused(why)
		case <-patience.C:
			if !sent {
				sent = true
				p.enqueue(failed(*mine))
				patience.Reset(verdictPatience)
				continue
			}
			b.fail(*mine)
			return b.errFailed(opConnect)
		case <-b.failed:
			return b.errFailed(opConnect)
		}
	}
}

// dialParent connects this rank to its parent. While that is only slow it goes on.
func (b *Bootstrap) dialParent(ctx context.Context) error {
	p := parent(b.rank)
	for p >= 0 {
		_, err := b.connTo(ctx, opConnect, b.peers[p])
		var slow net.Error
		if err == nil || ctx.Err() != nil || !errors.As(err, &slow) || !slow.Timeout() {
			return err
		}
	}
	return nil
}

// cutOff returns why the connection to the rendezvous has ended.
func (b *Bootstrap) cutOff(p *place) watch.Fact {
	switch {
	case p.silent.Load():
		return watch.Lost(b.rank, 0, "the rendezvous, which it holds, has given no sign of life before the ranks were connected: is it stopped?")
	case b.id.hosted && b.rank != 0:
		return watch.Lost(b.rank, 0, fmt.Sprintf("the rendezvous, which it holds, ended before the ranks were connected: its process has ended (%v)", p.err))
	}
	return watch.Lost(toRendezvous, b.rank, fmt.Sprintf("its connection to the rendezvous ended before the ranks were connected (%v)", p.err))
}

// begun is called when all ranks are connected. A connection may have broken since the rendezvous said so.
func (b *Bootstrap) begun(ctx context.Context) error {
	b.mu.Lock()
	b.linked = true
	early := b.early
	if slices.ContainsFunc(b.peers, func(p *peer) bool { return p.left }) {
		b.rehook()
	}
	b.mu.Unlock()
	if early != nil {
		b.fail(*early)
	}
	b.watchNeighbours()
	for _, child := range children(b.rank, b.size) { // which may not have come all the way
		if err := b.awaitConn(ctx, b.peers[child]); err != nil {
			return err
		}
	}
	return nil
}

// awaitConn returns when a peer has connected to this rank, or has left.
func (b *Bootstrap) awaitConn(ctx context.Context, p *peer) error {
	b.mu.Lock()
	if p.out == nil && !p.left && p.dialed == nil {
		p.dialed = make(chan struct{})
	}
	dialed := p.dialed
	if p.out != nil || p.left {
		dialed = nil
	}
	b.mu.Unlock()
	if dialed == nil {
		return nil
	}
	select {
	case <-dialed:
		return nil
	case <-b.failed:
		return b.errFailed(opConnect)
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, opConnect, fmt.Sprintf("while rank %d connected to this one", p.rank)).At(b.rank, p.rank)
	}
}
