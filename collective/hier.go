package collective

import (
	"context"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// hierBlocks is how many blocks the hierarchical all-reduce has at most: each has
// connections of its own. kMostBlocks of hier.cu.
const hierBlocks = 4

// place is where a rank is among the hosts.
type place struct {
	hosts, host, owners int
	peers               []int // the owners of this rank's shard on the other hosts
}

// placeOf returns the place of a rank. Each host has as many owners as the smallest has ranks.
func placeOf(rank int, hosts [][]int) place {
	p := place{hosts: len(hosts), owners: len(hosts[0])}
	for _, ranks := range hosts {
		p.owners = min(p.owners, len(ranks))
	}
	p.host = slices.IndexFunc(hosts, func(ranks []int) bool { return slices.Contains(ranks, rank) })
	shard := slices.Index(hosts[p.host], rank)
	p.peers = []int{}
	for host, ranks := range hosts {
		if host != p.host && shard < p.owners {
			p.peers = append(p.peers, ranks[shard])
		}
	}
	return p
}

// hier prepares a call by hier.cu.
func (r *Runner) hier(ctx context.Context, c *Call, a algorithm) (launch, error) {
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return launch{}, err
	}
	place := placeOf(r.comm.Rank(), r.comm.Hosts())
	h, err := r.hostPath(ctx, pathKey{byHosts, nil, c.Out, c.sumsGrow()}, func(h *hostPath) error {
		size, err := h.smallest(ctx, c.Out)
		if err != nil {
			return err
		}
		h.slot = divideUp(divideUp(size, line), uint64(place.owners)) * line * c.sumsGrow()
		inbox, err := h.allocate(ctx, 2*uint64(place.hosts)*h.slot, 0)
		if err != nil {
			return err
		}
		// How many calls there were, for each block.
		if _, err := h.allocate(ctx, 4*hierBlocks, 4*hierBlocks); err != nil {
			return err
		}
		return h.connect(ctx, inbox, communicator.PortChannelOptions{PerPeer: hierBlocks, Peers: place.peers})
	})
	if err != nil {
		return launch{}, err
	}
	return launch{kernel: kernel, shape: gpu.Blocks(min(c.Blocks, hierBlocks, fit), c.Threads), args: []any{
		r.group, c.input().peers, c.Out.peers, uint32(place.hosts), uint32(place.host), uint32(place.owners), uint32(r.comm.Size()),
		h.handles(0), h.buffers[0], h.buffers[1], h.slot, c.part(),
	}}, nil
}
