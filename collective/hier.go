package collective

import (
	"context"
	_ "embed"
	"errors"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed kernels/hier.cu
var hierSource []byte

// hierBlocks is how many blocks the hierarchical all-reduce has at most: each has
// connections of its own.
const hierBlocks = 4

// hierChannels are what the hierarchical all-reduce needs for outputs of one size.
type hierChannels struct {
	inbox    *gpu.Buffer
	slot     uint64                     // bytes of a slot of the inbox
	channels *communicator.PortChannels // from inbox to inbox
}

// place says where a rank is among the hosts.
type place struct {
	hosts, host, owners int
	peers               []int // the owners of this rank's shard on the other hosts
}

// placeOf finds it. Each host has as many owners as the smallest has ranks.
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
func (r *Runner) hier(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return nil, err
	}
	h, err := r.hostPath(ctx)
	if err != nil {
		return nil, err
	}
	place := placeOf(r.comm.Rank(), r.comm.Hosts())
	channels, err := h.hierChannels(ctx, c.Out.Size(), place)
	if err != nil {
		return nil, err
	}
	var handles gpu.Ptr // none on a rank that owns nothing
	if channels.channels.Handles != nil {
		handles = channels.channels.Handles.Ptr()
	}
	in, out := c.In.Peers, c.Out.Peers
	if c.InPlace {
		in = out
	}
	return &Operation{kernel, gpu.Blocks(min(c.Blocks, hierBlocks, fit), c.Threads), []any{
		r.group, in, out, uint32(place.hosts), uint32(place.host), uint32(place.owners),
		handles, channels.inbox, channels.slot, c.part(),
	}}, nil
}

// hierChannels gives the channels for outputs of a size, the same on all ranks.
// One call ends before the next begins, whatever its output, so those of one size
// share them.
func (h *hostPath) hierChannels(ctx context.Context, size uint64, place place) (_ *hierChannels, err error) {
	if channels := h.hiers[size]; channels != nil {
		return channels, nil
	}
	c := &hierChannels{slot: divideUp(divideUp(size, line), uint64(place.owners)) * line}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.inbox, err = h.comm.Device().Alloc(2 * uint64(place.hosts) * c.slot); err != nil {
		return nil, err
	}
	if c.channels, err = h.comm.PortChannels(ctx, h.service, c.inbox, communicator.PortChannelOptions{PerPeer: hierBlocks, Peers: place.peers}); err != nil {
		return nil, err
	}
	h.hiers[size] = c
	return c, nil
}

func (c *hierChannels) close() error {
	var errs []error
	if c.channels != nil {
		errs = append(errs, c.channels.Close())
	}
	if c.inbox != nil {
		errs = append(errs, c.inbox.Close())
	}
	return errors.Join(errs...)
}
