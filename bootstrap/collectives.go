package bootstrap

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// A collective is a call that all ranks make; see the package's comment.
type collective uint8

const (
	allGather collective = 1
	barrier   collective = 2
	broadcast collective = 3
)

func (k collective) String() string {
	switch k {
	case allGather:
		return "all-gather"
	case barrier:
		return "barrier"
	case broadcast:
		return "broadcast"
	}
	return fmt.Sprintf("collective of kind %d", uint8(k))
}

// A treeMessage passes between neighbours in the tree, for a collective.
type treeMessage struct {
	kind   collective
	root   int     // of a broadcast, else 0
	blocks []block `wire:"32768"` // MaxSize
}

// A block is the data of a rank.
type block struct {
	rank int
	data []byte `wire:"67108864"` // MaxMessage
}

var treeCodec = wire.For[treeMessage]()

const (
	// treeOverhead is what a treeMessage of one block takes besides the block's bytes.
	treeOverhead = 1 + 4 + 4 + 4 + 4
	// blockOverhead is what a rank's block takes at most in an all-gather besides its bytes.
	blockOverhead = 16
)

// send sends blocks to a neighbour in the tree.
func (c *call) send(peer int, blocks []block) error {
	c.waitFor(peer)
	payload := treeCodec.Marshal(&treeMessage{c.kind, c.root, blocks})
	err := c.b.send(c.ctx, c.op, peer, frame{kind: frameCollective, tag: c.number, payload: payload})
	return c.failIfLeft(peer, err)
}

// recv receives the blocks that a neighbour in the tree sent for the same call.
func (c *call) recv(peer int) ([]block, error) {
	message, err := c.b.recv(c.ctx, c.op, mailKey{peer, frameCollective, c.number})
	if err != nil {
		return nil, c.failIfLeft(peer, err)
	}
	m, err := treeCodec.Unmarshal(message)
	switch {
	case err != nil:
		return nil, c.mismatch(peer, fmt.Errorf("rank %d sent a malformed message: %w", peer, err))
	case m.kind != c.kind:
		return nil, c.mismatch(peer, fmt.Errorf("the ranks' calls differ: collective %d is %v on rank %d and %v on rank %d",
			c.number, c.kind, c.b.rank, m.kind, peer))
	case m.root != c.root:
		return nil, c.mismatch(peer, fmt.Errorf("the ranks' calls differ: the root is rank %d on rank %d and rank %d on rank %d",
			c.root, c.b.rank, m.root, peer))
	case c.kind == broadcast && len(m.blocks) != 1:
		return nil, c.mismatch(peer, fmt.Errorf("rank %d sent a malformed message: %d blocks", peer, len(m.blocks)))
	}
	return m.blocks, nil
}

// failIfLeft fails the group if err comes of a peer that left: other ranks
// wait in this collective for its message, which will never come. Where a third rank had left the call, the peer's
// call had ended too, and the call alone fails.
func (c *call) failIfLeft(peer int, err error) error {
	b := c.b
	b.mu.Lock()
	gone := err != nil && b.peers[peer].left && b.failure == nil && !b.closing
	b.mu.Unlock()
	if !gone {
		return err
	}
	b.calls.mu.Lock()
	left := c.state.left
	b.calls.mu.Unlock()
	text := fmt.Sprintf("it left the group, and rank %d waits for it in %v %d", b.rank, c.kind, c.number)
	if left != nil {
		err = c.leftBy(left)
		if left.Rank != peer {
			return err
		}
		text += ", which it had left: " + left.Text
	}
	b.fail(watch.Lost(b.rank, peer, text))
	return err
}

// mismatch fails the group for calls that do not fit together.
func (c *call) mismatch(peer int, err error) error {
	e := mscclgo.Errorf(mscclgo.ErrInvalid, c.op, "%w", err).At(c.b.rank, peer)
	c.b.Abort(e)
	return e
}

// AllGather sends every rank's data to every rank: element r of the result is the
// data of rank r, a slice that the caller owns. The lengths may differ. Each rank
// may send at most MaxMessage/Size - 16 bytes.
//
// It is a collective: every rank calls it, in the same order among the
// collectives.
func (b *Bootstrap) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	return b.gather(ctx, allGather, data)
}

