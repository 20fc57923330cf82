package collective_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// others is other code of the process: it has the same GPU, and streams of its own, which
// the chain wraps.
type others struct {
	dev     *gpu.Device
	streams []*gpu.Stream // of dev
}

// newOthers adds streams of other code to a chain.
func newOthers(c *chain, streams int) (*others, error) {
	dev, err := gpu.Open(c.comm.Device().String())
	if err != nil {
		return nil, err
	}
	o := &others{dev: dev}
	for range streams {
		theirs, err := dev.NewStream()
		if err != nil {
			return nil, err
		}
		o.streams = append(o.streams, theirs)
		wrapped, err := c.comm.Device().WrapStream(theirs.Handle())
		if err != nil {
			return nil, err
		}
		c.streams = append(c.streams, wrapped)
	}
	return o, nil
}

// newChainAndOthers makes a chain with streams of its own and of other code.
func newChainAndOthers(m *member, own, theirs int) (*chain, *others, error) {
	c, err := newChain(m, own)
	if err != nil {
		return nil, nil, err
	}
	o, err := newOthers(c, theirs)
	return c, o, err
}

func (o *others) close() error {
	var errs []error
	for _, s := range o.streams { // on which the end of the calls may be marked
		errs = append(errs, s.Synchronize(context.Background()), s.Close())
	}
	return errors.Join(append(errs, o.dev.Close())...)
}

// TestForeignStreams makes calls at random on streams of this program and of others, which
// capture some and launch the graphs. Nothing but the calls' own order keeps them apart.
func TestForeignStreams(t *testing.T) {
	for _, algorithm := range []string{"oneShotLL16", "pushed"} {
		t.Run(algorithm, func(t *testing.T) {
			runMembers(t, 2, collective.Options{Tuning: only(collective.AllReduce, algorithm), Scratch: 4 << 10}, func(m *member) error {
				c, o, err := newChainAndOthers(m, 1, 2)
				if err != nil {
					return err
				}
				type graph struct {
					*gpu.Graph
					parity int
				}
				var graphs []graph
				random := rand.New(rand.NewPCG(3, 4)) // alike on all ranks
				for range 60 {
					i := random.IntN(len(o.streams))
					switch kind := random.IntN(6); {
					case kind == 0 && c.calls > 0:
						s := c.streams[1+i]
						if len(graphs) == 0 {
							if err := c.comm.Synchronize(c.ctx, s); err != nil {
								return err
							}
						}
						if err := c.settle(); err != nil {
							return err
						}
						before := c.calls
						if err := o.streams[i].BeginCapture(); err != nil {
							return err
						}
						err := errors.Join(c.call(s), c.call(s))
						g, end := o.streams[i].EndCapture()
						if err := errors.Join(err, end, c.settle()); err != nil {
							return err
						}
						c.calls = before
						graphs = append(graphs, graph{g, before % 2})
					case kind <= 2 && len(graphs) > 0:
						g := graphs[random.IntN(len(graphs))]
						if g.parity != c.calls%2 { // its calls begin with the other buffer
							if err := c.call(c.streams[0]); err != nil {
								return err
							}
						}
						if err := g.Launch(o.streams[i]); err != nil {
							return err
						}
						c.calls += 2
					default:
						if err := c.call(c.streams[random.IntN(len(c.streams))]); err != nil {
							return err
						}
					}
				}
				if len(graphs) < 2 {
					return fmt.Errorf("%d graphs were captured", len(graphs))
				}
				err = c.check()
				for _, g := range graphs {
					err = errors.Join(err, g.Close())
				}
				return errors.Join(err, c.close(), o.close())
			})
		})
	}
}

// TestForeignCaptureLeft closes the stream that has the last call while other code captures it: that call
// cannot be waited for, and the error says how to go on.
func TestForeignCaptureLeft(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, o, err := newChainAndOthers(m, 1, 1)
		if err != nil {
			return err
		}
		wrapped := c.streams[1]
		c.streams = c.streams[:1]
		if err := errors.Join(c.call(wrapped), c.comm.Synchronize(c.ctx, wrapped), c.settle(), o.streams[0].BeginCapture(), wrapped.Close()); err != nil {
			return err
		}
		if err := c.call(c.streams[0]); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "go on with another communicator") {
			return fmt.Errorf("a call behind one of a stream that is gone: %v", err)
		}
		g, err := o.streams[0].EndCapture()
		if err != nil {
			return err
		}
		return errors.Join(g.Close(), c.close(), o.close())
	})
}

