// Package measure checks and times one configuration of a collective on all
// ranks of a group.
package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Operation is one configuration of a collective on one rank.
type Operation interface {
	// Prepare fills the inputs with random data that belong to the seed, which
	// is the same on all ranks, and poisons the outputs.
	Prepare(seed uint64) error
	// Launch queues the operation once.
	Launch(s *gpu.Stream) error
	// Wrong counts this rank's output elements that are not right for the seed.
	Wrong(seed uint64) (int, error)
}

// Run checks the operation, times iters of it after warmup others, and checks it
// again with other data. It gives the slowest rank's time for one operation and
// the wrong elements of all ranks. Collective.
func Run(ctx context.Context, c *communicator.Communicator, s *gpu.Stream, op Operation, warmup, iters int) (time.Duration, int, error) {
	seed, err := agreeOnSeed(ctx, c)
	if err != nil {
		return 0, 0, err
	}
	wrong, err := check(ctx, c, s, op, seed)
	if err != nil {
		return 0, 0, err
	}
	took, err := timed(ctx, c, s, op, warmup, iters)
	if err != nil {
		return 0, 0, err
	}
	again, err := check(ctx, c, s, op, seed+1)
	if err != nil {
		return 0, 0, err
	}
	return collect(ctx, c, took, wrong+again)
}

// Seeds gives the seed of each rank's data.
func Seeds(seed uint64, ranks int) []uint64 {
	seeds := make([]uint64, ranks)
	for r := range seeds {
		seeds[r] = seed*0x9e3779b97f4a7c15 + uint64(r)
	}
	return seeds
}

// agreeOnSeed gives all ranks rank 0's choice.
func agreeOnSeed(ctx context.Context, c *communicator.Communicator) (uint64, error) {
	w := wire.NewWriter(8)
	w.U64(rand.Uint64())
	b, err := c.Bootstrap().Broadcast(ctx, 0, w.Bytes())
	if err != nil {
		return 0, err
	}
	r := wire.NewReader(b)
	return r.U64(), r.End()
}

func check(ctx context.Context, c *communicator.Communicator, s *gpu.Stream, op Operation, seed uint64) (int, error) {
	if err := op.Prepare(seed); err != nil {
		return 0, err
	}
	// A peer must not write into this rank's outputs before they are poisoned.
	if err := c.Barrier(ctx); err != nil {
		return 0, err
	}
	if err := op.Launch(s); err != nil {
		return 0, err
	}
	if err := c.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	return op.Wrong(seed)
}

func timed(ctx context.Context, c *communicator.Communicator, s *gpu.Stream, op Operation, warmup, iters int) (took time.Duration, err error) {
	var marks [2]*gpu.Event
	for i := range marks {
		if marks[i], err = c.Device().NewEvent(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, marks[i].Close()) }()
	}
	if err := c.Barrier(ctx); err != nil {
		return 0, err
	}
	for i := range warmup + iters {
		if i == warmup {
			if err := s.Record(marks[0]); err != nil {
				return 0, err
			}
		}
		if err := op.Launch(s); err != nil {
			return 0, err
		}
		if c.Err() != nil {
			return 0, giveUp(ctx, c, s)
		}
		if ctx.Err() != nil {
			return 0, mscclgo.FromContext(ctx, "measure: launch an operation", "")
		}
	}
	if err := s.Record(marks[1]); err != nil {
		return 0, err
	}
	if err := c.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	total, err := marks[1].Since(marks[0])
	return total / time.Duration(iters), err
}

// drainPatience bounds how long a rank of a failed group waits for what it has
// queued.
const drainPatience = time.Second

// giveUp lets queued kernels, whose waits end as aborted, end before what they
// use is closed, and gives the group's error.
func giveUp(ctx context.Context, c *communicator.Communicator, s *gpu.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	_ = s.Synchronize(ctx) // the error worth telling is the group's
	return c.Err()
}

// collect gives the longest time and the sum of wrong elements of all ranks.
func collect(ctx context.Context, c *communicator.Communicator, took time.Duration, wrong int) (time.Duration, int, error) {
	w := wire.NewWriter(16)
	w.U64(uint64(took))
	w.U64(uint64(wrong))
	all, err := c.Bootstrap().AllGather(ctx, w.Bytes())
	if err != nil {
		return 0, 0, err
	}
	took, wrong = 0, 0
	for rank, b := range all {
		r := wire.NewReader(b)
		took = max(took, time.Duration(r.U64()))
		wrong += int(r.U64())
		if err := r.End(); err != nil {
			return 0, 0, mscclgo.Errorf(mscclgo.ErrRemote, "measure: collect results", "%w", err).At(c.Rank(), rank)
		}
	}
	return took, wrong, nil
}
