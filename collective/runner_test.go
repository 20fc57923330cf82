package collective

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestScratchLimit runs the largest calls whose packets fit, which package bench
// checks at smaller sizes, and finds that one packet more is refused.
func TestScratchLimit(t *testing.T) {
	detector.SkipKernels(t)
	testgroup.Run(t, 3, communicator.Options{Scratch: 64 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 256<<10)
		testerr.Check(t, err)
		stream := testerr.Must(comm.Device().NewStream())(t)
		for _, k := range Kinds() {
			for _, a := range k.spec().algorithms {
				a, ok := a.(*packets)
				if !ok {
					continue
				}
				call.Kind, call.Choice = k, Choice{a.name, 4, 64}
				packets := runner.capacity(a.payload)
				switch a.split {
				case twoShards:
					packets = packets / 2 * uint64(comm.Size())
				case relayShare:
					packets *= uint64(comm.Size() - 1)
				}
				call.Count = packets * a.payload / 4
				op, err := runner.Prepare(ctx, call)
				if err != nil {
					return fmt.Errorf("%s %s: %w", k, a.name, err)
				}
				testerr.Check(t, op.Launch(stream))
				testerr.Check(t, comm.Synchronize(ctx, stream))
				call.Count++
				if _, err := runner.Prepare(ctx, call); err == nil || !strings.Contains(err.Error(), "scratch") {
					return fmt.Errorf("%s %s of %d elements: %v", k, a.name, call.Count, err)
				}
			}
		}
		return errors.Join(stream.Close(), runner.Close(ctx))
	})
}

// TestFailsWhileCompiling has rank 2 fail while the others compile what a first call needs, which
// ends the compilers. The errors name rank 2, and not what ended because of it.
func TestFailsWhileCompiling(t *testing.T) {
	t.Setenv("MSCCLGO_CACHE", t.TempDir()) // nothing is compiled yet
	testgroup.Run(t, 3, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := New(ctx, comm, Options{})
		testerr.Check(t, err)
		testerr.Check(t, comm.Barrier(ctx))
		if comm.Rank() == 2 {
			comm.Abort(errors.New("the cause"))
			return nil
		}
		<-comm.Done() // the compiler has no time at all
		call := Call{Kind: AllReduce, Type: F32, Op: Sum}
		runner.mu.Lock()
		_, err = runner.kernelOf(ctx, call.unit(straight.about()), "direct", 32, 0)
		runner.mu.Unlock()
		err = wrap(comm, "collective: a first call", err)
		if e := (*mscclgo.Error)(nil); !errors.As(err, &e) || e.Peer != 2 || e.Kind != mscclgo.ErrAborted || !strings.Contains(err.Error(), "the cause") {
			return fmt.Errorf("%v, which does not name rank 2 first", err)
		}
		return nil
	})
}

// newCall returns a runner and a call on buffers of so many bytes.
func newCall(ctx context.Context, comm *communicator.Communicator, bytes uint64) (*Runner, Call, error) {
	runner, err := New(ctx, comm, Options{})
	if err != nil {
		return nil, Call{}, err
	}
	call := Call{Kind: AllReduce, Choice: Choice{"direct", 1, 32}, Count: 1}
	for _, m := range []**Memory{&call.In, &call.Out} {
		b, err := comm.Device().Alloc(bytes)
		if err != nil {
			return nil, Call{}, err
		}
		if *m, err = runner.Share(ctx, b); err != nil {
			return nil, Call{}, err
		}
	}
	return runner, call, nil
}

func TestBadCalls(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, good, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		for name, spoil := range map[string]func(*Call){
			"algorithm":         func(c *Call) { c.Algorithm = "tree" },
			"algorithm of none": func(c *Call) { c.Algorithm, c.Count = "tree", 0 },
			"too many":          func(c *Call) { c.Count = 1025 },
			"blocks":            func(c *Call) { c.Blocks = 0 },
			"threads":           func(c *Call) { c.Threads = 0 },
			"too many threads":  func(c *Call) { c.Threads = 2048 },
			"root":              func(c *Call) { c.Kind, c.Root = Broadcast, 2 },
			"half a warp":       func(c *Call) { c.Algorithm, c.Threads = "oneShotLL128", 48 },
			"in place":          func(c *Call) { c.Kind, c.InPlace = AllToAll, true },
		} {
			call := good
			spoil(&call)
			if _, err := runner.Prepare(ctx, call); err == nil {
				return fmt.Errorf("%s: no error", name)
			}
		}
		return runner.Close(ctx)
	})
}

