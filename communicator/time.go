package communicator

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// drainPatience bounds how long a rank waits for what it has queued when it gives up.
const drainPatience = time.Second

// Time returns how long the ranks' devices take for what queue puts on the stream:
// the slowest rank's time. The ranks begin together and return when the work of all
// is done. Collective.
//
// Errors: queue's, and those of [Communicator.Synchronize].
func (c *Communicator) Time(ctx context.Context, s *gpu.Stream, queue func() error) (slowest time.Duration, err error) {
	const op = "communicator: time a stream's work"
	if err := c.usable(op); err != nil {
		return 0, err
	}
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
	if err := s.Record(marks[0]); err != nil {
		return 0, err
	}
	if err := queue(); err != nil {
		// What it queued ends before what that uses is closed, where it ends soon.
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
	mine, err := marks[1].Since(marks[0])
	if err != nil {
		return 0, err
	}
	all, err := c.AllGather(ctx, binary.LittleEndian.AppendUint64(nil, uint64(mine)))
	if err != nil {
		return 0, err
	}
	for rank, b := range all {
		if len(b) != 8 {
			return 0, mscclgo.Errorf(mscclgo.ErrRemote, op, "its time has %d bytes, not 8", len(b)).At(c.Rank(), rank)
		}
		slowest = max(slowest, time.Duration(binary.LittleEndian.Uint64(b)))
	}
	return slowest, nil
}
