package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

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

// The channels of a staged host path, and its buffers.
const (
	stagedToInbox  = iota // from the input into the others' inboxes
	stagedToOutput        // from the output into the others' outputs

	stagedInbox    = 0 // a slot for each rank
	stagedProgress = 1 // see staged.cu
)

// staged moves data by port channels, and threads reduce them.
type staged struct{ traits }

var stagedSums = &staged{traits{name: "staged", kernel: "staged", unit: file("staged.cu"), blocks: 2, threads: boundedThreads}}

func (a *staged) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	c.Threads = max(c.Threads, stagedWarps)
	ranks, in := uint64(r.comm.Size()), c.input()
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{a.name, in, c.Out}, func(h *hostPath) {
		h.slot = stagedSlot(h.smallest(ctx, c.Out.Size()), ranks)
		inbox := h.allocate(ctx, ranks*h.slot, 0)
		const progress = 8 * (1 + stagedMostChunks)
		h.allocate(ctx, progress, progress)
		h.connect(ctx, in.Buffer, communicator.PortChannelOptions{PerPeer: stagedStreams, Inbox: inbox})
		h.connect(ctx, c.Out.Buffer, communicator.PortChannelOptions{PerPeer: stagedStreams})
	})
	if err != nil {
		return launch{}, err
	}
	shard := divideUp(c.part(), ranks)
	chunk := divideUp(max(stagedLeastChunk, divideUp(shard, stagedChunks)), line) * line
	blocks := min(max(c.Blocks, 2), k.fit)
	return launch{kernel: k.kernel, shape: gpu.Blocks(blocks, c.Threads), args: []any{
		h.handles(stagedToInbox), h.handles(stagedToOutput), in.peers(), c.Out.peers(), h.buffers[stagedInbox],
		h.slot, chunk, c.part(), uint32(r.comm.Rank()), uint32(ranks),
		h.buffers[stagedProgress], r.group.Watch,
	}}, nil
}

// line is what shards and slots are aligned to, in bytes; kLine in collective.cuh.
const line = 128

// stagedSlot returns the bytes of a slot: for a shard, wherever in a line it starts.
func stagedSlot(size, ranks uint64) uint64 {
	return (divideUp(divideUp(size, line), ranks) + 2) * line
}
