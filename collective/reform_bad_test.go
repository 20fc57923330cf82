package collective

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// refused returns an error unless err is of kind ErrInvalid and has the text.
func refused(what string, err error, text string) error {
	if errors.Is(err, mscclgo.ErrInvalid) && strings.Contains(err.Error(), text) {
		return nil
	}
	return fmt.Errorf("%s: %v; want one that says %q", what, err, text)
}

// TestReformUncarried uses what was not carried to the next group, and carries what cannot be.
func TestReformUncarried(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 2))
	type left struct {
		comm  *communicator.Communicator
		view  *Memory
		graph *gpu.Graph // of prepared calls
	}
	all := make([]left, 2)
	s.goOn(2, func(r *survivor) error {
		l := &all[r.comm.Rank()]
		l.comm = r.comm
		_, again := r.runner.Reform(s.ctx, r.comm)
		_, memory := r.inAll.Reform(s.ctx)
		_, operation := r.ops[0].Reform(s.ctx)
		var err error
		if l.view, err = r.inAll.Slice(0, 4); err != nil {
			return err
		}
		if err := r.stream.BeginCapture(); err != nil {
			return err
		}
		err = r.ops[0].Launch(r.stream)
		graph, ended := r.stream.EndCapture()
		l.graph = graph
		return errors.Join(err, ended, s.works(r),
			refused("a runner of the group", again, "of this group already"),
			refused("a memory of the group", memory, "of the runner's group already"),
			refused("an operation of the group", operation, "of the runner's group already"))
	})
	s.all[0].comm.Abort(errors.New("the disk is full"))
	<-s.all[1].comm.Done()
	boots := newBoots(s, 2)
	s.each(2, func(rank int) (err error) {
		r, l := s.all[rank], &all[rank]
		if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err != nil {
			return err
		}
		launched, called, grouped := r.ops[0].Launch(r.stream), r.runner.AllReduce(r.stream, r.out, r.in, survivorPart, I32, Sum), r.runner.Send(r.stream, r.in, 1, I32, 0)
		_, nothing := r.runner.Reform(s.ctx, nil)
		_, old := r.runner.Reform(s.ctx, l.comm)
		if err := errors.Join(
			refused("a graph before the runner is carried", r.graph.Launch(r.stream), "capture it again"),
			refused("an operation before the runner is carried", launched, "Runner.Reform"),
			refused("a call before the runner is carried", called, "Runner.Reform"),
			refused("a group before the runner is carried", grouped, "Runner.Reform"),
			refused("no communicator", nothing, "the communicator is nil"),
			refused("the communicator of before", old, "not one that"),
		); err != nil {
			return err
		}
		if captured, err := r.runner.Reform(s.ctx, r.comm); err != nil || !captured {
			return fmt.Errorf("the runner is carried: %v, %v", captured, err)
		}
		_, view := l.view.Reform(s.ctx)
		_, early := r.ops[0].Reform(s.ctx) // on both ranks
		_, prepared := r.runner.Prepare(s.ctx, Call{Kind: AllReduce, Type: I32, Count: 1, Out: r.inAll, InPlace: true})
		if err := errors.Join(
			refused("a view", view, "carried with the memory"),
			refused("an operation before its memory", early, "Memory.Reform"),
			refused("a call of a memory of before", prepared, "Memory.Reform"),
			refused("an operation of before", r.ops[0].Launch(r.stream), "Operation.Reform"),
			refused("a graph of operations of before", l.graph.Launch(r.stream), "capture it again"),
		); err != nil {
			return err
		}
		for _, m := range []*Memory{r.inAll, r.outAll} {
			if captured, err := m.Reform(s.ctx); err != nil || !captured {
				return fmt.Errorf("a memory is carried: %v, %v", captured, err)
			}
		}
		if err := refused("a graph of operations of before", l.graph.Launch(r.stream), "capture it again"); err != nil {
			return err
		}
		// What is not carried can be closed, and does not hold up the others.
		if err := errors.Join(r.ops[1].Close(), r.ops[2].Close()); err != nil {
			return err
		}
		for i, op := range r.ops {
			if i == 1 || i == 2 {
				if _, err := op.Reform(s.ctx); refused("a closed operation", err, "it is closed") != nil {
					return err
				}
				continue
			}
			if captured, err := op.Reform(s.ctx); err != nil || !captured {
				return fmt.Errorf("operation %d is carried: %v, %v", i, captured, err)
			}
		}
		return errors.Join(
			refused("a graph with closed operations of before", r.graph.Launch(r.stream), "capture it again"),
			l.graph.Launch(r.stream), r.comm.Synchronize(s.ctx, r.stream), l.graph.Close())
	})
	s.all[0].comm.Abort(errors.New("the end"))
	<-s.all[1].comm.Done()
	s.each(2, func(rank int) error { return s.all[rank].close(s.ctx) })
}

