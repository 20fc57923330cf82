package collective

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// exchange moves the parts by the hosts' copy engines, each straight to its place.
type exchange struct{ traits }

var ports = &exchange{traits{name: "ports", kernel: "exchange", unit: file("exchange.cu"), hosts: true, free: true, blocks: 2}}

func (a *exchange) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	ranks, rank := uint32(r.comm.Size()), uint32(r.comm.Rank())
	// A thread for each rank, though a tuning knows of fewer ranks.
	const warp, mostThreads = 32, 1024
	if ranks > mostThreads {
		return launch{}, r.invalid(c, "prepare", fmt.Errorf("%s is for at most %d ranks, and there are %d", c.Algorithm, mostThreads, ranks))
	}
	c.Threads = max(c.Threads, int(divideUp(uint64(ranks), warp)*warp))
	local := c.input()
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{a.name, local, c.Out}, func(h *hostPath) {
		h.connect(ctx, local.Buffer, communicator.PortChannelOptions{Inbox: c.Out.Buffer})
	})
	if err != nil {
		return launch{}, err
	}
	// The offsets are in the buffers, and every rank's are alike.
	type peers struct{ First, Count uint32 }
	others, fan := peers{1, ranks - 1}, uint64(max(ranks, 2)-1)
	to, from, part := others, others, c.part()
	src, dst, stride := uint64(0), uint64(0), uint64(0)
	own, place := local.Ptr(), c.Out.Ptr()
	kind := c.Kind.spec()
	if kind.gathered {
		dst = uint64(rank) * part
		place += gpu.Ptr(dst)
	}
	if kind.scattered {
		stride = part
		own += gpu.Ptr(uint64(rank) * part)
	} else if c.InPlace && kind.gathered {
		src = uint64(rank) * part
		own += gpu.Ptr(src)
	}
	switch {
	case kind.rooted:
		root := peers{(uint32(c.Root) + ranks - rank) % ranks, 1}
		switch gathers := c.Kind == Gather; {
		case rank != uint32(c.Root) && gathers:
			to, from, own = root, peers{}, 0
		case rank != uint32(c.Root):
			to, from, own = peers{}, root, 0
		case gathers:
			to = peers{}
		default:
			from = peers{}
		}
	case !kind.gathered && ranks > 1: // to the next rank
		to, from, own, fan = peers{1, 1}, peers{ranks - 1, 1}, 0, 1
	}
	// The grid is alike on all ranks, also where nothing stays.
	blocks, lead := 1, uint64(0)
	if !c.InPlace && (own != 0 || kind.rooted) {
		blocks = r.bounded(blocks + min(c.Blocks, 16))
	}
	if len(r.comm.Hosts()) == 1 && k.fit > 1 {
		if lead = exchangeLead(part, fan); lead > 0 {
			blocks = 1 + min(max(c.Blocks, 16), k.fit-1)
		}
	}
	call := struct {
		Channels         gpu.Ptr
		Rank, Ranks      uint32
		To, From         peers
		Dst, Src, Stride uint64
		Bytes, Lead      uint64
	}{h.handles(0), rank, ranks, to, from, dst, src, stride, part, lead}
	return launch{kernel: k.kernel, shape: gpu.Blocks(blocks, c.Threads), args: []any{call, own, place, r.group, local.Buffer, c.Out.peers()}}, nil
}

// exchangeLead returns how much of each of `fan` parts threads move, which takes them
// about as long as a copy engine needs to begin: 9 us over NVLink.
func exchangeLead(part, fan uint64) uint64 {
	const all = 3 << 20
	return min(all/fan, part/8) / line * line
}
