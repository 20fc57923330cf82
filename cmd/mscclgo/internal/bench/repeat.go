package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// repeated is an operation that is ready to be queued a number of times on its stream.
type repeated interface {
	// queue queues all of them.
	queue(ctx context.Context) error
	// mark records mark i, from 0.
	mark(i int) error
	// wait waits until all that was queued is done.
	wait(ctx context.Context) error
	// between returns the time from one mark to another.
	between(i, j int) (time.Duration, error)
	close() error
}

// timed queues the operations `leadIn` times, which brings the ranks together,
// then `replays` times with marks between them, while the host does not wait. It
// returns the time of one operation in each replay, the slowest rank's. Collective.
func timed(ctx context.Context, c *communicator.Communicator, r repeated, iters, leadIn, replays int) ([]time.Duration, error) {
	if err := c.Barrier(ctx); err != nil {
		return nil, err
	}
	for range leadIn {
		if err := r.queue(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.mark(0); err != nil {
		return nil, err
	}
	for i := range replays {
		if err := r.queue(ctx); err != nil {
			return nil, err
		}
		if err := r.mark(i + 1); err != nil {
			return nil, err
		}
	}
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	took := make([]time.Duration, replays)
	for i := range took {
		var err error
		if took[i], err = r.between(i, i+1); err != nil {
			return nil, err
		}
	}
	slowest, err := slowestOf(ctx, c, took)
	for i := range slowest {
		slowest[i] /= time.Duration(iters)
	}
	return slowest, err
}

// inTurns times what is ready, one after the other in each round. Collective.
func inTurns(ctx context.Context, c *communicator.Communicator, cfg *Config, ready []repeated) (times []Times, err error) {
	taken := make([][]time.Duration, len(ready))
	leadIn := max(1, (cfg.Warmup+cfg.Iters-1)/cfg.Iters)
	for range cfg.Rounds {
		for i, r := range ready {
			took, err := timed(ctx, c, r, cfg.Iters, leadIn, cfg.Replays)
			if err != nil {
				return nil, err
			}
			taken[i] = append(taken[i], took...)
		}
	}
	for _, took := range taken {
		times = append(times, Times{median(took), slices.Min(took), slices.Max(took)})
	}
	return times, nil
}

// slowestOf returns, for each of several times, the longest of all ranks'.
// Collective.
func slowestOf(ctx context.Context, c *communicator.Communicator, mine []time.Duration) ([]time.Duration, error) {
	w := wire.NewWriter(8 * len(mine))
	for _, d := range mine {
		w.U64(uint64(d))
	}
	all, err := c.AllGather(ctx, w.Bytes())
	if err != nil {
		return nil, err
	}
	slowest := make([]time.Duration, len(mine))
	for rank, b := range all {
		r := wire.NewReader(b)
		for i := range slowest {
			slowest[i] = max(slowest[i], time.Duration(r.U64()))
		}
		if err := r.End(); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, "bench: collect times", "%w", err).At(c.Rank(), rank)
		}
	}
	return slowest, nil
}

// median returns the middle one, or the mean of the two in the middle.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return (d[(len(d)-1)/2] + d[len(d)/2]) / 2
}

// launches are repeated launches on a stream, in a graph or one by one.
type launches struct {
	comm   *communicator.Communicator
	stream *gpu.Stream
	launch func(*gpu.Stream) error
	iters  int
	graph  *gpu.Graph // nil for plain launches
	marks  []*gpu.Event
}

// newLaunches prepares iters launches, with marks for a number of replays.
func newLaunches(c *communicator.Communicator, s *gpu.Stream, launch func(*gpu.Stream) error, iters, replays int, graph bool) (_ *launches, err error) {
	l := &launches{comm: c, stream: s, launch: launch, iters: iters}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for range replays + 1 {
		e, err := c.Device().NewEvent()
		if err != nil {
			return nil, err
		}
		l.marks = append(l.marks, e)
	}
	if !graph {
		return l, nil
	}
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	var failed error
	for range iters {
		if failed = launch(s); failed != nil {
			break
		}
	}
	l.graph, err = s.EndCapture()
	return l, errors.Join(failed, err)
}

func (l *launches) queue(ctx context.Context) error {
	if l.graph != nil {
		return l.graph.Launch(l.stream)
	}
	for range l.iters {
		if err := l.launch(l.stream); err != nil {
			return err
		}
		if l.comm.Err() != nil {
			return l.giveUp(ctx)
		}
		if ctx.Err() != nil {
			return mscclgo.FromContext(ctx, "bench: launch an operation", "")
		}
	}
	return nil
}

// drainPatience bounds how long a rank of a failed group waits for what it has
// queued.
const drainPatience = time.Second

// giveUp waits until queued kernels, whose waits end as aborted, have ended, since what
// they use is closed next, and returns the group's error.
func (l *launches) giveUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	_ = l.stream.Synchronize(ctx) // the group's error is the one that matters
	return l.comm.Err()
}

func (l *launches) mark(i int) error {
	if i >= len(l.marks) {
		return fmt.Errorf("mark %d of %d", i, len(l.marks))
	}
	return l.stream.Record(l.marks[i])
}

func (l *launches) wait(ctx context.Context) error { return l.comm.Synchronize(ctx, l.stream) }

func (l *launches) between(i, j int) (time.Duration, error) { return l.marks[j].Since(l.marks[i]) }

func (l *launches) close() error {
	var errs []error
	if l.graph != nil {
		errs = append(errs, l.graph.Close())
	}
	for _, e := range l.marks {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