// TestReformTwice has a second failure in the middle of carrying a runner, and in the middle of what it has.
func TestReformTwice(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 2))
	s.goOn(2, s.works)
	for range 2 { // what has failed is told from what a rank has carried before
		s.all[0].comm.Abort(errors.New("the disk is full"))
		<-s.all[1].comm.Done()
		for step := range 3 {
			boots := newBoots(s, 2)
			s.each(2, func(rank int) (err error) {
				r := s.all[rank]
				if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err != nil {
					return err
				}
				fails := func() {
					if rank == 1 {
						r.comm.Abort(errors.New("a second failure"))
					}
				}
				if step == 0 {
					fails()
				}
				if _, failed := r.runner.Reform(s.ctx, r.comm); (failed == nil) != (step > 0) {
					return fmt.Errorf("step %d: the runner is carried: %v", step, failed)
				}
				if step == 0 {
					if _, err := r.runner.Reform(s.ctx, r.comm); err == nil {
						return errors.New("the runner was carried to a group that had failed")
					}
					return nil
				}
				if _, err := r.inAll.Reform(s.ctx); err != nil {
					return err
				}
				if step == 1 {
					if err := r.comm.Barrier(s.ctx); err != nil {
						return err
					}
					fails()
					<-r.comm.Done()
				}
				if _, failed := r.outAll.Reform(s.ctx); (failed == nil) != (step > 1) {
					return fmt.Errorf("step %d: a memory is carried: %v", step, failed)
				}
				return nil
			})
		}
		s.want(s.goOn(2, s.works), true)
	}
	s.close()
}

// TestReformTwiceOnHosts has a second failure at moments while channels between hosts are carried. No address is
// lost by it.
func TestReformTwiceOnHosts(t *testing.T) {
	s := newSurvivors(t, testgroup.Network(0, 1))
	s.goOn(2, s.works)
	s.all[0].comm.Abort(errors.New("the disk is full"))
	<-s.all[1].comm.Done()
	carry := func(r *survivor) error {
		if _, err := r.runner.Reform(s.ctx, r.comm); err != nil {
			return err
		}
		for _, m := range []*Memory{r.inAll, r.outAll} {
			if _, err := m.Reform(s.ctx); err != nil {
				return err
			}
		}
		for _, o := range r.ops {
			if _, err := o.Reform(s.ctx); err != nil {
				return err
			}
		}
		return nil
	}
	failed, longer := false, time.Duration(2)
	if testing.Short() {
		longer = 4
	}
	for delay := time.Duration(0); delay < 400*time.Millisecond; delay = max(longer*delay, 3*time.Millisecond) {
		boots := newBoots(s, 2)
		var all [2]error
		s.each(2, func(rank int) (err error) {
			r := s.all[rank]
			if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err != nil {
				return err
			}
			if rank == 1 {
				fail := time.AfterFunc(delay, func() { r.comm.Abort(errors.New("a second failure")) })
				defer fail.Stop()
			}
			all[rank] = carry(r)
			return nil
		})
		for rank, err := range all {
			if err != nil && !strings.Contains(err.Error(), "a second failure") {
				t.Errorf("rank %d, after %v: %v", rank, delay, err)
			}
		}
		if all[0] == nil && all[1] == nil {
			break
		}
		failed = true
	}
	if !failed {
		t.Error("nothing failed meanwhile")
	}
	s.want(s.goOn(2, s.works), true)
	s.close()
}

// TestReformForeign has other code capture a call, whose graph is right in the next group and keeps its place
// among the calls there.
func TestReformForeign(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 2))
	type other struct {
		device *gpu.Device
		stream *gpu.Stream
		graph  *gpu.Graph
	}
	all := make([]other, 2)
	const count = 500
	works := func(r *survivor) error {
		o := &all[r.comm.Rank()]
		twice, err := r.out.Slice(survivorSlot, survivorSlot)
		if err != nil {
			return err
		}
		for round := range int32(5) {
			in, got := make([]int32, count), make([]int32, count)
			for i := range in {
				in[i] = int32(i+r.comm.Rank()) + round
			}
			err := errors.Join(gpu.CopyIn(r.in, in), gpu.CopyIn(r.out, got), r.comm.Barrier(s.ctx), o.graph.Launch(o.stream))
			// Behind the other code's graph, on another stream.
			err = errors.Join(err, r.runner.AllReduce(r.stream, twice, r.out, count, I32, Sum), r.comm.Synchronize(s.ctx, r.stream), gpu.CopyOut(got, twice))
			if err != nil {
				return err
			}
			for i, have := range got {
				if want := 2 * (2*(int32(i)+round) + 1); have != want {
					return fmt.Errorf("element %d of round %d is %d, not %d", i, round, have, want)
				}
			}
			if err := errors.Join(o.stream.Synchronize(s.ctx), r.comm.Barrier(s.ctx)); err != nil {
				return err
			}
		}
		return nil
	}
	s.goOn(2, func(r *survivor) error {
		o := &all[r.comm.Rank()]
		var err error
		if o.device, err = gpu.Open(r.comm.Device().String()); err != nil {
			return err
		}
		if o.stream, err = o.device.NewStream(); err != nil {
			return err
		}
		wrapped, err := r.comm.Device().WrapStream(o.stream.Handle())
		if err != nil {
			return err
		}
		call := Call{Kind: AllReduce, Type: I32, Op: Sum, Count: count}
		if err := errors.Join(r.runner.Load(s.ctx, call), o.stream.BeginCapture(), r.runner.AllReduce(wrapped, r.out, r.in, count, I32, Sum)); err != nil {
			return err
		}
		if o.graph, err = o.stream.EndCapture(); err != nil {
			return err
		}
		return errors.Join(works(r), wrapped.Close())
	})
	for range 2 {
		s.all[0].comm.Abort(errors.New("the disk is full"))
		<-s.all[1].comm.Done()
		s.want(s.goOn(2, works), true)
	}
	s.close()
	for _, o := range all {
		testerr.Report(t, errors.Join(o.graph.Close(), o.stream.Close(), o.device.Close()))
	}
}
