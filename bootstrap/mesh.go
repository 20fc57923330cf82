package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// dialPatience bounds the attempts to reach a peer, where the heartbeat time-out is not longer:
// a peer is not lost before that. Its socket listened before the group was complete: the peer is
// there, has left, or is dead.
const dialPatience = 5 * time.Second

// shake accepts a connection from a peer.
func (b *Bootstrap) shake(raw net.Conn, known func() error) (func() error, error) {
	var c *conn
	_, err := b.member.Server(raw, func(nc net.Conn, claim []byte) error {
		from, err := decodeClaim(claim, rolePeer, uint32(b.rank))
		if err == nil && (from >= b.size || from == b.rank) {
			err = fmt.Errorf("rank %d came to rank %d of %d", from, b.rank, b.size)
		}
		if err != nil {
			return err
		}
		// A dialer that is admitted takes an end without a goodbye for a death.
		if err := known(); err != nil {
			return err
		}
		c = newConn(nc, &b.mu, b.peers[from], false)
		return b.admit(c)
	})
	if err != nil {
		if c != nil {
			b.forget(c)
		}
		return nil, err
	}
	return func() error { b.serve(c); return nil }, nil
}

// admit makes c one of its peer's connections. From here on the peer is not gone
// until c has been read to its end.
func (b *Bootstrap) admit(c *conn) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return errors.New("this rank is closing")
	}
	c.peer.conns[c] = true
	return nil
}

// establish begins to send frames on c, whose handshake has ended on both sides,
// with the news that the peer may have missed.
func (b *Bootstrap) establish(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.up = true
	if c.dialed && b.over == nil {
		c.enqueue(frame{kind: frameOpen})
	}
	for _, p := range b.peers {
		if p.left {
			c.enqueue(frame{kind: frameLeft, tag: uint64(p.rank)})
		}
	}
	if b.failure != nil {
		c.enqueue(failed(b.failure.Fact))
	}
	if b.closing {
		c.enqueue(frame{kind: frameGoodbye})
		c.end()
		c.leave(time.Now())
	}
	if c.peer.out == nil {
		c.peer.out = c
		c.peer.dialEnded(nil)
	}
}

// dialEnded wakes the goroutines that wait for a connection to p.
func (p *peer) dialEnded(err error) {
	p.dialErr = err
	if p.dialed != nil {
		close(p.dialed)
		p.dialed = nil
	}
}

// forget removes c from its peer's connections.
func (b *Bootstrap) forget(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := c.peer
	delete(p.conns, c)
	if p.out == c {
		p.out = nil
	}
	p.checkGone()
}

// checkGone closes gone if p has left and all it sent has been read.
func (p *peer) checkGone() {
	if !p.left || len(p.conns) > 0 {
		return
	}
	select {
	case <-p.gone:
	default:
		close(p.gone)
	}
}

// serve reads c until it ends, and finds out whether that means the peer has
// failed.
func (b *Bootstrap) serve(c *conn) {
	established := c.dialed
	goodbye := false
	err := c.serve(func(f frame) error {
		if !established {
			if f.kind != frameOpen {
				return fmt.Errorf("a frame of kind %d before the first", f.kind)
			}
			established = true
			b.establish(c)
			return nil
		}
		if goodbye {
			return fmt.Errorf("a frame of kind %d after goodbye", f.kind)
		}
		goodbye = f.kind == frameGoodbye
		return b.handle(c, f)
	})
	// A dialer that gave up during the handshake is no failure. Nor is one whose
	// goodbye came through another rank.
	b.mu.Lock()
	broke := established && !goodbye && !b.closing && !c.peer.left
	if established && !goodbye && b.closing && err == io.EOF {
		c.peer.heard = true
	}
	b.mu.Unlock()
	if broke {
		text := fmt.Sprintf("its connection to rank %d broke: %v", b.rank, err)
		if err == io.EOF {
			text = fmt.Sprintf("its connection to rank %d ended without a goodbye: its process has ended", b.rank)
		}
		why := b.failureOf(c.peer.rank, text)
		if own, ok := c.nc.(*carried); ok {
			b.wg.Go(func() { own.sendLast(failed(why)) }) // the peer does not see that its connection is broken
		}
		if !b.tooEarly(why) {
			b.fail(why)
		}
	}
	b.forget(c)
}

// tooEarly reports whether the ranks are not connected yet, as far as this one knows. Then the rendezvous knows better
// why a connection broke, and begun is to know if it does not.
func (b *Bootstrap) tooEarly(why watch.Fact) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.linked && b.early == nil {
		b.early = &why
	}
	return !b.linked
}

