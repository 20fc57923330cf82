package collective

import (
	"cmp"
	"context"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// hierBlocks is how many blocks the hierarchical reductions have at most: each has
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

// byTwins returns the hosts in the order of the ranks that own a rank's shard there, in which
// the channels to those are. Ranks that own none have no channels.
func byTwins(rank int, hosts [][]int) [][]int {
	p := placeOf(rank, hosts)
	if len(p.peers) == 0 {
		return hosts
	}
	shard := slices.Index(hosts[p.host], rank)
	return slices.SortedFunc(slices.Values(hosts), func(a, b []int) int { return cmp.Compare(a[shard], b[shard]) })
}

// hier prepares a call by hier.cu.
func (r *Runner) hier(ctx context.Context, c *Call, a algorithm) (launch, error) {
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return launch{}, err
	}
	hosts := byTwins(r.comm.Rank(), r.comm.Hosts())
	place := placeOf(r.comm.Rank(), hosts)
	key := pathKey{byHosts, nil, c.Out, c.sumsGrow()}
	most := c.Out.Size() // bytes of data, or of a part
	if c.Kind == ReduceScatter {
		key.in = c.input()
		most = min(most, key.in.Size()/uint64(r.comm.Size()))
	}
	h, err := r.hostPath(ctx, key, func(h *hostPath) error {
		size, err := h.smallest(ctx, most)
		if err != nil {
			return err
		}
		slots := 2 * uint64(place.hosts) // of the inbox
		if c.Kind == ReduceScatter {
			slots *= 2 * place.parts(hosts)
			h.slot = divideUp(size, line) * line * c.sumsGrow()
		} else {
			h.slot = divideUp(divideUp(size, line), uint64(place.owners)) * line * c.sumsGrow()
		}
		inbox, err := h.allocate(ctx, slots*h.slot, 0)
		if err != nil {
			return err
		}
		// How many calls there were, for each block.
		if _, err := h.allocate(ctx, 4*hierBlocks, 4*hierBlocks); err != nil {
			return err
		}
		if c.Kind == ReduceScatter {
			if err := upload(ctx, h, orderOfHosts(hosts)); err != nil {
				return err
			}
		}
		return h.connect(ctx, inbox, communicator.PortChannelOptions{PerPeer: hierBlocks, Peers: place.peers})
	})
	if err != nil {
		return launch{}, err
	}
	args := []any{
		r.group, c.input().peers(), c.Out.peers(), uint32(place.hosts), uint32(place.host), uint32(place.owners), uint32(r.comm.Size()),
		h.handles(0), h.buffers[0], h.buffers[1], h.slot, c.part(),
	}
	switch c.Kind {
	case Reduce:
		root := placeOf(c.Root, hosts).host
		args = append(args, uint32(root), uint32(slices.Index(hosts[root], c.Root)))
	case ReduceScatter:
		stride := uint64(0) // between the ranks' outputs
		if c.InPlace {
			stride = c.part()
		}
		args = append(args, h.buffers[2], uint32(place.parts(hosts)), stride)
	}
	return launch{kernel: kernel, shape: gpu.Blocks(min(c.Blocks, hierBlocks, fit), c.Threads), args: args}, nil
}

// parts returns how many ranks of a host are one owner's in a reduce-scatter, at most.
func (p place) parts(hosts [][]int) uint64 {
	most := 0
	for _, ranks := range hosts {
		most = max(most, len(ranks))
	}
	return divideUp(uint64(most), uint64(p.owners))
}

// orderOfHosts returns what Scatter of hier.cu has of the hosts: where the ranks of each
// begin, where the last one's end, and the ranks.
func orderOfHosts(hosts [][]int) []uint32 {
	var starts, order []uint32
	at := uint32(len(hosts) + 1)
	for _, ranks := range hosts {
		starts = append(starts, at)
		at += uint32(len(ranks))
		for _, rank := range ranks {
			order = append(order, uint32(rank))
		}
	}
	return append(append(starts, at), order...)
}
