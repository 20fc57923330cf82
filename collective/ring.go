package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// ringBlocks is how many blocks the ring has: each has connections of its own.
const ringBlocks = 4

// The channels of a ring's host path, both from the output.
const (
	ringToInbox  = iota // of the next rank
	ringToOutput        // of the next rank
)

// ring passes sums around the ring of all ranks, by port channels.
type ring struct{ traits }

var aroundRing = &ring{traits{name: "ring", kernel: "ring", unit: file("ring.cu"), hosts: true, narrow: true, threads: boundedThreads}}

func (a *ring) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{a.name, nil, c.Out}, func(h *hostPath) {
		// The inbox is as large as the output, and a line of 16 bytes for each rank and
		// block besides, whose parts are whole lines.
		inbox := h.allocate(ctx, c.Out.Size()+uint64(16*(r.comm.Size()+ringBlocks)), 0)
		h.connect(ctx, c.Out.Buffer, communicator.PortChannelOptions{PerPeer: ringBlocks, Inbox: inbox})
		h.connect(ctx, c.Out.Buffer, communicator.PortChannelOptions{PerPeer: ringBlocks})
	})
	if err != nil {
		return launch{}, err
	}
	return launch{kernel: k.kernel, shape: gpu.Blocks(min(c.Blocks, ringBlocks, k.fit), c.Threads), args: []any{
		h.handles(ringToInbox), h.handles(ringToOutput), uint32(r.comm.Rank()), uint32(r.comm.Size()),
		c.input().Buffer, c.Out.Buffer, h.buffers[0], c.part(),
	}}, nil
}
