package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// A Carrier sends and receives messages between the ranks of a group, as over MPI or a program's own RPC. See [Over].
type Carrier interface {
	// Rank returns this rank's number, from 0.
	Rank() int
	// Size returns the number of ranks.
	Size() int
	// Send sends data, at most 64 MiB, to another rank, where a Recv with the same
	// tag returns it. Messages to one rank with one tag arrive in order. Send may
	// return before the message is received, and must not wait for the other rank
	// to call Recv. The caller may reuse data when Send has returned.
	Send(ctx context.Context, peer int, tag uint64, data []byte) error
	// Recv returns the next message from another rank with the tag, and waits for
	// it. It returns an error when ctx ends, and should return one when it knows
	// that the peer is dead, and has no message of it left: that is how the group detects it,
	// and a message is how a rank that leaves in good order differs from one that died.
	Recv(ctx context.Context, peer int, tag uint64) ([]byte, error)
}

// frameTag is the tag of the messages of a Carrier that have frames.
const frameTag = 1<<64 - 1

// Over returns a Bootstrap over a program's own messages: the collectives, news of failures and all else is this
// package's. It must be called on all ranks of the group, once for each Carrier. The last tag is the Bootstrap's. If the
// Carrier has the methods Group and Key of a Bootstrap, whose results only the ranks of the group know, they are used; otherwise rank 0 draws a secret and sends it
// to the others, so that the messages must be confidential. The caller closes the result.
//
// Errors: ErrInvalid where the Carrier's numbers make no sense, and the errors of [Bootstrap.AllGather].
func Over(ctx context.Context, c Carrier) (*Bootstrap, error) {
	const op = "bootstrap: agree on a secret"
	o := Options{Rank: c.Rank(), Size: c.Size(), HeartbeatTimeout: -1, Logger: logger(nil)}
	if o.Size < 1 || o.Rank < 0 || o.Rank >= o.Size {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bootstrap's Rank is %d and its Size %d", o.Rank, o.Size)
	}
	b := newBootstrap(o, nil, make([]string, o.Size), nil, nil)
	b.over, b.linked = c, true
	b.mu.Lock()
	b.rehook()
	b.mu.Unlock()
	for _, peer := range neighbours(o.Rank, o.Size) {
		if err := b.awaitConn(context.Background(), b.peers[peer]); err != nil {
			b.Close()
			return nil, err
		}
	}
	if m, ok := c.(membership); ok {
		b.membership = m
		return b, nil
	}
	var drawn []byte
	if o.Rank == 0 {
		drawn = make([]byte, groupSize+secretSize)
		rand.Read(drawn)
	}
	all, err := b.AllGather(ctx, drawn) // which all ranks must come to
	if err == nil && len(all[0]) != groupSize+secretSize {
		err = mscclgo.Errorf(mscclgo.ErrRemote, op, "rank 0 sent %d bytes", len(all[0])).At(o.Rank, 0)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	drawn = all[0]
	b.id.group, b.id.secret = [groupSize]byte(drawn), hide([secretSize]byte(drawn[groupSize:]))
	return b, nil
}

// membership is a Carrier's own secret.
type membership interface {
	Group() [groupSize]byte
	Key(purpose string) [secretSize]byte
}

// carry sends or receives a message of the Carrier's. late is why it may have ended with ctx.
func (b *Bootstrap) carry(ctx context.Context, op string, peer int, late string, call func(context.Context) error) error {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-b.failed:
		case <-b.life.Done():
		case <-during.Done():
		}
		cancel()
	}()
	err := call(during)
	race.Meet()
	if err == nil {
		return nil
	}
	if ended := b.usable(context.Background(), op, peer); ended != nil {
		return ended
	}
	switch e := (*mscclgo.Error)(nil); {
	case errors.As(err, &e):
		return err
	case ctx.Err() != nil:
		return mscclgo.FromContext(ctx, op, late).At(b.rank, peer)
	}
	// A rank that has heard of a failure ends, and may be missed here before the news has come.
	select {
	case <-b.failed:
		return b.errFailed(op)
	case <-time.After(newsPatience):
	case <-ctx.Done():
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "the bootstrap failed: %w", err).At(b.rank, peer)
}

// tellOthers tells the ranks without a connection to this one that it leaves. The ranks below it turn to some of these,
// which may not know it yet, and read this then. It returns when that is sent, or after a while.
func (b *Bootstrap) tellOthers() {
	b.mu.Lock()
	var last []frame
	for _, p := range b.peers {
		if p.left {
			last = append(last, frame{kind: frameLeft, tag: uint64(p.rank)})
		}
	}
	if b.failure != nil {
		last = append(last, failed(b.failure.Fact))
	}
	last = append(last, frame{kind: frameGoodbye})
	var sent sync.WaitGroup
	for _, p := range b.peers {
		if p.rank != b.rank && !p.left && len(p.conns) == 0 {
			sent.Go(func() { newCarried(b.over, p.rank).sendLast(last...) })
		}
	}
	b.mu.Unlock()
	sent.Wait()
}

// A carried connection is to a peer, by messages of a Carrier. Each is a byte, and bytes of a stream.
type carried struct {
	over  Carrier
	peer  int
	in    []byte
	last  bool // the other end sends no more
	ctx   context.Context
	end   context.CancelCauseFunc
	mu    sync.Mutex
	timer *time.Timer // calls end
}

const (
	carriedMore = 0
	carriedLast = 1 // the sender sends no more
)

func newCarried(over Carrier, peer int) *carried {
	c := &carried{over: over, peer: peer}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	return c
}

func (c *carried) Read(b []byte) (int, error) {
	for len(c.in) == 0 {
		if c.last {
			return 0, io.EOF
		}
		message, err := c.over.Recv(c.ctx, c.peer, frameTag)
		switch {
		case err != nil && c.ctx.Err() != nil:
			return 0, context.Cause(c.ctx)
		case err != nil:
			return 0, err
		case len(message) == 0:
			return 0, errors.New("an empty message")
		}
		c.in, c.last = message[1:], message[0] == carriedLast
	}
	n := copy(b, c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *carried) Write(b []byte) (int, error) {
	return len(b), c.over.Send(c.ctx, c.peer, frameTag, append([]byte{carriedMore}, b...))
}

func (c *carried) CloseWrite() error {
	return c.over.Send(c.ctx, c.peer, frameTag, []byte{carriedLast})
}

// sendLast sends frames where writing has failed, or was not tried, in place of what was being written.
func (c *carried) sendLast(f ...frame) {
	ctx, cancel := context.WithTimeout(context.Background(), abortPatience)
	defer cancel()
	last := []byte{carriedLast}
	for _, f := range f {
		last = append(last, f.encode()...)
	}
	_ = c.over.Send(ctx, c.peer, frameTag, last) // one that is dead needs no news
}

// SetDeadline has all calls end at a time. After that they always do.
func (c *carried) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() { c.end(os.ErrDeadlineExceeded) })
	}
	return nil
}

func (c *carried) Close() error                       { c.end(net.ErrClosed); return nil }
func (c *carried) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *carried) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }
func (c *carried) LocalAddr() net.Addr                { return nil }
func (c *carried) RemoteAddr() net.Addr               { return nil }