// TestDefaultStreams makes calls on the default streams, among others.
func TestDefaultStreams(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c, err := newChain(m, 1)
		if err != nil {
			return err
		}
		const legacy, perThread = 1, 2
		for handle := range uintptr(3) {
			if handle <= legacy && m.comm.Internal().Sharers() > 1 {
				continue // ranks that share a GPU share its legacy stream, and would wait for each other on it
			}
			s, err := m.comm.Device().WrapStream(handle)
			if err != nil {
				return err
			}
			c.streams = append(c.streams, s)
		}
		if last := c.streams[len(c.streams)-1]; last.Handle() != perThread {
			return fmt.Errorf("the last stream has handle %#x", last.Handle())
		}
		for i := range 20 {
			if err := c.call(c.streams[i*7%len(c.streams)]); err != nil {
				return err
			}
		}
		return errors.Join(c.check(), c.close())
	})
}

// TestWrappedForEachCall wraps a stream of other code anew for each call, also in captures, of
// which one begins while another is under way.
func TestWrappedForEachCall(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, o, err := newChainAndOthers(m, 1, 2)
		if err != nil {
			return err
		}
		call := func(i int) error {
			s, err := m.comm.Device().WrapStream(o.streams[i].Handle())
			if err != nil {
				return err
			}
			return errors.Join(c.call(s), s.Close())
		}
		var errs []error
		do := func(calls ...error) { errs = append(errs, calls...) }
		do(call(0), call(1), call(0), call(0))
		before := c.calls
		do(o.streams[0].BeginCapture(), call(0), call(0))
		do(o.streams[1].BeginCapture(), call(1), call(1), call(0), call(0))
		first, err := o.streams[0].EndCapture() // of four calls
		do(err)
		second, err := o.streams[1].EndCapture() // of two
		do(err)
		c.calls = before
		if err := errors.Join(errs...); err != nil {
			return err
		}
		for range 3 {
			do(first.Launch(o.streams[1]))
			c.calls += 4
			do(call(0), c.call(c.streams[0]), second.Launch(o.streams[0]))
			c.calls += 2
		}
		do(m.comm.Synchronize(m.ctx, o.streams[0]), c.check(), first.Close(), second.Close(), c.close(), o.close())
		return errors.Join(errs...)
	})
}

// TestFirstUseInForeignCapture: what would wait for other ranks in a capture of other code
// is refused, on all ranks, and does the capture no harm.
func TestFirstUseInForeignCapture(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, o, err := newChainAndOthers(m, 0, 1)
		if err != nil {
			return err
		}
		s := c.streams[0]
		refused := func(err error) error {
			if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "cannot hold the first call") {
				return fmt.Errorf("the first call in a capture: %v", err)
			}
			return nil
		}
		if err := o.streams[0].BeginCapture(); err != nil {
			return err
		}
		counts := []uint64{1, 1}
		err = errors.Join(refused(c.call(s)), refused(m.runner.AllToAllV(s, c.bufs[0], c.bufs[1], counts, counts, collective.I32)))
		c.calls--
		if err != nil {
			return err
		}
		g, err := o.streams[0].EndCapture()
		if err != nil {
			return err
		}
		load := collective.Call{Kind: collective.AllReduce, Type: collective.I32, Op: collective.Sum, Count: chainCount}
		if err := errors.Join(g.Close(), m.runner.Load(m.ctx, load)); err != nil {
			return err
		}
		if err := errors.Join(o.streams[0].BeginCapture(), c.call(s)); err != nil {
			return err
		}
		if g, err = o.streams[0].EndCapture(); err != nil {
			return err
		}
		if err := g.Launch(o.streams[0]); err != nil {
			return err
		}
		return errors.Join(c.check(), g.Close(), c.close(), o.close())
	})
}

// TestForeignCapturesDiffer: ranks that capture different calls fail, before any graph is
// launched.
func TestForeignCapturesDiffer(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, o, err := newChainAndOthers(m, 0, 1)
		if err != nil {
			return err
		}
		counts := []uint64{chainCount, chainCount - 1}
		for _, n := range counts {
			if err := m.runner.AllReduce(c.streams[0], c.bufs[1], c.bufs[0], n, collective.I32, collective.Sum); err != nil {
				return err
			}
		}
		if err := errors.Join(m.comm.Synchronize(m.ctx, c.streams[0]), m.comm.Barrier(m.ctx), o.streams[0].BeginCapture()); err != nil {
			return err
		}
		err = m.runner.AllReduce(c.streams[0], c.bufs[1], c.bufs[0], counts[m.comm.Rank()], collective.I32, collective.Sum)
		for err == nil { // the other rank tells
			select {
			case <-m.comm.Done():
				err = m.comm.Err()
			case <-m.ctx.Done():
				return errors.New("nobody noticed")
			}
		}
		g, end := o.streams[0].EndCapture()
		if !strings.Contains(err.Error(), "2999") || !strings.Contains(err.Error(), "captured by other code") {
			return fmt.Errorf("calls that differ: %w", err)
		}
		if err := errors.Join(end, g.Close(), c.close(), o.close()); err != nil {
			return fmt.Errorf("after calls that differ: %v", err)
		}
		return err
	}, mscclgo.ErrInvalid, mscclgo.ErrRemote)
}

