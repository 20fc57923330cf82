package bench

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
)

// counted is a contestant that does an all-to-all as one with counts, which are all the
// same.
type counted struct{ *own }

func (k *counted) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	in, out, err := p.buffers(k.in.Buffer, k.out.Buffer)
	if err != nil {
		return nil, err
	}
	call := collective.AllToAllV{Type: p.typ, In: in, Out: out, Overlap: k.overlap}
	for rank := range p.ranks {
		part := collective.Part{At: uint64(rank) * p.count, Count: p.count}
		call.Sends, call.Receives = append(call.Sends, part), append(call.Receives, part)
	}
	op, err := k.runner.PrepareAllToAllV(ctx, call)
	if err != nil {
		return nil, err
	}
	return newLaunches(k.comm, k.stream, op.Launch, iters, replays, graph)
}
