package main

import (
	"context"
	_ "embed"
	"errors"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed hier.cu
var hierSource []byte

// hierReducer launches the kernels of hier.cu for one pair of buffers.
type hierReducer struct {
	comm     *communicator.Communicator
	group    devicecode.Group      // of this host's ranks
	in, out  devicecode.PeerMemory // likewise
	service  *proxyservice.ProxyService
	module   *gpu.Module
	place    place
	inbox    *gpu.Buffer
	slot     uint64                     // bytes of a slot of the inbox
	channels *communicator.PortChannels // from inbox to inbox
	blocks   int                        // each with channels of its own
	threads  int
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

// newHierReducer loads the kernels and makes the channels. Collective.
func newHierReducer(ctx context.Context, comm *communicator.Communicator, in, out buffer, blocks, threads int) (h *hierReducer, err error) {
	h = &hierReducer{comm: comm, blocks: blocks, threads: threads, place: placeOf(comm.Rank(), comm.Hosts())}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if h.module, err = devicecode.Load(ctx, comm.Device(), "hier.cu", hierSource, devicecode.Options{}); err != nil {
		return h, err
	}
	if h.in, err = in.memory.HostHandle(); err != nil {
		return h, err
	}
	if h.out, err = out.memory.HostHandle(); err != nil {
		return h, err
	}
	if h.group, err = comm.HostGroup(ctx); err != nil {
		return h, err
	}
	const line = 16
	owners := uint64(h.place.owners)
	h.slot = ((out.Size()+line-1)/line + owners - 1) / owners * line
	if h.inbox, err = comm.Device().Alloc(2 * uint64(h.place.hosts) * h.slot); err != nil {
		return h, err
	}
	if h.service, err = comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return h, err
	}
	h.channels, err = comm.PortChannels(ctx, h.service, h.inbox, communicator.PortChannelOptions{PerPeer: blocks, Peers: h.place.peers})
	return h, err
}

// launch queues the all-reduce of count elements.
func (h *hierReducer) launch(s *gpu.Stream, typ, op string, count uint64) error {
	kernel, err := h.module.Kernel("hier_" + typ + "_" + op)
	if err != nil {
		return err
	}
	var channels gpu.Ptr // none on a rank that owns nothing
	if h.channels.Handles != nil {
		channels = h.channels.Handles.Ptr()
	}
	return kernel.Launch(s, gpu.Blocks(h.blocks, h.threads), h.group, h.in, h.out,
		uint32(h.place.hosts), uint32(h.place.host), uint32(h.place.owners), channels, h.inbox, h.slot, count)
}

// close releases everything, when no rank uses it any more.
func (h *hierReducer) close() error {
	var errs []error
	if h.service != nil {
		errs = append(errs, h.service.Close())
	}
	if h.channels != nil {
		errs = append(errs, h.channels.Close())
	}
	if h.inbox != nil {
		errs = append(errs, h.inbox.Close())
	}
	if h.module != nil {
		errs = append(errs, h.module.Close())
	}
	return errors.Join(errs...)
}