// TestForeignGraphOfAll captures, by other code, prepared calls by every algorithm that fits,
// also those through the host, and an all-to-all with counts, in one graph that is launched
// again and again.
func TestForeignGraphOfAll(t *testing.T) {
	const count, ranks = 1000, 2
	runMembers(t, ranks, collective.Options{}, func(m *member) error {
		c, o, err := newChainAndOthers(m, 0, 1)
		if err != nil {
			return err
		}
		s, rank := c.streams[0], m.comm.Rank()
		values := make([]int32, count)
		for i := range values {
			values[i] = int32(i + 10_000*rank)
		}
		type prepared struct {
			op   *collective.Operation
			out  *gpu.Buffer
			want []int32
		}
		sums, all := make([]int32, count), make([]int32, 2*count)
		for i := range sums {
			sums[i] = int32(2*i + 10_000)
			all[i], all[count+i] = int32(i), int32(i+10_000)
		}
		var calls []prepared
		for _, kind := range []collective.Kind{collective.AllReduce, collective.AllGather} {
			want := sums
			if kind == collective.AllGather {
				want = all
			}
			for _, algorithm := range kind.Algorithms() {
				call := collective.Call{Kind: kind, Type: collective.I32, Op: collective.Sum, Count: count, Choice: collective.Choice{Algorithm: algorithm, Blocks: 2, Threads: 64}}
				if m.runner.Internal().Fits(call) != nil {
					continue
				}
				in, err := gpu.Upload(m.comm.Device(), values)
				if err != nil {
					return err
				}
				out, err := gpu.Upload(m.comm.Device(), make([]int32, len(want)))
				if err != nil {
					return err
				}
				if call.In, err = m.runner.Share(m.ctx, in); err != nil {
					return err
				}
				if call.Out, err = m.runner.Share(m.ctx, out); err != nil {
					return err
				}
				op, err := m.runner.Prepare(m.ctx, call)
				if err != nil {
					return err
				}
				calls = append(calls, prepared{op, out, want})
			}
		}
		if len(calls) < 6 {
			return fmt.Errorf("%d algorithms fit", len(calls))
		}
		// Rank 0 keeps all but 10 elements, which go to rank 1; that sends 10 and keeps 10.
		sent, got := []uint64{count - 10, 10}, []uint64{count - 10, 10}
		if rank == 1 {
			sent, got = []uint64{10, 10}, []uint64{10, 10}
		}
		in, out := c.bufs[0], c.bufs[1]
		exchange := func() error { return m.runner.AllToAllV(s, out, in, sent, got, collective.I32) }
		if err := errors.Join(gpu.CopyIn(in, values), exchange(), m.comm.Synchronize(m.ctx, s)); err != nil {
			return err
		}

		if err := o.streams[0].BeginCapture(); err != nil {
			return err
		}
		for _, p := range calls {
			if err := p.op.Launch(s); err != nil {
				return err
			}
		}
		err = exchange()
		g, end := o.streams[0].EndCapture()
		if err := errors.Join(err, end); err != nil {
			return err
		}
		for range 3 {
			for _, p := range calls {
				if err := gpu.CopyIn(p.out, make([]int32, len(p.want))); err != nil {
					return err
				}
			}
			if err := errors.Join(gpu.CopyIn(out, make([]int32, count)), m.comm.Barrier(m.ctx), g.Launch(o.streams[0]), m.comm.Synchronize(m.ctx, s)); err != nil {
				return err
			}
			for _, p := range calls {
				result := make([]int32, len(p.want))
				if err := gpu.CopyOut(result, p.out); err != nil {
					return err
				}
				if diff := testcmp.Diff(p.want, result); diff != "" {
					return fmt.Errorf("%v: the result (-want +got):\n%s", p.op.Choice(), diff)
				}
			}
			result := make([]int32, got[0]+got[1])
			if err := gpu.CopyOut(result, out); err != nil {
				return err
			}
			for i, v := range result {
				want := int32(i) // from rank 0: its part for this rank
				switch {
				case rank == 1 && i < 10:
					want = int32(count - 10 + i)
				case rank == 1:
					want = int32(10_000 + i)
				case i >= count-10:
					want = int32(10_000 + i - (count - 10))
				}
				if v != want {
					return fmt.Errorf("element %d of the all-to-all is %d, want %d", i, v, want)
				}
			}
		}
		return errors.Join(g.Close(), c.close(), o.close())
	})
}
