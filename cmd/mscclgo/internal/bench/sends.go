package bench

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// sends is a contestant that does an all-to-all, or a ring shift, as a group of sends and
// receives.
type sends struct{ *own }

// sendsUnshared returns a contestant whose runner does not know that the buffers are shared: it stores no
// message where it belongs. Collective the first time.
func (b *bench) sendsUnshared(ctx context.Context) (contestant, error) {
	if b.unshared == nil {
		var err error
		if b.unshared, err = collective.New(ctx, b.comm, collective.Options{Tuning: b.cfg.Tuning, MaxBlocks: b.most}); err != nil {
			return nil, err
		}
	}
	k := b.own(collective.Choice{})
	k.runner = b.unshared
	return &sends{k}, nil
}

func (k *sends) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	in, out, err := p.buffers(k.in.Buffer, k.out.Buffer)
	if err != nil {
		return nil, err
	}
	if err := k.runner.LoadGroups(ctx); err != nil {
		return nil, err
	}
	part := p.count * uint64(p.typ.Size())
	rank, froms, tos := k.comm.Rank(), []*gpu.Buffer{}, []*gpu.Buffer{}
	for peer := range p.ranks {
		from, to := in, out
		if p.collective == collective.AllToAll {
			if from, err = in.Slice(uint64(peer)*part, part); err != nil {
				return nil, err
			}
			if to, err = out.Slice(uint64(peer)*part, part); err != nil {
				return nil, err
			}
		}
		froms, tos = append(froms, from), append(tos, to)
	}
	g := k.runner.Group()
	launch := func(s *gpu.Stream) error {
		for peer := range p.ranks {
			if p.collective == collective.AllToAll || peer == (rank+1)%p.ranks {
				g.Send(s, froms[peer], p.count, p.typ, peer)
			}
			if p.collective == collective.AllToAll || rank == (peer+1)%p.ranks {
				g.Recv(s, tos[peer], p.count, p.typ, peer)
			}
		}
		return g.Launch()
	}
	return newLaunches(k.comm, k.stream, launch, iters, replays, graph)
}
