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
	return b.collective(ctx, allGather, 0, data, MaxMessage/b.size-blockOverhead)
}

// Barrier returns when every rank has called it. It is a collective, as
// AllGather is.
func (b *Bootstrap) Barrier(ctx context.Context) error {
	_, err := b.collective(ctx, barrier, 0, nil, 0)
	return err
}

// Broadcast sends the root's data, at most MaxMessage bytes, to every rank; what
// the others pass as data is ignored. The caller owns the result. Broadcast is a
// collective, as AllGather is.
func (b *Bootstrap) Broadcast(ctx context.Context, root int, data []byte) ([]byte, error) {
	if b.rank != root {
		data = nil
	}
	all, err := b.collective(ctx, broadcast, root, data, MaxMessage)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// collective makes this rank's call, with data of at most so many bytes.
func (b *Bootstrap) collective(ctx context.Context, kind collective, root int, data []byte, most int) ([][]byte, error) {
	c, err := b.begin(ctx, kind, root)
	if err != nil {
		return nil, err
	}
	defer c.end()
	var all [][]byte
	if err = c.check(data, most); err == nil {
		all, err = c.run(data)
	}
	race.Meet()
	return all, c.verdict(err)
}

// check returns the error for a call that cannot be made.
func (c *call) check(data []byte, most int) error {
	switch {
	case len(data) > most:
		return mscclgo.Errorf(mscclgo.ErrInvalid, c.op, "%d bytes, at most %d are allowed", len(data), most).At(c.b.rank, mscclgo.NoRank)
	case c.outer.Err() != nil:
		return mscclgo.FromContext(c.outer, c.op, "before it began").At(c.b.rank, mscclgo.NoRank)
	}
	return c.b.checkPeer(c.op, c.root)
}

// run returns the data of all ranks in an all-gather, and of the root in a broadcast.
func (c *call) run(data []byte) ([][]byte, error) {
	var blocks []block
	if c.kind != barrier {
		blocks = []block{{c.b.rank, data}}
	}
	var err error
	if c.kind != broadcast {
		blocks, err = c.collect(blocks)
	}
	if err == nil {
		blocks, err = c.spread(blocks)
	}
	switch {
	case err != nil:
		return nil, err
	case c.kind == broadcast:
		return [][]byte{bytes.Clone(blocks[0].data)}, nil
	case c.kind == barrier:
		return nil, nil
	}
	all, err := inOrder(blocks, c.b.size)
	if err != nil {
		return nil, c.mismatch(parent(c.b.rank), err)
	}
	return all, nil
}

// collect passes blocks up the tree, and returns the blocks of this rank and of all ranks below it.
func (c *call) collect(blocks []block) ([]block, error) {
	below := children(c.b.rank, c.b.size)
	for i, child := range below {
		c.waitFor(below[i:]...)
		more, err := c.recv(child)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, more...)
	}
	if above := parent(c.b.rank); above >= 0 {
		return blocks, c.send(above, blocks)
	}
	return blocks, nil
}

// spread passes the root's blocks on to all ranks, and returns them.
func (c *call) spread(blocks []block) ([]block, error) {
	from := -1
	if c.b.rank != c.root {
		from = toward(c.b.rank, c.root)
		c.waitFor(from)
		var err error
		if blocks, err = c.recv(from); err != nil {
			return nil, err
		}
	}
	for _, n := range neighbours(c.b.rank, c.b.size) {
		if n != from {
			if err := c.send(n, blocks); err != nil {
				return nil, err
			}
		}
	}
	return blocks, nil
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