// TestPortThreads prepares calls by ports with fewer threads than those need, and with more than
// a block has.
func TestPortThreads(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		call.Kind, call.Choice = AllGather, Choice{"ports", 2, 1}
		op := testerr.Must(runner.Prepare(ctx, call))(t)
		if got := op.Choice().Threads; got != 32 {
			return fmt.Errorf("%d threads where 1 is asked for, want 32", got)
		}
		call.Threads = 2048
		if _, err := runner.Prepare(ctx, call); !errors.Is(err, mscclgo.ErrUnsupported) || !strings.Contains(err.Error(), "no block of 2048 threads") {
			return fmt.Errorf("2048 threads: %v", err)
		}
		return errors.Join(op.Close(), runner.Close(ctx))
	})
}

// TestTwoTasks has so many ranks on a device that each has one block.
func TestTwoTasks(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("a GPU has room for more blocks")
	}
	devices := make([]*gpu.Device, 17)
	for i := range devices {
		devices[i] = testdev.Open(t, 0)
	}
	testgroup.RunOn(t, devices, communicator.Options{Scratch: 64 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		call.Choice = Choice{"pushed", 4, 512}
		if _, err := runner.Prepare(ctx, call); !errors.Is(err, mscclgo.ErrUnsupported) || !strings.Contains(err.Error(), "two blocks") {
			return fmt.Errorf("pushed: %v", err)
		}
		return runner.Close(ctx)
	})
}

// TestSmallInbox pushes data that go through the inbox in several chunks, and that do not lie in
// lines as rank 0's do.
func TestSmallInbox(t *testing.T) {
	const ranks, count = 3, 10_001
	for _, kind := range []Kind{AllReduce, ReduceScatter, Reduce} {
		t.Run(kind.String(), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
				return withRunner(ctx, comm, Options{}, func(runner *Runner, stream *gpu.Stream) error {
					runner.room = 4096
					call := Call{Kind: kind, Choice: Choice{"pushed", 4, 64}, Count: count, Root: 1}
					data := make([]float32, count*kind.InParts(ranks))
					for _, m := range []**Memory{&call.In, &call.Out} {
						whole, err := comm.Device().Alloc(uint64(4*len(data) + 64))
						if err != nil {
							return err
						}
						b, err := whole.Slice(uint64(20*comm.Rank()), uint64(4*len(data)))
						if err != nil {
							return err
						}
						if *m, err = runner.Share(ctx, b); err != nil {
							return err
						}
					}
					op, err := runner.Prepare(ctx, call)
					if err != nil {
						return err
					}
					for round := range 3 {
						for i := range data {
							data[i] = float32(i * (comm.Rank() + 1 + round))
						}
						if err := gpu.CopyIn(call.In.Buffer, data); err != nil {
							return err
						}
						if err := op.Launch(stream); err != nil {
							return err
						}
						if err := comm.Synchronize(ctx, stream); err != nil {
							return err
						}
						if from, _ := kind.Internal().Sources(comm.Rank(), 0, ranks, call.Root); from == nil {
							continue
						}
						first, got := 0, make([]float32, count)
						if kind == ReduceScatter {
							first = comm.Rank() * count
						}
						if err := gpu.CopyOut(got, call.Out.Buffer); err != nil {
							return err
						}
						for i, sum := range got {
							if want := float32((first + i) * (6 + 3*round)); sum != want {
								return fmt.Errorf("round %d: element %d is %v, want %v", round, i, sum, want)
							}
						}
					}
					return nil
				})
			})
		})
	}
}

// TestSeveralHosts asks ranks that do not map each other's memory for kernels that
// reach it.
func TestSeveralHosts(t *testing.T) {
	options := communicator.Options{Transports: registeredmem.Ethernet}
	testgroup.Run(t, 2, options, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		if _, err := runner.Prepare(ctx, call); err == nil || !strings.Contains(err.Error(), "2 hosts") {
			return fmt.Errorf("direct: %v", err)
		}
		for _, kind := range Kinds() {
			for _, count := range []uint64{1, 10000, 1 << 30} {
				choice, err := runner.Choose(Call{Kind: kind, Count: count})
				if err != nil || !kind.Internal().ByHost(choice.Algorithm) {
					return fmt.Errorf("%v of %d: %v, %v", kind, count, choice, err)
				}
			}
		}
		call.Algorithm = "hier"
		_, err = runner.Prepare(ctx, call)
		return errors.Join(err, runner.Close(ctx))
	})
}

