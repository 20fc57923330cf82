package bench

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// contestant is one way to solve problems: one of this library's algorithms, or
// another library.
type contestant interface {
	// buffers returns the contestant's input and output.
	buffers() (in, out *gpu.Buffer)
	// repeat prepares the problem, iters times, for a number of replays.
	repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error)
	// roundings returns how often a reduced element of that many ranks is rounded, at
	// most.
	roundings(ranks int) int
}

// own is one of this library's algorithms.
type own struct {
	comm    *communicator.Communicator
	runner  *collective.Runner
	stream  *gpu.Stream
	in, out *collective.Memory
	choice  collective.Choice
	overlap bool
	blocks  int // of the last kernel that was prepared
}

func (o *own) buffers() (in, out *gpu.Buffer) { return o.in.Buffer, o.out.Buffer }

// call returns the runner's call for a problem.
func (o *own) call(p *problem) collective.Call {
	return collective.Call{
		Kind: p.collective, Choice: o.choice, Type: p.typ, Op: p.op, Count: p.count, Root: p.root,
		In: o.in, Out: o.out, InPlace: p.inPlace, Overlap: o.overlap,
	}
}

func (o *own) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	op, err := o.runner.Prepare(ctx, o.call(p))
	if err != nil {
		return nil, err
	}
	o.blocks = op.Choice().Blocks
	return newLaunches(o.comm, o.stream, op.Launch, iters, replays, graph)
}

func (o *own) roundings(ranks int) int {
	switch o.choice.Algorithm {
	case "ring":
		return max(1, ranks-1) // a partial result is rounded at each rank that it passes
	case "hier", "hierRing", "hierTree":
		return 1 + len(o.comm.Hosts()) // the reduction of each host, and theirs
	}
	return 1
}

// verify fills the contestant's buffers, runs the problem once, and counts the
// wrong elements of all ranks. same is whether all ranks' outputs have the same bits.
// Collective.
func (r *referee) verify(ctx context.Context, c *communicator.Communicator, k contestant, p *problem, seed uint64) (wrong int, same bool, err error) {
	in, out := k.buffers()
	if err := r.fill(ctx, p, in, out, seed); err != nil {
		return 0, false, err
	}
	once, err := k.repeat(ctx, p, 1, 1, false)
	if err != nil {
		return 0, false, err
	}
	defer once.close()
	// A peer must not write into this rank's output before it is poisoned.
	if err := c.Barrier(ctx); err != nil {
		return 0, false, err
	}
	if err := once.queue(ctx); err != nil {
		return 0, false, err
	}
	if err := once.wait(ctx); err != nil {
		return 0, false, err
	}
	mine, sum, err := r.check(ctx, p, out, seed, k.roundings(p.ranks))
	if err != nil {
		return 0, false, err
	}
	return agree(ctx, c, mine, sum)
}

// agree adds up all ranks' wrong elements and compares their checksums.
// Collective.
func agree(ctx context.Context, c *communicator.Communicator, wrong int, sum uint64) (all int, same bool, err error) {
	w := wire.NewWriter(16)
	w.U64(uint64(wrong))
	w.U64(sum)
	parts, err := c.AllGather(ctx, w.Bytes())
	if err != nil {
		return 0, false, err
	}
	same = true
	for _, b := range parts {
		r := wire.NewReader(b)
		all += int(r.U64())
		same = r.U64() == sum && same
		if err := r.End(); err != nil {
			return 0, false, err
		}
	}
	return all, same, nil
}
