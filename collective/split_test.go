package collective_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestSplit all-reduces in a group, in its halves and in its pairs by turns, without
// waiting in between, and checks every sum.
func TestSplit(t *testing.T) {
	const count, rounds = 3000, 3
	testgroup.Run(t, 4, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		var runs []*splitRun
		for _, color := range []int{0, comm.Rank() / 2, comm.Rank() % 2} {
			r := testerr.Must(newSplitRun(ctx, comm, color, count))(t)
			runs = append(runs, r)
		}
		for range rounds {
			for _, r := range runs {
				testerr.Check(t, r.runner.AllReduce(r.stream, r.data, r.data, count, collective.I32, collective.Sum))
			}
		}
		var errs []error
		for _, r := range runs {
			errs = append(errs, r.check(ctx, rounds))
		}
		testerr.Check(t, errors.Join(errs...))
		for _, r := range runs {
			errs = append(errs, r.runner.Close(ctx), r.child.Close(), r.stream.Close(), r.data.Close())
		}
		return errors.Join(errs...)
	})
}

// splitRun is what a rank all-reduces with in one child.
type splitRun struct {
	child  *communicator.Communicator
	runner *collective.Runner
	stream *gpu.Stream
	data   *gpu.Buffer
}

func newSplitRun(ctx context.Context, comm *communicator.Communicator, color, count int) (*splitRun, error) {
	r := &splitRun{}
	var err error
	if r.child, err = comm.Split(ctx, color, 0); err != nil {
		return nil, err
	}
	if r.runner, err = collective.New(ctx, r.child, collective.Options{}); err != nil {
		return nil, err
	}
	if r.stream, err = comm.Device().NewStream(); err != nil {
		return nil, err
	}
	ones := make([]int32, count)
	for i := range ones {
		ones[i] = int32(i)
	}
	r.data, err = gpu.Upload(comm.Device(), ones)
	return r, err
}

// check checks the sums of so many all-reduces in place.
func (r *splitRun) check(ctx context.Context, rounds int) error {
	if err := r.child.Synchronize(ctx, r.stream); err != nil {
		return err
	}
	got := make([]int32, r.data.Size()/4)
	if err := gpu.CopyOut(got, r.data); err != nil {
		return err
	}
	for i, v := range got {
		want := int32(i)
		for range rounds {
			want *= int32(r.child.Size())
		}
		if v != want {
			return fmt.Errorf("element %d of a group of %d is %d, not %d", i, r.child.Size(), v, want)
		}
	}
	return nil
}