// TestLoad loads a call with what its kind does not use, and finds it loaded.
func TestLoad(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		stream := testerr.Must(comm.Device().NewStream())(t)
		err = runner.Load(ctx, Call{Kind: AllGather, Op: Max, Count: 100, Root: 1}, Call{Kind: AllToAll, Op: Avg, Count: 100})
		if err == nil && len(runner.plans) != 2 {
			err = fmt.Errorf("%d plans", len(runner.plans))
		}
		err = errors.Join(err, runner.AllGather(stream, call.Out.Buffer, call.In.Buffer, 100, F32))
		err = errors.Join(err, runner.AllToAll(stream, call.Out.Buffer, call.In.Buffer, 100, F32), comm.Synchronize(ctx, stream))
		if err == nil && len(runner.plans) != 2 {
			err = fmt.Errorf("%d plans after the calls", len(runner.plans))
		}
		return errors.Join(err, stream.Close(), runner.Close(ctx))
	})
}

// TestViewsClosed closes memories whose views have channels, which end with them.
func TestViewsClosed(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, call, err := newCall(ctx, comm, 4096)
		testerr.Check(t, err)
		in, out := call.In, call.Out
		call.In = testerr.Must(in.Slice(0, 2048))(t)
		call.Out = testerr.Must(out.Slice(16, 2048))(t)
		call.Out = testerr.Must(call.Out.Slice(16, 2000))(t)
		call.Kind, call.Choice = SendReceive, Choice{"ports", 1, 32}
		for _, whole := range []*Memory{in, out} {
			if len(runner.hostPaths) == 0 {
				testerr.Must(runner.Prepare(ctx, call))(t)
			}
			testerr.Check(t, whole.Close(ctx))
			if n := len(runner.hostPaths); n != 0 {
				return fmt.Errorf("%d pairs of memories have channels still", n)
			}
			call.In = call.Out
			call.Out = testerr.Must(out.Slice(2048, 2000))(t)
		}
		return errors.Join(call.In.Close(ctx), call.Out.Close(ctx), runner.Close(ctx))
	})
}

// TestPartTogether finds that no rank goes on, and may launch what waits for others, while
// one is still releasing memory, which on GPUs waits for what runs.
func TestPartTogether(t *testing.T) {
	var released atomic.Int32
	testgroup.Run(t, 3, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := New(ctx, comm, Options{})
		testerr.Check(t, err)
		err = runner.partWith(ctx, func() error {
			time.Sleep(time.Duration(comm.Rank()) * 20 * time.Millisecond)
			released.Add(1)
			return nil
		})
		if n := released.Load(); err != nil || n != 3 {
			return fmt.Errorf("%d ranks have released their memory, %v", n, err)
		}
		return runner.Close(ctx)
	})
}

// TestBrokenKernels sees the compiler's message.
func TestBrokenKernels(t *testing.T) {
	broken := unit{unitKey: unitKey{file: "allreduce.cu"}, text: []byte("#include <mscclgo/group.cuh>\n\nextern \"C\" __global__ void direct() { nonsense(); }\n")}
	testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := New(ctx, comm, Options{})
		testerr.Check(t, err)
		_, err = runner.kernelOf(ctx, broken, "direct", 32, 0)
		for _, part := range []string{"allreduce.cu", "3", "nonsense"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				return fmt.Errorf("%v lacks %q", err, part)
			}
		}
		return runner.Close(ctx)
	})
}

func TestParseKind(t *testing.T) {
	for _, name := range []string{"all-reduce", "allreduce", "AllReduce"} {
		if k, err := ParseKind(name); err != nil || k != AllReduce {
			t.Errorf("%s: %v, %v", name, k, err)
		}
	}
	if _, err := ParseKind("tree"); err == nil || !strings.Contains(err.Error(), "reduce-scatter") {
		t.Errorf("tree: %v", err)
	}
}
