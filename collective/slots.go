package collective

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// slots has the root send to all, or receive from all, as a group of sends and receives: by packets, or through the
// receivers' slots.
type slots struct{ traits }

var throughSlots = &slots{traits{name: "slots", warps: true}}

func (a *slots) fits(_ *Runner, c *Call) error {
	if c.part() >= mostMessage {
		return fmt.Errorf("parts of %d bytes are larger than the %d that %s moves", c.part(), uint64(mostMessage-1), a.name)
	}
	return nil
}

func (a *slots) reach(Kind) reach { return reachNothing }

func (a *slots) load(ctx context.Context, r *Runner, c *Call) (launchable, error) {
	if err := r.groups.load(ctx, r); err != nil {
		return launchable{}, err
	}
	return r.groups.kernel(ctx, r, "blocks", c.Threads)
}

// launch takes the addresses of this rank's buffers alone.
func (a *slots) launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch {
	g := &Group{runner: r, ofAll: true, unplaced: true, waits: !c.Overlap, blocks: uint64(min(c.Blocks, k.fit))}
	from, to, rank := ownOf(r, in), ownOf(r, out), r.comm.Rank()
	add := func(receives bool, peer int, at gpu.Ptr) {
		g.messages = append(g.messages, message{address: at, count: c.Count, typ: c.Type, peer: peer, receives: receives})
	}
	one, all := from, to // of a gather
	if c.Kind == Scatter {
		one, all = to, from
	}
	if rank != c.Root {
		add(c.Kind == Scatter, c.Root, one)
	}
	for peer := 0; rank == c.Root && peer < r.comm.Size(); peer++ {
		switch at := all + gpu.Ptr(uint64(peer)*c.part()); {
		case peer != rank:
			add(c.Kind == Gather, peer, at)
		case at != one:
			add(c.Kind == Gather, rank, at)
			add(c.Kind == Scatter, rank, one)
		}
	}
	defer r.groups.empty()
	t, err := g.sorted()
	if err != nil {
		return launch{err: err}
	}
	return r.groups.launch(r, t, k, c.Blocks, c.Threads)
}

// ownOf returns where this rank has a memory.
func ownOf(r *Runner, m layout.PeerMemory) gpu.Ptr {
	if r.group.Rank < layout.RanksByValue {
		return m.Ranks[r.group.Rank]
	}
	return m.Own
}
