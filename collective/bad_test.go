package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestBadBuffers makes calls that cannot be. Each is refused before anything is queued,
// so that the ranks go on together.
func TestBadBuffers(t *testing.T) {
	elsewhere := testdev.Open(t, 1)
	const f32, sum = collective.F32, collective.Sum
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		r, dev := m.runner, m.comm.Device()
		whole, err := dev.Alloc(8192)
		if err != nil {
			return err
		}
		part := func(at, n uint64) *gpu.Buffer {
			b, err := whole.Slice(at, n)
			if err != nil {
				panic(err)
			}
			return b
		}
		in, out := part(0, 400), part(4096, 800)
		closed, err := dev.Alloc(400)
		if err != nil {
			return err
		}
		shut, err := dev.NewStream()
		if err != nil {
			return err
		}
		if err := errors.Join(closed.Close(), shut.Close()); err != nil {
			return err
		}
		foreign, err := elsewhere.Alloc(400)
		if err != nil {
			return err
		}
		foreignStream, err := elsewhere.NewStream()
		if err != nil {
			return err
		}
		// What is found when a call is first made must not be the buffers.
		if err := r.AllReduce(m.stream, out, in, 100, f32, sum); err != nil {
			return err
		}
		s := m.stream
		for name, call := range map[string]func() error{
			"nil input":         func() error { return r.AllReduce(s, out, nil, 100, f32, sum) },
			"nil output":        func() error { return r.AllReduce(s, nil, in, 100, f32, sum) },
			"small input":       func() error { return r.AllReduce(s, out, part(0, 399), 100, f32, sum) },
			"small output":      func() error { return r.AllReduce(s, part(4096, 399), in, 100, f32, sum) },
			"closed input":      func() error { return r.AllReduce(s, out, closed, 100, f32, sum) },
			"nil stream":        func() error { return r.AllReduce(nil, out, in, 100, f32, sum) },
			"closed stream":     func() error { return r.AllReduce(shut, out, in, 100, f32, sum) },
			"another's stream":  func() error { return r.AllReduce(foreignStream, out, in, 100, f32, sum) },
			"another's buffer":  func() error { return r.AllReduce(s, out, foreign, 100, f32, sum) },
			"overlap":           func() error { return r.AllReduce(s, part(4, 400), in, 100, f32, sum) },
			"overlap in place":  func() error { return r.AllGather(s, part(8, 800), in, 100, f32) },
			"all-to-all":        func() error { return r.AllToAll(s, out, out, 100, f32) },
			"send-receive":      func() error { return r.SendReceive(s, in, in, 100, f32) },
			"root":              func() error { return r.Broadcast(s, out, in, 100, f32, 2) },
			"root below 0":      func() error { return r.Reduce(s, out, in, 100, f32, sum, -1) },
			"type":              func() error { return r.AllReduce(s, out, in, 100, 99, sum) },
			"operation":         func() error { return r.AllReduce(s, out, in, 100, f32, 99) },
			"too many":          func() error { return r.AllReduce(s, out, in, math.MaxUint64, f32, sum) },
			"too many of parts": func() error { return r.AllGather(s, out, in, math.MaxUint64/6, f32) },
			"counts":            func() error { return r.AllToAllV(s, out, in, []uint64{1}, []uint64{1, 1}, f32) },
			"counts to itself":  func() error { return r.AllToAllV(s, out, in, []uint64{1, 1}, []uint64{2, 2}, f32) },
			"counts too large":  func() error { return r.AllToAllV(s, out, in, []uint64{99, 99}, []uint64{99, 99}, f32) },
			"sum of counts": func() error {
				return r.AllToAllV(s, out, in, []uint64{math.MaxUint64, 2}, []uint64{1, 1}, f32)
			},
			"counts, closed input":           func() error { return r.AllToAllV(s, out, closed, []uint64{1, 1}, []uint64{1, 1}, f32) },
			"counts, type":                   func() error { return r.AllToAllV(s, out, in, []uint64{1, 1}, []uint64{1, 1}, 99) },
			"counts, closed stream":          func() error { return r.AllToAllV(shut, out, in, []uint64{1, 1}, []uint64{1, 1}, f32) },
			"counts of none, closed stream":  func() error { return r.AllToAllV(shut, nil, nil, []uint64{0, 0}, []uint64{0, 0}, f32) },
			"no elements on a closed stream": func() error { return r.AllReduce(shut, nil, nil, 0, f32, sum) },
			"share nothing":                  func() error { _, err := r.Share(m.ctx, nil); return err },
		} {
			err := call()
			var typed *mscclgo.Error
			if never := name == "all-to-all" || name == "send-receive"; never && !strings.Contains(fmt.Sprint(err), name+" is never in place") {
				return fmt.Errorf("%s: %v", name, err)
			}
			if !errors.Is(err, mscclgo.ErrInvalid) || !errors.As(err, &typed) || typed.Rank != m.comm.Rank() || !strings.HasPrefix(err.Error(), "collective: ") {
				return fmt.Errorf("%s: %v", name, err)
			}
		}
		// Nothing: no buffers are needed.
		if err := r.AllReduce(s, nil, nil, 0, f32, sum); err != nil {
			return fmt.Errorf("no elements: %w", err)
		}
		if err := r.AllReduce(s, out, in, 100, f32, sum); err != nil {
			return fmt.Errorf("a good call after bad ones: %w", err)
		}
		if err := m.comm.Synchronize(m.ctx, s); err != nil {
			return err
		}
		if err := errors.Join(foreignStream.Close(), foreign.Close(), r.Close(m.ctx)); err != nil {
			return err
		}
		if err := r.AllReduce(s, out, in, 100, f32, sum); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "closed") {
			return fmt.Errorf("a closed runner: %v", err)
		}
		return nil
	})
}

