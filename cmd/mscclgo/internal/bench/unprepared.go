package bench

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
)

// withUnprepared is the name of this library's calls on any buffer, which
// Config.Unprepared times beside the prepared ones.
const withUnprepared = "unprepared"

// unprepared is a contestant that calls on buffers for which nothing was prepared. It
// uses the memory of the prepared calls as plain buffers.
type unprepared struct{ *own }

func (u *unprepared) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	launch, err := u.launch(ctx, p)
	if err != nil {
		return nil, err
	}
	return newLaunches(u.comm, u.stream, launch, iters, replays, graph)
}

// launch returns what queues the call. It prepares what the first call would.
// Collective.
func (u *unprepared) launch(ctx context.Context, p *problem) (func(*gpu.Stream) error, error) {
	in, out, err := p.buffers(u.in.Buffer, u.out.Buffer)
	if err != nil {
		return nil, err
	}
	if err := u.runner.Load(ctx, u.call(p)); err != nil {
		return nil, err
	}
	return func(s *gpu.Stream) error { return callUnprepared(u.runner, s, out, in, p) }, nil
}

// roundings allows for the ring and for sums of hosts, which the runner may choose.
func (u *unprepared) roundings(ranks int) int { return max(1+len(u.comm.Hosts()), ranks-1) }

// callUnprepared queues a call on any buffers.
func callUnprepared(r *collective.Runner, s *gpu.Stream, out, in *gpu.Buffer, p *problem) error {
	switch p.collective {
	case collective.AllReduce:
		return r.AllReduce(s, out, in, p.count, p.typ, p.op)
	case collective.AllGather:
		return r.AllGather(s, out, in, p.count, p.typ)
	case collective.ReduceScatter:
		return r.ReduceScatter(s, out, in, p.count, p.typ, p.op)
	case collective.AllToAll:
		return r.AllToAll(s, out, in, p.count, p.typ)
	case collective.SendReceive:
		return r.SendReceive(s, out, in, p.count, p.typ)
	case collective.Broadcast:
		return r.Broadcast(s, out, in, p.count, p.typ, p.root)
	case collective.Reduce:
		return r.Reduce(s, out, in, p.count, p.typ, p.op, p.root)
	case collective.Gather:
		return r.Gather(s, out, in, p.count, p.typ, p.root)
	case collective.Scatter:
		return r.Scatter(s, out, in, p.count, p.typ, p.root)
	}
	return fmt.Errorf("bench: there is no unprepared %v", p.collective)
}
