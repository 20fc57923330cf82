package collective

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// TestVariableCounts makes calls of thousands of counts. They have few plans, which are kept, and what is kept of the
// calls is bounded. The graph of an early call is right after all of them, and in the group that follows.
func TestVariableCounts(t *testing.T) {
	const early, counts = 100, 5000
	s := newSurvivors(t, make([]communicator.Options, 2))
	call := func(r *survivor, count uint64) error {
		return r.runner.AllReduce(r.stream, r.out, r.in, count, I32, Sum)
	}
	replay := func(r *survivor) error {
		data := make([]int32, early)
		if err := errors.Join(gpu.CopyIn(r.out, data), r.graph.Launch(r.stream), r.comm.Synchronize(s.ctx, r.stream), gpu.CopyOut(data, r.out)); err != nil {
			return err
		}
		for i, got := range data {
			if want := int32(2*i + 1); got != want {
				return fmt.Errorf("element %d is %d, not %d", i, got, want)
			}
		}
		return nil
	}
	boots := newBoots(s, 2)
	s.each(2, func(rank int) (err error) {
		r := &survivor{}
		s.all[rank] = r
		if r.comm, err = communicator.New(s.ctx, boots[rank], s.devices[rank], s.options[rank]); err != nil {
			return err
		}
		if r.runner, err = New(s.ctx, r.comm, Options{}); err != nil {
			return err
		}
		if r.stream, err = r.comm.Device().NewStream(); err != nil {
			return err
		}
		data := make([]int32, counts)
		for i := range data {
			data[i] = int32(i + rank)
		}
		if r.in, err = gpu.Upload(r.comm.Device(), data); err != nil {
			return err
		}
		if r.out, err = gpu.Upload(r.comm.Device(), data); err != nil {
			return err
		}
		if err := errors.Join(call(r, early), r.stream.BeginCapture(), call(r, early)); err != nil {
			return err
		}
		if r.graph, err = r.stream.EndCapture(); err != nil {
			return err
		}
		first := maps.Clone(r.runner.plans)
		for count := range uint64(counts) {
			if err := call(r, count+1); err != nil {
				return fmt.Errorf("%d elements: %w", count+1, err)
			}
		}
		if plans, calls := len(r.runner.plans), len(r.runner.calls); plans > 10 || calls > mostCalls {
			return fmt.Errorf("%d plans and %d calls are kept", plans, calls)
		}
		for key, p := range first {
			if r.runner.plans[key] != p {
				return fmt.Errorf("the plan of the first call was dropped: %+v", key)
			}
		}
		return replay(r)
	})
	s.all[1].comm.Abort(errors.New("the disk is full"))
	boots = newBoots(s, 2)
	s.each(2, func(rank int) (err error) {
		r := s.all[rank]
		<-r.comm.Done()
		if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err != nil {
			return err
		}
		if captured, err := r.runner.Reform(s.ctx, r.comm); err != nil || !captured {
			return fmt.Errorf("the graph is right in the next group: %v, %v", captured, err)
		}
		return errors.Join(replay(r), call(r, counts), r.comm.Synchronize(s.ctx, r.stream))
	})
	s.close()
}
