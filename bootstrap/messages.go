package bootstrap

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// Send sends data, at most MaxMessage bytes, to rank peer, this rank included,
// where a [Bootstrap.Recv] with the same tag gets it. Messages to one peer with
// one tag arrive in the order in which their Sends were called; data may be
// reused once Send returns.
//
// Send returns when the message has been handed to the operating system, not
// when it is received. If the context ends first (ErrTimeout or ErrAborted) nothing of
// data is kept; the message may still arrive if all of it had been handed over. It returns ErrRemote if the peer has left or the
// group has failed.
func (b *Bootstrap) Send(ctx context.Context, peer int, tag uint64, data []byte) error {
	op := fmt.Sprintf("bootstrap: send %d bytes with tag %d", len(data), tag)
	if err := b.checkPeer(op, peer); err != nil {
		return err
	}
	if len(data) > MaxMessage {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "a message has at most %d bytes", MaxMessage).At(b.rank, peer)
	}
	if b.over != nil && peer != b.rank {
		if err := b.usable(ctx, op, peer); err != nil {
			return err
		}
		return b.carry(ctx, op, peer, fmt.Sprintf("rank %d does not take it", peer), func(ctx context.Context) error {
			return b.over.Send(ctx, peer, tag, data)
		})
	}
	return b.send(ctx, op, peer, frame{kind: frameData, tag: tag, payload: data})
}

// send sends f, whose payload stays the caller's.
func (b *Bootstrap) send(ctx context.Context, op string, peer int, f frame) error {
	if err := b.usable(ctx, op, peer); err != nil {
		return err
	}
	p := b.peers[peer]
	if peer == b.rank {
		if err := b.deliver(mailKey{peer, f.kind, f.tag}, bytes.Clone(f.payload)); err != nil {
			return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err).At(b.rank, peer)
		}
		return nil
	}
	c, err := b.connTo(ctx, op, p)
	if err != nil {
		return err
	}
	o := c.enqueue(f)
	if err := b.wait(ctx, op, p, o.done, fmt.Sprintf("rank %d does not read what is sent to it", peer)); err != nil {
		c.cancel(o)
		return err
	}
	if o.err == nil {
		return nil
	}
	return b.wait(ctx, op, p, nil, o.err.Error()) // until the connection's reader has found out why it broke
}

// Recv returns the oldest message with tag that rank peer, which may be this rank
// itself, has sent and that has not been received. If there is none, it waits. The
// caller owns the slice.
//
// A Recv that fails has taken no message. It returns ErrTimeout or ErrAborted if
// its context ends, and ErrRemote if the group has failed or the peer has left.
// Messages that have arrived are received even then.
func (b *Bootstrap) Recv(ctx context.Context, peer int, tag uint64) ([]byte, error) {
	op := fmt.Sprintf("bootstrap: receive with tag %d", tag)
	if err := b.checkPeer(op, peer); err != nil {
		return nil, err
	}
	if b.over != nil && peer != b.rank {
		var data []byte
		err := b.carry(ctx, op, peer, fmt.Sprintf("none came from rank %d, or it waits for another rank", peer), func(ctx context.Context) (err error) {
			data, err = b.over.Recv(ctx, peer, tag)
			return err
		})
		return data, err
	}
	defer race.Meet()
	return b.recv(ctx, op, mailKey{peer, frameData, tag})
}

func (b *Bootstrap) recv(ctx context.Context, op string, key mailKey) ([]byte, error) {
	for err := error(nil); ; {
		message, came := b.inbox.take(key)
		switch {
		case came == nil:
			return message, nil
		case err != nil:
			return nil, err
		}
		err = b.wait(ctx, op, b.peers[key.peer], came, fmt.Sprintf("no message came from rank %d", key.peer))
	}
}

// wait returns nil once done is closed, or why an op with p ends before that. late is why it may end with its context.
func (b *Bootstrap) wait(ctx context.Context, op string, p *peer, done <-chan struct{}, late string) error {
	select {
	case <-done:
		return nil
	case <-b.failed:
		return b.errFailed(op)
	case <-b.life.Done():
		return b.errClosed(op, p.rank)
	case <-p.gone:
		return b.errLeft(op, p.rank)
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, late).At(b.rank, p.rank)
	}
}

// usable returns the error for a call that need not begin.
func (b *Bootstrap) usable(ctx context.Context, op string, peer int) error {
	select {
	case <-b.failed:
		return b.errFailed(op)
	case <-b.life.Done():
		return b.errClosed(op, peer)
	default:
	}
	if ctx.Err() != nil {
		return mscclgo.FromContext(ctx, op, "before it began").At(b.rank, peer)
	}
	return nil
}

func (b *Bootstrap) checkPeer(op string, peer int) error {
	if peer < 0 || peer >= b.size {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "rank %d is outside a world of %d ranks", peer, b.size).At(b.rank, mscclgo.NoRank)
	}
	return nil
}
