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

// The names of the algorithms that go between hosts in a ring and in trees.
const (
	hierRing = "hierRing"
	hierTree = "hierTree"
)

// leastSums is the bytes of the sums of a line of data, at most; see sumsGrow.
const leastSums = 4 * line

// place is where a rank is among the hosts.
type place struct {
	hosts        [][]int // in the order of the ranks that own this rank's shard there, in which the channels to those are
	host, owners int
	peers        []int // the owners of this rank's shard on the other hosts
}

// placeOf returns the place of a rank. Each host has as many owners as the smallest has ranks. Ranks that own no shard have
// no channels.
func placeOf(rank int, hosts [][]int) place {
	p := place{hosts: slices.Clone(hosts), owners: len(hosts[0]), peers: []int{}}
	here := func(ranks []int) bool { return slices.Contains(ranks, rank) }
	for _, ranks := range hosts {
		p.owners = min(p.owners, len(ranks))
	}
	shard := slices.Index(hosts[slices.IndexFunc(hosts, here)], rank)
	if shard < p.owners {
		slices.SortFunc(p.hosts, func(a, b []int) int { return cmp.Compare(a[shard], b[shard]) })
	}
	p.host = slices.IndexFunc(p.hosts, here)
	for host, ranks := range p.hosts {
		if host != p.host && shard < p.owners {
			p.peers = append(p.peers, ranks[shard])
		}
	}
	return p
}

// hier reduces within hosts by threads, and between them by the hosts' ports, all at once. Its inbox is the runner's,
// for calls on any memories: a call whose sums do not fit into the slots is made in pieces, a launch each.
type hier struct{ traits }

// betweenHosts returns the algorithm of a name, with a kernel.
func betweenHosts(name, kernel string) *hier {
	return &hier{traits{name: name, kernel: kernel, unit: file("hier.cu"), hosts: true, between: true, threads: boundedThreads}}
}

func (a *hier) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	place := r.place
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{"hier", nil, nil}, func(h *hostPath) {
		inbox := h.allocate(ctx, 2*place.halfOf(r.staging.room), 0)
		// How many calls there were, for each block.
		h.allocate(ctx, 4*hierBlocks, 4*hierBlocks)
		upload(ctx, h, place.order())
		h.connect(ctx, inbox, communicator.PortChannelOptions{PerPeer: r.bounded(hierBlocks), Peers: place.peers})
	})
	if err != nil {
		return launch{}, err
	}
	half, slots, stride := h.buffers[0].Size()/2, a.slots(place, c), uint64(0)
	slot := half / slots / line * line
	most := slot / (line * c.sumsGrow()) * line // bytes that owners have a slot for
	if c.Kind != ReduceScatter {
		most *= uint64(place.owners)
	} else if c.InPlace {
		stride = c.part() // between the ranks' outputs
	}
	var all []launch
	piece := piecesOf(c.part(), most)
	for at := uint64(0); at < c.part(); at += piece {
		in, out := c.input().peers(), c.Out.peers()
		in.Shift(int(r.group.Size), at, 0)
		out.Shift(int(r.group.Size), at, 0)
		args := []any{
			r.group, in, out, uint32(len(place.hosts)), uint32(place.host), uint32(place.owners), uint32(r.comm.Size()),
			h.handles(0), h.buffers[0], h.buffers[1], half, slot, min(piece, c.part()-at),
		}
		switch c.Kind {
		case Reduce:
			args = append(args, place.root(c)...)
		case ReduceScatter:
			args = append(args, h.buffers[2], uint32(place.parts()), c.part(), stride)
		}
		all = append(all, launch{kernel: k.kernel, shape: gpu.Blocks(min(c.Blocks, hierBlocks, k.fit), c.Threads), args: args})
	}
	last := all[len(all)-1]
	last.before = all[:len(all)-1]
	return last, nil
}

// bounded returns n blocks, or fewer where Options.MaxBlocks says so.
func (r *Runner) bounded(n int) int {
	if r.maxBlocks > 0 {
		return min(n, r.maxBlocks)
	}
	return n
}

// slots returns how many slots a call has in a half of the inbox; see hier.cu.
func (a *hier) slots(p place, c *Call) uint64 {
	switch {
	case c.Kind == ReduceScatter:
		return 2 * uint64(len(p.hosts)) * p.parts()
	case a.name == hierRing:
		return 2
	case a.name == hierTree:
		return 3
	}
	return uint64(len(p.hosts))
}

// halfOf returns the bytes of a half of an inbox that has so many bytes, but for slots of the least size.
func (p place) halfOf(room uint64) uint64 {
	return max(room/2/line*line, 2*uint64(len(p.hosts))*p.parts()*leastSums)
}

// parts returns how many ranks of a host are one owner's in a reduce-scatter, at most.
func (p place) parts() uint64 {
	most := 0
	for _, ranks := range p.hosts {
		most = max(most, len(ranks))
	}
	return divideUp(uint64(most), uint64(p.owners))
}

// root returns what kernels take of the root: its host, and which of the ranks there it is.
func (p place) root(c *Call) []any {
	host := slices.IndexFunc(p.hosts, func(ranks []int) bool { return slices.Contains(ranks, c.Root) })
	return []any{uint32(host), uint32(slices.Index(p.hosts[host], c.Root))}
}

// order returns what Scatter of hier.cu has of the hosts: where the ranks of each
// begin, where the last one's end, and the ranks.
func (p place) order() []uint32 {
	var starts, order []uint32
	at := uint32(len(p.hosts) + 1)
	for _, ranks := range p.hosts {
		starts = append(starts, at)
		at += uint32(len(ranks))
		for _, rank := range ranks {
			order = append(order, uint32(rank))
		}
	}
	return append(append(starts, at), order...)
}
