package bench

import (
	"context"

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
	call := u.call(p)
	if err := u.runner.Load(ctx, call); err != nil {
		return nil, err
	}
	return func(s *gpu.Stream) error { return u.runner.Do(s, out, in, call) }, nil
}

// roundings allows for the ring and for sums of hosts, which the runner may choose.
func (u *unprepared) roundings(ranks int) int { return max(1+len(u.comm.Hosts()), ranks-1) }