// Barrier returns when every rank has called it. It is a collective, as
// AllGather is.
func (b *Bootstrap) Barrier(ctx context.Context) error {
	_, err := b.gather(ctx, barrier, nil)
	return err
}

func (b *Bootstrap) gather(ctx context.Context, kind collective, data []byte) ([][]byte, error) {
	c, err := b.begin(ctx, kind, 0)
	if err != nil {
		return nil, err
	}
	defer c.end()
	if limit := MaxMessage/b.size - blockOverhead; len(data) > limit {
		return nil, c.verdict(mscclgo.Errorf(mscclgo.ErrInvalid, c.op,
			"%d bytes, at most %d are allowed from each of %d ranks", len(data), limit, b.size).At(b.rank, mscclgo.NoRank))
	}
	blocks, err := c.gather(data)
	race.Meet()
	return blocks, c.verdict(err)
}

// gather collects blocks up the tree and sends all of them down again.
func (c *call) gather(data []byte) ([][]byte, error) {
	b := c.b
	if err := c.ready(); err != nil {
		return nil, err
	}
	var blocks []block
	if c.kind == allGather {
		blocks = []block{{b.rank, data}}
	}
	below := children(b.rank, b.size)
	for i, child := range below {
		c.waitFor(below[i:]...)
		more, err := c.recv(child)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, more...)
	}
	if above := parent(b.rank); above >= 0 {
		err := c.send(above, blocks)
		if err != nil {
			return nil, err
		}
		if blocks, err = c.recv(above); err != nil {
			return nil, err
		}
	}
	for _, child := range below {
		if err := c.send(child, blocks); err != nil {
			return nil, err
		}
	}
	if c.kind == barrier {
		return nil, nil
	}
	all, err := inOrder(blocks, b.size)
	if err != nil {
		return nil, c.mismatch(parent(b.rank), err)
	}
	return all, nil
}

// inOrder returns the data of all ranks, each in memory of its own, and not nil even if it is empty.
func inOrder(blocks []block, size int) ([][]byte, error) {
	if len(blocks) != size {
		return nil, fmt.Errorf("malformed blocks: %d of %d ranks", len(blocks), size)
	}
	all := make([][]byte, size)
	for _, block := range blocks {
		if block.rank >= size || all[block.rank] != nil {
			return nil, fmt.Errorf("malformed blocks: rank %d twice or outside a world of %d", block.rank, size)
		}
		all[block.rank] = append(make([]byte, 0, len(block.data)), block.data...)
	}
	return all, nil
}

// Broadcast sends the root's data, at most MaxMessage bytes, to every rank; what
// the others pass as data is ignored. The caller owns the result. Broadcast is a
// collective, as AllGather is.
func (b *Bootstrap) Broadcast(ctx context.Context, root int, data []byte) ([]byte, error) {
	c, err := b.begin(ctx, broadcast, root)
	if err != nil {
		return nil, err
	}
	defer c.end()
	data, err = c.broadcast(data)
	race.Meet()
	return data, c.verdict(err)
}

func (c *call) broadcast(data []byte) ([]byte, error) {
	b := c.b
	if err := b.checkPeer(c.op, c.root); err != nil {
		return nil, err
	}
	if err := c.ready(); err != nil {
		return nil, err
	}
	blocks, from := []block{{c.root, data}}, -1
	if b.rank == c.root {
		if len(data) > MaxMessage {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, c.op, "%d bytes, at most %d are allowed", len(data), MaxMessage).At(b.rank, mscclgo.NoRank)
		}
	} else {
		from = toward(b.rank, c.root)
		c.waitFor(from)
		var err error
		if blocks, err = c.recv(from); err != nil {
			return nil, err
		}
	}
	for _, n := range neighbours(b.rank, b.size) {
		if n != from {
			if err := c.send(n, blocks); err != nil {
				return nil, err
			}
		}
	}
	return bytes.Clone(blocks[0].data), nil
}
