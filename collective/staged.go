package collective

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed kernels/staged.cu
var stagedSource []byte

const (
	// A copy engine takes some microseconds to begin, in which it moves about a
	// megabyte; and the first chunk must arrive before anything can be reduced.
	stagedLeastChunk = 4 << 20
	stagedChunks     = 8
	stagedStreams    = 2 // kStreams of staged.cu
	// stagedMostChunks is what staged.cu has room for.
	stagedMostChunks = 64
	stagedWarps      = 64 // threads that look after the channels
)

// stagedChannels are what the staged all-reduce needs for an input and an output.
type stagedChannels struct {
	inbox    *gpu.Buffer                // a slot for each rank
	progress *gpu.Buffer                // see staged.cu
	toInbox  *communicator.PortChannels // from the input into the others' inboxes
	toOutput *communicator.PortChannels // from the output into the others' outputs
}

// staged prepares a call by staged.cu.
func (r *Runner) staged(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	c.Threads = max(c.Threads, stagedWarps)
	kernel, fit, err := r.kernelOfTwo(ctx, c, a)
	if err != nil {
		return nil, err
	}
	h, err := r.hostPath(ctx)
	if err != nil {
		return nil, err
	}
	in := c.In
	if c.InPlace {
		in = c.Out
	}
	channels, err := h.stagedChannels(ctx, in.Buffer, c.Out.Buffer)
	if err != nil {
		return nil, err
	}
	ranks := uint64(r.comm.Size())
	shard := divideUp(c.part(), ranks)
	chunk := divideUp(max(stagedLeastChunk, divideUp(shard, stagedChunks)), line) * line
	blocks := min(max(c.Blocks, 2), fit)
	return &Operation{kernel, gpu.Blocks(blocks, c.Threads), []any{
		channels.toInbox.Handles, channels.toOutput.Handles, in.Peers, c.Out.Peers, channels.inbox,
		stagedSlot(c.Out.Size(), ranks), chunk, c.part(), uint32(r.comm.Rank()), uint32(ranks),
		channels.progress, r.group.Watch,
	}}, nil
}

// line is what shards and slots are aligned to, in bytes; kLine in collective.cuh.
const line = 128

// stagedSlot gives the bytes of a slot: for a shard, wherever in a line it starts.
func stagedSlot(size, ranks uint64) uint64 {
	return (divideUp(divideUp(size, line), ranks) + 2) * line
}

// stagedChannels gives the channels for a pair of buffers.
func (h *hostPath) stagedChannels(ctx context.Context, in, out *gpu.Buffer) (_ *stagedChannels, err error) {
	pair := [2]*gpu.Buffer{in, out}
	if channels := h.staged[pair]; channels != nil {
		return channels, nil
	}
	c := &stagedChannels{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	ranks := uint64(h.comm.Size())
	if c.inbox, err = h.comm.Device().Alloc(ranks * stagedSlot(out.Size(), ranks)); err != nil {
		return nil, err
	}
	if c.progress, err = gpu.Upload(h.comm.Device(), make([]uint64, 1+stagedMostChunks)); err != nil {
		return nil, err
	}
	if c.toInbox, err = h.comm.PortChannels(ctx, h.service, in, communicator.PortChannelOptions{PerPeer: stagedStreams, Inbox: c.inbox}); err != nil {
		return nil, err
	}
	if c.toOutput, err = h.comm.PortChannels(ctx, h.service, out, communicator.PortChannelOptions{PerPeer: stagedStreams}); err != nil {
		return nil, err
	}
	h.staged[pair] = c
	return c, nil
}

func (c *stagedChannels) close() error {
	var errs []error
	for _, channels := range []*communicator.PortChannels{c.toOutput, c.toInbox} {
		if channels != nil {
			errs = append(errs, channels.Close())
		}
	}
	for _, b := range []*gpu.Buffer{c.progress, c.inbox} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}
