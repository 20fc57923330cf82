package communicator

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// drainPatience bounds how long Time waits for queued work after an error.
const drainPatience = time.Second

// Time returns how long the devices take for the work that queue puts on the stream,
// on the slowest rank. All ranks begin together, and Time returns when the work of all
// ranks is done. Collective.
//
// If queue fails on one rank, the kernels of others may wait for that rank: abort the
// group with the error, as [Run] does.
//
// Errors: ErrInvalid for a nil stream or function, which is ErrRemote on the other ranks; the error of
// queue; as for [Communicator.Synchronize].
func (c *Communicator) Time(ctx context.Context, s *gpu.Stream, queue func() error) (slowest time.Duration, err error) {
	const op = "communicator: time a stream's work"
	if err := c.usable(op); err != nil {
		return 0, err
	}
	k := c.begin("time", op)
	if s == nil {
		err = k.errorf(mscclgo.ErrInvalid, mscclgo.NoRank, "the stream is nil")
	} else if queue == nil {
		err = k.errorf(mscclgo.ErrInvalid, mscclgo.NoRank, "there is no function that queues work")
	}
	if err := k.agree(ctx, err); err != nil {
		return 0, err
	}
	mine, err := c.timeOwn(ctx, s, queue)
	if err != nil {
		return 0, err
	}
	all, err := k.gather(ctx, binary.LittleEndian.AppendUint64(nil, uint64(mine)), nil)
	if err != nil {
		return 0, err
	}
	for rank, b := range all {
		if len(b) != 8 {
			return 0, k.errorf(mscclgo.ErrRemote, rank, "its time has %d bytes, not 8", len(b))
		}
		slowest = max(slowest, time.Duration(binary.LittleEndian.Uint64(b)))
	}
	return slowest, nil
}

// timeOwn times the work of this rank.
func (c *Communicator) timeOwn(ctx context.Context, s *gpu.Stream, queue func() error) (took time.Duration, err error) {
	var marks [2]*gpu.Event
	for i := range marks {
		if marks[i], err = c.dev.NewEvent(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, marks[i].Close()) }()
	}
	if err := s.Record(marks[0]); err != nil {
		return 0, err
	}
	if err := queue(); err != nil {
		// Work that was queued should end before the caller frees what it uses.
		ctx, cancel := context.WithTimeout(ctx, drainPatience)
		defer cancel()
		_ = s.Synchronize(ctx)
		return 0, err
	}
	if err := s.Record(marks[1]); err != nil {
		return 0, err
	}
	if err := c.Synchronize(ctx, s); err != nil {
		return 0, err
	}
	return marks[1].Since(marks[0])
}
