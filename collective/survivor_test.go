package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	survivorPart  = 300 // elements
	survivorRanks = 4   // at most
	survivorSlot  = 4 * survivorPart * survivorRanks
)

// survivor is a rank that goes from group to group with its runner, and one graph of all its calls.
type survivor struct {
	comm          *communicator.Communicator
	runner        *Runner
	stream        *gpu.Stream
	in, out       *gpu.Buffer
	inAll, outAll *Memory
	ops           []*Operation
	graph         *gpu.Graph
	step          int32
	large         uint64 // as groupSizes.large, unless it is 0
}

// survivorCall is a call in a survivor's graph: a prepared one, or one that is queued.
type survivorCall struct {
	Call
	queue func(s *survivor, out *gpu.Buffer) error
}

// survivorCalls returns the calls of a graph, of ranks on one host or on several.
func survivorCalls(several bool) (all []survivorCall) {
	type of struct {
		kind       Kind
		algorithms []string
	}
	prepared := []of{
		{AllReduce, []string{"oneShotLL8", "oneShotLL128", "twoShotLL16", "direct", "pushed", "ring", "staged"}},
		{AllGather, []string{"LL16", "LL128", "direct", "bulk", "ports"}},
		{AllToAll, []string{"LL8", "LL128", "direct", "bulk", "ports"}},
		{Gather, []string{"slots", "ports"}},
	}
	if several {
		prepared = []of{
			{AllReduce, []string{"ring", "hier", "hierRing", "hierTree"}},
			{AllGather, []string{"ports", "hier"}},
			{AllToAll, []string{"ports", "hier"}},
			{Gather, []string{"ports", "hier"}},
		}
	}
	for _, by := range prepared {
		for _, name := range by.algorithms {
			all = append(all, survivorCall{Call: Call{Kind: by.kind, Type: I32, Count: survivorPart, Choice: Choice{name, 4, 64}}})
		}
	}
	each := func(s *survivor) []uint64 {
		counts := make([]uint64, s.comm.Size())
		for i := range counts {
			counts[i] = survivorPart
		}
		return counts
	}
	return append(all,
		survivorCall{Call{Kind: AllReduce}, func(s *survivor, out *gpu.Buffer) error {
			return s.runner.AllReduce(s.stream, out, s.in, survivorPart, I32, Sum)
		}},
		survivorCall{Call{Kind: AllGather}, func(s *survivor, out *gpu.Buffer) error {
			return s.runner.AllGather(s.stream, out, s.in, survivorPart, I32)
		}},
		survivorCall{Call{Kind: AllToAll}, func(s *survivor, out *gpu.Buffer) error {
			return s.runner.AllToAll(s.stream, out, s.in, survivorPart, I32)
		}},
		survivorCall{Call{Kind: AllToAll}, func(s *survivor, out *gpu.Buffer) error {
			return s.runner.AllToAllV(s.stream, out, s.in, each(s), each(s), I32)
		}},
		survivorCall{Call{Kind: Gather}, func(s *survivor, out *gpu.Buffer) error {
			return s.runner.Gather(s.stream, out, s.in, survivorPart, I32, 0)
		}},
		survivorCall{Call{Kind: SendReceive}, func(s *survivor, out *gpu.Buffer) error {
			g, n, me := s.runner.Group(), s.comm.Size(), s.comm.Rank()
			g.Send(s.stream, s.in, survivorPart, I32, (me+1)%n)
			g.Recv(s.stream, out, survivorPart, I32, (me+n-1)%n)
			return g.Launch()
		}},
	)
}

// calls returns the calls of the rank's graph.
func (s *survivor) calls() []survivorCall { return survivorCalls(len(s.comm.Hosts()) > 1) }

// slot returns where a call's output begins.
func (s *survivor) slot(i int) uint64 { return uint64(i) * survivorSlot }