// TestNil uses what was not made by its functions.
func TestNil(t *testing.T) {
	var runner *collective.Runner
	for name, call := range map[string]func(r *collective.Runner) error{
		"call":    func(r *collective.Runner) error { return r.AllReduce(nil, nil, nil, 1, collective.F32, collective.Sum) },
		"counts":  func(r *collective.Runner) error { return r.AllToAllV(nil, nil, nil, nil, nil, collective.F32) },
		"load":    func(r *collective.Runner) error { return r.Load(t.Context(), collective.Call{}) },
		"share":   func(r *collective.Runner) error { _, err := r.Share(t.Context(), nil); return err },
		"prepare": func(r *collective.Runner) error { _, err := r.Prepare(t.Context(), collective.Call{}); return err },
		"choose":  func(r *collective.Runner) error { _, err := r.Choose(collective.Call{}); return err },
		"fit":     func(r *collective.Runner) error { return r.Internal().Fits(collective.Call{}) },
		"compile": func(r *collective.Runner) error { return r.Internal().Compile(t.Context(), nil) },
		"prepare counts": func(r *collective.Runner) error {
			_, err := r.PrepareAllToAllV(t.Context(), collective.AllToAllV{})
			return err
		},
		"launch": func(*collective.Runner) error { return new(collective.Operation).Launch(nil) },
		"slice":  func(*collective.Runner) error { _, err := new(collective.Memory).Slice(0, 1); return err },
		"send":   func(r *collective.Runner) error { return r.Send(nil, nil, 0, collective.U8, 0) },
		"group": func(*collective.Runner) error {
			var g *collective.Group
			g.Send(nil, nil, 0, collective.U8, 0)
			g.Recv(nil, nil, 0, collective.U8, 0)
			return g.Launch()
		},
		"new": func(*collective.Runner) error {
			_, err := collective.New(t.Context(), nil, collective.Options{})
			return err
		},
	} {
		for _, r := range []*collective.Runner{runner, new(collective.Runner)} {
			if err := call(r); !errors.Is(err, mscclgo.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var memory *collective.Memory
	var op *collective.Operation
	if err := errors.Join(runner.Close(t.Context()), memory.Close(t.Context()), op.Close()); err != nil {
		t.Errorf("closing nothing: %v", err)
	}
	// What is no kind or type has no panic in store.
	const kind, typ = collective.Kind(99), collective.Type(99)
	if got := fmt.Sprint(kind, typ, typ.Size(), kind.Reduces(), kind.Algorithms(), kind.Internal().ByHost("direct"), kind.Bus(2)); got != "collective 99 type 99 0 false [] false 0" {
		t.Errorf("an unknown kind and type: %s", got)
	}
}

// TestNothing prepares and launches a call of 0 elements, which needs no memory.
func TestNothing(t *testing.T) {
	runMembers(t, 2, collective.Options{}, func(m *member) error {
		for _, kind := range collective.Kinds() {
			op, err := m.runner.Prepare(m.ctx, collective.Call{Kind: kind})
			if err != nil {
				return err
			}
			if err := errors.Join(op.Launch(m.stream), op.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestClosed uses memories and operations that are closed.
func TestClosed(t *testing.T) {
	runMembers(t, 2, collective.Options{}, func(m *member) error {
		b, err := m.comm.Device().Alloc(800)
		if err != nil {
			return err
		}
		memory, err := m.runner.Share(m.ctx, b)
		if err != nil {
			return err
		}
		call := collective.Call{Kind: collective.AllGather, Count: 100, Out: memory, InPlace: true, Choice: collective.Choice{Algorithm: "ports", Blocks: 1, Threads: 32}}
		var ops []*collective.Operation
		for range 2 {
			op, err := m.runner.Prepare(m.ctx, call)
			if err != nil {
				return err
			}
			if err := op.Launch(m.stream); err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
			return err
		}
		if err := ops[0].Close(); err != nil {
			return err
		}
		if err := ops[0].Launch(m.stream); !errors.Is(err, mscclgo.ErrInvalid) {
			return fmt.Errorf("a closed operation: %v", err)
		}
		view, err := memory.Slice(0, 800)
		if err != nil {
			return err
		}
		for range 2 {
			if err := memory.Close(m.ctx); err != nil {
				return err
			}
		}
		if err := ops[1].Launch(m.stream); !errors.Is(err, mscclgo.ErrInvalid) {
			return fmt.Errorf("an operation on closed memory: %v", err)
		}
		call.Out = view
		if _, err := m.runner.Prepare(m.ctx, call); !errors.Is(err, mscclgo.ErrInvalid) {
			return fmt.Errorf("a call on a view of closed memory: %v", err)
		}
		return b.Close()
	})
}

// TestClosedInGraph launches graphs whose memory, runner or buffers are closed. Nothing is
// launched, and the ranks go on.
func TestClosedInGraph(t *testing.T) {
	runMembers(t, 2, collective.Options{}, func(m *member) error {
		b, err := m.comm.Device().Alloc(800)
		if err != nil {
			return err
		}
		memory, err := m.runner.Share(m.ctx, b)
		if err != nil {
			return err
		}
		op, err := m.runner.Prepare(m.ctx, collective.Call{Kind: collective.AllReduce, Count: 100, Out: memory, InPlace: true})
		if err != nil {
			return err
		}
		other, err := collective.New(m.ctx, m.comm, collective.Options{Scratch: 4 << 10})
		if err != nil {
			return err
		}
		var own [3]*gpu.Buffer // of a call each
		for i := range own {
			if own[i], err = m.comm.Device().Alloc(800); err != nil {
				return err
			}
		}
		under, err := m.runner.Share(m.ctx, own[2])
		if err != nil {
			return err
		}
		opUnder, err := m.runner.Prepare(m.ctx, collective.Call{Kind: collective.AllReduce, Count: 100, Out: under, InPlace: true})
		if err != nil {
			return err
		}
		for _, what := range []struct {
			name        string
			call, close func() error
		}{
			{
				"a buffer of 800 bytes",
				func() error { return m.runner.AllReduce(m.stream, b, own[0], 100, collective.F32, collective.Sum) },
				own[0].Close,
			},
			{
				"a buffer of 800 bytes",
				func() error {
					return m.runner.AllToAllV(m.stream, own[1], b, []uint64{50, 50}, []uint64{50, 50}, collective.F32)
				},
				own[1].Close,
			},
			{"a buffer of 800 bytes", func() error { return opUnder.Launch(m.stream) }, own[2].Close},
			{"memory", func() error { return op.Launch(m.stream) }, func() error { return memory.Close(m.ctx) }},
			{
				"runner",
				func() error { return other.AllReduce(m.stream, b, b, 100, collective.F32, collective.Sum) },
				func() error { return other.Close(m.ctx) },
			},
		} {
			if err := m.stream.BeginCapture(); err != nil {
				return err
			}
			err := what.call()
			g, end := m.stream.EndCapture()
			if err := errors.Join(err, end); err != nil {
				return err
			}
			if err := errors.Join(g.Launch(m.stream), m.comm.Synchronize(m.ctx, m.stream), what.close()); err != nil {
				return err
			}
			if err := g.Launch(m.stream); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), what.name) {
				return fmt.Errorf("a graph of a closed %s: %v", what.name, err)
			}
			if err := g.Close(); err != nil {
				return err
			}
		}
		err = m.runner.AllReduce(m.stream, b, b, 100, collective.F32, collective.Sum)
		return errors.Join(err, m.comm.Synchronize(m.ctx, m.stream), under.Close(m.ctx), b.Close())
	})
}

// TestCommunicatorClosedFirst closes a communicator before what was made on it.
func TestCommunicatorClosedFirst(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Scratch: 1 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(collective.New(ctx, comm, collective.Options{}))(t)
		b := testerr.Must(comm.Device().Alloc(800))(t)
		memory := testerr.Must(runner.Share(ctx, b))(t)
		op := testerr.Must(runner.Prepare(ctx, collective.Call{Kind: collective.AllGather, Count: 100, Out: memory, InPlace: true, Choice: collective.Choice{Algorithm: "ports", Blocks: 1, Threads: 32}}))(t)
		stream := testerr.Must(comm.Device().NewStream())(t)
		all := func() error { return runner.AllReduce(stream, b, b, 100, collective.F32, collective.Sum) }
		testerr.Check(t, errors.Join(op.Launch(stream), all(), comm.Synchronize(ctx, stream), comm.Close()))
		for name, call := range map[string]func() error{
			"launch":  func() error { return op.Launch(stream) },
			"call":    all,
			"first":   func() error { return runner.AllReduce(stream, b, b, 99, collective.F32, collective.Sum) },
			"share":   func() error { _, err := runner.Share(ctx, b); return err },
			"prepare": func() error { _, err := runner.Prepare(ctx, collective.Call{}); return err },
		} {
			if err := call(); !errors.Is(err, mscclgo.ErrInvalid) || !strings.HasPrefix(err.Error(), "collective: ") || !strings.Contains(err.Error(), "communicator is closed") {
				return fmt.Errorf("%s on a closed communicator: %v", name, err)
			}
		}
		return errors.Join(memory.Close(ctx), runner.Close(ctx), stream.Close(), b.Close())
	})
}

// TestPreparedInOrder launches two prepared all-to-alls with counts, which differ in
// their buffers alone, in another order on each rank.
func TestPreparedInOrder(t *testing.T) {
	runMembers(t, 2, collective.Options{}, func(m *member) error {
		var ops []*collective.Operation
		for range 2 {
			in, err := m.comm.Device().Alloc(80)
			if err != nil {
				return err
			}
			out, err := m.comm.Device().Alloc(80)
			if err != nil {
				return err
			}
			parts := []collective.Part{{At: 0, Count: 10}, {At: 10, Count: 10}}
			op, err := m.runner.PrepareAllToAllV(m.ctx, collective.AllToAllV{In: in, Out: out, Sends: parts, Receives: parts})
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		me := m.comm.Rank()
		err := errors.Join(ops[me].Launch(m.stream), ops[1-me].Launch(m.stream), m.comm.Synchronize(m.ctx, m.stream))
		if err == nil {
			return errors.New("no error")
		}
		if !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrRemote) {
			return err
		}
		return errDiffer
	}, errDiffer)
}

// TestDifferentPrepare prepares calls that differ among ranks.
func TestDifferentPrepare(t *testing.T) {
	runMembers(t, 2, collective.Options{}, func(m *member) error {
		b, err := m.comm.Device().Alloc(800)
		if err != nil {
			return err
		}
		memory, err := m.runner.Share(m.ctx, b)
		if err != nil {
			return err
		}
		good := collective.Call{Kind: collective.AllReduce, Count: 100, Out: memory, InPlace: true}
		for i, spoil := range []func(*collective.Call){
			func(c *collective.Call) { c.Count = 99 },
			func(c *collective.Call) { c.Count = 201 }, // too many for the buffer
			func(c *collective.Call) { c.Kind = collective.AllGather },
			func(c *collective.Call) { c.Algorithm, c.Blocks, c.Threads = "direct", 1, 32 },
		} {
			call := good
			if m.comm.Rank() == 1 {
				spoil(&call)
			}
			_, err := m.runner.Prepare(m.ctx, call)
			if !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrRemote) {
				return fmt.Errorf("calls %d that differ: %v", i, err)
			}
		}
		_, err = m.runner.Prepare(m.ctx, good)
		return errors.Join(err, memory.Close(m.ctx), b.Close())
	})
}

// TestPrepareFailsOnOne has rank 0 prepare what cannot be. The other aborts the group with the error that it got, in
// rank 0's name and of the kind of its error.
func TestPrepareFailsOnOne(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Scratch: 1 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(collective.New(ctx, comm, collective.Options{Scratch: 4 << 10}))(t)
		buffer := testerr.Must(comm.Device().Alloc(64))(t)
		m := testerr.Must(runner.Share(ctx, buffer))(t)
		call := collective.Call{Kind: collective.AllReduce, Type: collective.F32, Count: 4, In: m, Out: m, InPlace: true}
		if comm.Rank() == 0 {
			call.Type = 99
		}
		if _, err := runner.Prepare(ctx, call); comm.Rank() == 1 {
			if mscclgo.KindOf(err) != mscclgo.ErrRemote {
				t.Errorf("of rank 0's part: %v", err)
			}
			comm.Abort(err)
		}
		<-comm.Done()
		if mscclgo.KindOf(comm.Err()) != mscclgo.ErrInvalid {
			t.Errorf("rank %d: %v", comm.Rank(), comm.Err())
		}
		return runner.Close(ctx)
	})
}

// TestEveryType reduces and moves elements of each type by each operation, in both ways.
func TestEveryType(t *testing.T) {
	detector.SkipKernels(t)
	tested := func(typ collective.Type, op collective.Op) bool {
		every := testdev.CUDA() || (int(typ)+int(op))%5 == 0 // they take seconds to compile elsewhere
		return every && collective.CanReduce(typ, op)
	}
	var calls []collective.Call
	for _, typ := range collective.Types() {
		for _, op := range collective.Ops() {
			if tested(typ, op) {
				calls = append(calls, collective.Call{Kind: collective.AllReduce, Type: typ, Op: op, Choice: collective.Choice{Algorithm: "direct"}})
			}
		}
	}
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		if testdev.CUDA() {
			if err := m.runner.Internal().Compile(m.ctx, calls); err != nil {
				return err
			}
		}
		for _, typ := range collective.Types() {
			p := &problem{Call: collective.Call{Kind: collective.AllToAll, Type: typ, Count: 1001}}
			if err := m.compare(p); err != nil {
				return err
			}
			for i, op := range collective.Ops() {
				p := &problem{Call: collective.Call{Kind: collective.AllReduce, Type: typ, Op: op, Count: []uint64{1001, 20_001}[i%2]}}
				if !collective.CanReduce(typ, op) {
					b, err := m.comm.Device().Alloc(1 << 20)
					if err != nil {
						return err
					}
					if err := m.runner.AllReduce(m.stream, b, b, 8, typ, op); !errors.Is(err, mscclgo.ErrInvalid) {
						return fmt.Errorf("%v by %v: %v", typ, op, err)
					}
					continue
				}
				if tested(typ, op) {
					if err := m.compare(p); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// TestAllToAllV sends counts that depend on both ranks, some of them 0.
func TestAllToAllV(t *testing.T) { runMembers(t, 3, collective.Options{}, (*member).exchangeCounts) }

// exchangeCounts makes all-to-alls with counts on any buffers.
func (m *member) exchangeCounts() error {
	counts := func(from, to int) uint64 { return []uint64{0, 1, 700, 12_345}[(from*2+to)%4] }
	me := m.comm.Rank()
	var sends, receives []uint64
	var data, want []int32
	for peer := range m.comm.Size() {
		sends, receives = append(sends, counts(me, peer)), append(receives, counts(peer, me))
		for i := range counts(me, peer) {
			data = append(data, int32(me*1_000_000+peer*100_000+int(i)))
		}
		for i := range counts(peer, me) {
			want = append(want, int32(peer*1_000_000+me*100_000+int(i)))
		}
	}
	in, err := gpu.Upload(m.comm.Device(), data)
	if err != nil {
		return err
	}
	out, err := gpu.Upload(m.comm.Device(), make([]int32, len(want)))
	if err != nil {
		return err
	}
	for range 2 {
		if err := m.runner.AllToAllV(m.stream, out, in, sends, receives, collective.I32); err != nil {
			return err
		}
	}
	if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
		return err
	}
	got := make([]int32, len(want))
	if err := gpu.CopyOut(got, out); err != nil {
		return err
	}
	if diff := testcmp.Diff(want, got); diff != "" {
		return fmt.Errorf("rank %d got something else (-want +got):\n%.2000s", me, diff)
	}
	return errors.Join(in.Close(), out.Close())
}