// handle processes one frame that has come on c. An error ends the connection.
func (b *Bootstrap) handle(c *conn, f frame) error {
	p := c.peer
	var fact watch.Fact
	if f.kind == frameCallLeft || f.kind == frameAwaits || f.kind == frameFailed {
		var err error
		if fact, err = watch.DecodeFact(f.payload, b.size); err != nil {
			return err
		}
	}
	switch f.kind {
	case frameData, frameCollective:
		if f.kind == frameCollective && !b.calls.wanted(f.tag) {
			return nil
		}
		return b.deliver(mailKey{p.rank, f.kind, f.tag}, f.payload)
	case frameCallLeft:
		b.callLeft(p.rank, f.tag, fact)
	case frameAwaits:
		b.calls.note(f.tag, p.rank, fact.Peers)
	case frameGoodbye:
		if f.tag > 0 {
			b.mu.Lock()
			b.allLeave = true
			b.mu.Unlock()
		}
		b.noteLeft(p.rank, "it said goodbye")
	case frameLeft:
		if f.tag >= uint64(b.size) {
			return fmt.Errorf("news of rank %d in a group of %d", f.tag, b.size)
		}
		b.noteLeft(int(f.tag), fmt.Sprintf("rank %d reported it", p.rank))
	case frameFailed:
		b.fail(fact)
	default:
		return fmt.Errorf("a frame of kind %d between ranks", f.kind)
	}
	return nil
}

// deliver puts a message into the mailbox.
func (b *Bootstrap) deliver(key mailKey, message []byte) error {
	if b.inbox.put(key, message) {
		return nil
	}
	b.fail(watch.Lost(b.rank, b.rank, fmt.Sprintf(
		"more than %d MiB of messages from rank %d have not been received, the last with tag %d", maxUnreceived>>20, key.peer, key.tag)))
	return fmt.Errorf("more than %d MiB of its messages have not been received", maxUnreceived>>20)
}

// connTo returns the connection on which this rank sends to p, and makes it if
// there is none.
func (b *Bootstrap) connTo(ctx context.Context, op string, p *peer) (*conn, error) {
	for first := true; ; first = false {
		b.mu.Lock()
		switch {
		case b.failure != nil:
			b.mu.Unlock()
			<-b.failed
			return nil, b.errFailed(op)
		case b.closing:
			b.mu.Unlock()
			return nil, b.errClosed(op, p.rank)
		case p.left:
			b.mu.Unlock()
			return nil, b.errLeft(op, p.rank)
		case p.out != nil:
			defer b.mu.Unlock()
			return p.out, nil
		case !first && p.dialErr != nil:
			err := p.dialErr
			b.mu.Unlock()
			kind := mscclgo.ErrRemote
			if handshake.Shortage(err) {
				kind = mscclgo.ErrSystem
			}
			return nil, mscclgo.Errorf(kind, op, "rank %d cannot be reached at %s: %w", p.rank, p.addr, err).At(b.rank, p.rank)
		}
		dialed := b.dial(p)
		b.mu.Unlock()
		if err := b.wait(ctx, op, p, dialed, fmt.Sprintf("while connecting to rank %d at %s", p.rank, p.addr)); err != nil {
			return nil, err
		}
	}
}

// dial starts to connect to p, unless that is under way, and returns what is
// closed at the end. The caller holds b.mu and has seen that b is not closing.
func (b *Bootstrap) dial(p *peer) <-chan struct{} {
	if p.dialed == nil {
		p.dialed = make(chan struct{})
		p.dialErr = nil
	}
	if !p.dialing {
		p.dialing = true
		b.wg.Add(1)
		go b.runDial(p)
	}
	return p.dialed
}

// runDial connects to p and serves the connection.
func (b *Bootstrap) runDial(p *peer) {
	defer b.wg.Done()
	nc, err := b.dialPatiently(p)
	var c *conn
	if err == nil {
		c = newConn(nc, &b.mu, p, true)
		if err = b.admit(c); err != nil {
			nc.Close()
		}
	}
	if err != nil {
		b.mu.Lock()
		p.dialing = false
		if p.out == nil {
			p.dialEnded(err)
		}
		lost := b.linked && p.out == nil && p.rank == b.watchParent(b.rank) // else assemble knows what that means
		b.mu.Unlock()
		if lost {
			b.noteLost(p)
		}
		return
	}
	b.establish(c)
	b.mu.Lock()
	p.dialing = false
	b.mu.Unlock()
	b.serve(c)
}

// dialPeer connects to p as this rank.
func (b *Bootstrap) dialPeer(ctx context.Context, p *peer) (net.Conn, error) {
	if b.over != nil {
		return newCarried(b.over, p.rank), nil
	}
	return b.member.Dial(ctx, p.addr, claim{role: rolePeer, from: uint32(b.rank), to: uint32(p.rank)}.encode())
}

// dialPatiently tries to reach p as long as that can succeed.
func (b *Bootstrap) dialPatiently(p *peer) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(b.life, max(dialPatience, b.options.HeartbeatTimeout))
	defer cancel()
	var why error // the last that was not due to the end of the patience
	for {
		nc, err := b.dialPeer(ctx, p)
		if err == nil {
			return nc, nil
		}
		if why == nil || ctx.Err() == nil {
			why = err
		}
		b.mu.Lock()
		over := b.failure != nil || b.closing || p.left || p.out != nil
		b.mu.Unlock()
		// Its socket listens until it closes.
		if over || errors.Is(err, syscall.ECONNREFUSED) || sleep(ctx, 20*time.Millisecond) != nil {
			return nil, why
		}
	}
}
