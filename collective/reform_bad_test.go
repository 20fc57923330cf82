package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
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
	s := newSurvivors(t, 2, communicator.Options{Scratch: 1 << 20})
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
	s := newSurvivors(t, 2, communicator.Options{Scratch: 1 << 20})
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

// TestReformHosts carries runners of ranks on several hosts, where data go through channels that are made
// anew: the graphs are not right, and new ones are.
func TestReformHosts(t *testing.T) {
	options := testgroup.Network(0, 0, 1)
	s := newSurvivors(t, 3, communicator.Options{})
	type hosted struct {
		runner       *Runner
		memory       *Memory
		op           *Operation
		data, result *gpu.Buffer
		stream       *gpu.Stream
		graph        *gpu.Graph
		comm         *communicator.Communicator
	}
	const count = 700
	all := make([]hosted, 3)
	capture := func(h *hosted) error {
		if err := h.stream.BeginCapture(); err != nil {
			return err
		}
		g, n, me := h.runner.Group(), h.comm.Size(), h.comm.Rank()
		g.Send(h.stream, h.data, count, I32, (me+1)%n)
		g.Recv(h.stream, h.result, count, I32, (me+n-1)%n)
		err := errors.Join(g.Launch(), h.op.Launch(h.stream), h.runner.AllReduce(h.stream, h.data, h.data, count, I32, Sum))
		graph, ended := h.stream.EndCapture()
		h.graph = graph
		return errors.Join(err, ended)
	}
	works := func(h *hosted) error {
		in, got, sent := make([]int32, count), make([]int32, count), make([]int32, count)
		for i := range in {
			in[i] = int32(1000*h.comm.Rank() + i)
		}
		if err := errors.Join(gpu.CopyIn(h.data, in), h.comm.Barrier(s.ctx), h.graph.Launch(h.stream), h.comm.Synchronize(s.ctx, h.stream), gpu.CopyOut(got, h.data), gpu.CopyOut(sent, h.result)); err != nil {
			return err
		}
		for i := range in {
			want, from := int32(3*(3000+3*i)), int32(1000*((h.comm.Rank()+2)%3)+i)
			if got[i] != want || sent[i] != from {
				return fmt.Errorf("element %d is %d and %d, not %d and %d", i, got[i], sent[i], want, from)
			}
		}
		return h.comm.Barrier(s.ctx)
	}
	for generation := range 3 {
		boots := newBoots(s, 3)
		s.each(3, func(rank int) (err error) {
			h := &all[rank]
			if generation == 0 {
				if h.comm, err = communicator.New(s.ctx, boots[rank], s.devices[rank], options[rank]); err != nil {
					return err
				}
				h.stream, err = s.devices[rank].NewStream()
				if err == nil {
					h.data, err = s.devices[rank].Alloc(4 * count)
				}
				if err == nil {
					h.result, err = s.devices[rank].Alloc(4 * count)
				}
				if err == nil {
					h.runner, err = New(s.ctx, h.comm, Options{})
				}
				if err == nil {
					h.memory, err = h.runner.Share(s.ctx, h.data)
				}
				if err == nil {
					h.op, err = h.runner.Prepare(s.ctx, Call{Kind: AllReduce, Type: I32, Count: count, Out: h.memory, InPlace: true})
				}
				if err != nil {
					return err
				}
				return errors.Join(capture(h), works(h))
			}
			if h.comm, err = h.comm.Reform(s.ctx, boots[rank], h.stream); err != nil {
				return err
			}
			captured, err := h.runner.Reform(s.ctx, h.comm)
			if err != nil || captured {
				return fmt.Errorf("graphs through the host are right: %v, %v", captured, err)
			}
			if _, err := h.memory.Reform(s.ctx); err != nil {
				return err
			}
			if captured, err = h.op.Reform(s.ctx); err != nil || captured {
				return fmt.Errorf("graphs of an operation through the host are right: %v, %v", captured, err)
			}
			if err := errors.Join(refused("the old graph", h.graph.Launch(h.stream), "capture it again"), h.graph.Close()); err != nil {
				return err
			}
			return errors.Join(capture(h), works(h))
		})
		if generation < 2 {
			all[2].comm.Abort(errors.New("the network is down"))
			<-all[0].comm.Done()
			<-all[1].comm.Done()
		}
	}
	s.each(3, func(rank int) error {
		h := &all[rank]
		return errors.Join(h.runner.Close(context.Background()), h.graph.Close(), h.comm.Close(), h.stream.Close(), h.data.Close(), h.result.Close())
	})
}

// TestReformForeign has other code capture a call, whose graph is right in the next group and keeps its place
// among the calls there.
func TestReformForeign(t *testing.T) {
	s := newSurvivors(t, 2, communicator.Options{Scratch: 1 << 20})
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
			// Behind that of the other code, on another stream.
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
		if err := errors.Join(o.graph.Close(), o.stream.Close(), o.device.Close()); err != nil {
			t.Error(err)
		}
	}
}