// enter makes the rank one of a group. kept reports whether its graph is right there; else there is a new one.
func (s *survivor) enter(ctx context.Context, boot communicator.Bootstrap, device *gpu.Device, o communicator.Options) (kept bool, err error) {
	var comm *communicator.Communicator
	if s.comm == nil {
		comm, err = communicator.New(ctx, boot, device, o)
	} else {
		comm, err = s.comm.Reform(ctx, boot, s.stream)
	}
	if err != nil {
		return false, err
	}
	s.comm = comm
	if s.stream == nil {
		if s.stream, err = device.NewStream(); err != nil {
			return false, err
		}
		if s.in, err = device.Alloc(survivorSlot); err != nil {
			return false, err
		}
		if s.out, err = device.Alloc(s.slot(len(s.calls()))); err != nil {
			return false, err
		}
	}
	kept = s.graph != nil
	and := func(captured bool, failed error) bool {
		kept, err = kept && captured, failed
		return err == nil
	}
	if s.runner == nil {
		s.runner, err = New(ctx, s.comm, Options{Scratch: 1 << 20})
	} else {
		and(s.runner.Reform(ctx, s.comm))
	}
	if err != nil {
		return false, fmt.Errorf("the runner: %w", err)
	}
	if s.large > 0 {
		s.runner.groups.sizes.large = s.large
	}
	for _, side := range []struct {
		m **Memory
		b *gpu.Buffer
	}{{&s.inAll, s.in}, {&s.outAll, s.out}} {
		if *side.m == nil {
			*side.m, err = s.runner.Share(ctx, side.b)
		} else {
			and((*side.m).Reform(ctx))
		}
		if err != nil {
			return false, fmt.Errorf("a memory: %w", err)
		}
	}
	for i, c := range s.calls() {
		if c.queue != nil {
			continue
		}
		if i < len(s.ops) {
			if !and(s.ops[i].Reform(ctx)) {
				return false, fmt.Errorf("%v by %s: %w", c.Kind, c.Algorithm, err)
			}
			continue
		}
		view, err := s.outAll.Slice(s.slot(i), survivorSlot)
		if err != nil {
			return false, err
		}
		c.In, c.Out = s.inAll, view
		op, err := s.runner.Prepare(ctx, c.Call)
		if err != nil {
			return false, fmt.Errorf("%v by %s: %w", c.Kind, c.Algorithm, err)
		}
		s.ops = append(s.ops, op)
	}
	// Newcomers take the step of the others, who may not all have made the same one last.
	steps, err := s.comm.AllGather(ctx, binary.LittleEndian.AppendUint32(nil, uint32(s.step)))
	if err != nil {
		return false, err
	}
	for _, step := range steps {
		s.step = max(s.step, int32(binary.LittleEndian.Uint32(step)))
	}
	if kept {
		return true, nil
	}
	return false, s.capture()
}

func (s *survivor) capture() error {
	if err := s.stream.BeginCapture(); err != nil {
		return err
	}
	var err error
	for i, c := range s.calls() {
		out, sliced := s.out.Slice(s.slot(i), survivorSlot)
		if err = sliced; err == nil && c.queue != nil {
			err = c.queue(s, out)
		} else if err == nil {
			err = s.ops[i].Launch(s.stream)
		}
		if err != nil {
			err = fmt.Errorf("capture call %d, %v: %w", i, c.Kind, err)
			break
		}
	}
	graph, ended := s.stream.EndCapture()
	if err := errors.Join(err, ended); err != nil {
		return err
	}
	if s.graph != nil {
		err = s.graph.Close()
	}
	s.graph = graph
	return err
}

// value is an element of a rank's input.
func (s *survivor) value(rank, i int) int32 { return int32(10000*rank+i) + s.step }

// works launches the graph once, and checks every element of all calls.
func (s *survivor) works(ctx context.Context) error {
	n, me := s.comm.Size(), s.comm.Rank()
	in := make([]int32, survivorSlot/4)
	for i := range in {
		in[i] = s.value(me, i)
	}
	got := make([]int32, s.out.Size()/4)
	if err := errors.Join(gpu.CopyIn(s.in, in), gpu.CopyIn(s.out, got), s.comm.Barrier(ctx), s.graph.Launch(s.stream), s.comm.Synchronize(ctx, s.stream), s.comm.Barrier(ctx), gpu.CopyOut(got, s.out)); err != nil {
		return err
	}
	for k, c := range s.calls() {
		for i := range survivorPart * n {
			rank, at, want := i/survivorPart, i%survivorPart, int32(0)
			switch {
			case c.Kind == AllReduce && rank == 0:
				for r := range n {
					want += s.value(r, at)
				}
			case c.Kind == AllGather, c.Kind == Gather && me == c.Root:
				want = s.value(rank, at)
			case c.Kind == AllToAll:
				want = s.value(rank, me*survivorPart+at)
			case c.Kind == SendReceive && rank == 0:
				want = s.value((me+n-1)%n, at)
			}
			if have := got[s.slot(k)/4+uint64(i)]; have != want {
				return &wrongElement{fmt.Sprintf("rank %d of %d: element %d of call %d, %v by %q, is %d, not %d", me, n, i, k, c.Kind, c.Algorithm, have, want)}
			}
		}
	}
	s.step++
	return nil
}

// wrongElement is an error that must not be, whatever has failed.
type wrongElement struct{ text string }

func (w *wrongElement) Error() string { return w.text }

func (s *survivor) close(ctx context.Context) error {
	return errors.Join(s.runner.Close(ctx), s.graph.Close(), s.comm.Close(), s.stream.Close(), s.in.Close(), s.out.Close())
}
