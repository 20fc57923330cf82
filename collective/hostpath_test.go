package collective

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// summed is an all-reduce on memories of the test's own.
type summed struct {
	comm    *communicator.Communicator
	stream  *gpu.Stream
	op      *Operation
	in, out *gpu.Buffer
	count   int
}

// newSummed prepares an all-reduce of F32. The output has room for so many bytes more.
func newSummed(ctx context.Context, r *Runner, algorithm string, count int, more uint64) (*summed, error) {
	s := &summed{comm: r.comm, count: count}
	call := Call{Kind: AllReduce, Count: uint64(count), Choice: Choice{algorithm, 2, 64}}
	var err error
	if s.stream, err = r.comm.Device().NewStream(); err != nil {
		return nil, err
	}
	for _, side := range []struct {
		b     **gpu.Buffer
		m     **Memory
		bytes uint64
	}{{&s.in, &call.In, uint64(4 * count)}, {&s.out, &call.Out, uint64(4*count) + more}} {
		if *side.b, err = r.comm.Device().Alloc(side.bytes); err != nil {
			return nil, err
		}
		if *side.m, err = r.Share(ctx, *side.b); err != nil {
			return nil, err
		}
	}
	s.op, err = r.Prepare(ctx, call)
	return s, err
}

// run adds up values that differ among elements, ranks and calls, and compares.
func (s *summed) run(ctx context.Context, number int) error {
	value := func(rank, i int) float32 { return float32((i*7+number*13)%64 + 100*rank) }
	data := make([]float32, s.count)
	for i := range data {
		data[i] = value(s.comm.Rank(), i)
	}
	if err := gpu.CopyIn(s.in, data); err != nil {
		return err
	}
	if err := errors.Join(s.op.Launch(s.stream), s.comm.Synchronize(ctx, s.stream)); err != nil {
		return err
	}
	if err := gpu.CopyOut(data, s.out); err != nil {
		return err
	}
	for i, got := range data {
		want := float32(0)
		for rank := range s.comm.Size() {
			want += value(rank, i)
		}
		if got != want {
			return fmt.Errorf("call %d, element %d on rank %d: %v, want %v", number, i, s.comm.Rank(), got, want)
		}
	}
	return nil
}

// TestSizesDiffer has outputs of different sizes on the ranks, all large enough.
func TestSizesDiffer(t *testing.T) {
	for _, transports := range []registeredmem.Transports{0, registeredmem.Ethernet} {
		for _, algorithm := range AllReduce.Algorithms() {
			a := testerr.Must(AllReduce.algorithm(algorithm))(t)
			if transports != 0 && !a.about().hosts {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", algorithm, transports), func(t *testing.T) {
				testgroup.Run(t, 3, communicator.Options{Transports: transports}, func(ctx context.Context, comm *communicator.Communicator) error {
					r := testerr.Must(New(ctx, comm, Options{}))(t)
					s := testerr.Must(newSummed(ctx, r, algorithm, 3001, []uint64{9000, 0, 77777}[comm.Rank()]))(t)
					for number := range 3 {
						testerr.Check(t, s.run(ctx, number))
					}
					return errors.Join(s.stream.Close(), r.Close(ctx))
				})
			})
		}
	}
}

// TestHierBesideOwnKernels has one of two hosts make calls of its own between calls of both.
// Its own calls use the epochs of its ranks: the inboxes' halves must not alternate by these.
func TestHierBesideOwnKernels(t *testing.T) {
	const source = "#include <mscclgo/group.cuh>\nextern \"C\" __global__ void own(mscclgo::GroupHandle group) { group.nextEpoch(); }\n"
	testgroup.Run(t, 2, communicator.Options{Transports: registeredmem.Ethernet}, func(ctx context.Context, comm *communicator.Communicator) error {
		r := testerr.Must(New(ctx, comm, Options{}))(t)
		module := testerr.Must(devicecode.Load(ctx, comm.Device(), "own.cu", []byte(source), devicecode.Options{}))(t)
		own := testerr.Must(module.Kernel("own"))(t)
		s := testerr.Must(newSummed(ctx, r, "hier", 5000, 0))(t)
		for number := range 6 {
			testerr.Check(t, s.run(ctx, number))
			if comm.Rank() == 0 && number%2 == 1 {
				testerr.Check(t, own.Launch(s.stream, gpu.Blocks(1, 32), r.group))
			}
		}
		return errors.Join(s.stream.Close(), module.Close(), r.Close(ctx))
	})
}

// proxyThreads returns how many threads of proxies run in the process.
func proxyThreads() int {
	stacks := make([]byte, 1<<22)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "proxyservice.(*Threads).run(")
}

// TestThreadOfRunner has a runner serve all its host paths by one thread, or by its communicator's.
func TestThreadOfRunner(t *testing.T) {
	const ranks, paths = 2, 4
	before := proxyThreads()
	for want, o := range map[int]communicator.Options{ranks: {}, 1: {Threads: new(proxyservice.Threads)}} {
		threads := func(ctx context.Context, comm *communicator.Communicator, want int) error {
			if err := comm.Barrier(ctx); err != nil {
				return err
			}
			for proxyThreads()-before > want && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // one ends soon after its last proxy
			}
			testcmp.Equal(t, "threads of proxies", proxyThreads()-before, want)
			return comm.Barrier(ctx)
		}
		testgroup.Run(t, ranks, o, func(ctx context.Context, comm *communicator.Communicator) error {
			r := testerr.Must(New(ctx, comm, Options{}))(t)
			all := make([]*summed, paths)
			for i := range all {
				all[i] = testerr.Must(newSummed(ctx, r, "ring", 1000, 0))(t)
			}
			for number, s := range all {
				testerr.Check(t, s.run(ctx, number))
			}
			testerr.Check(t, threads(ctx, comm, want))
			// The others go on when one is closed.
			testerr.Check(t, errors.Join(all[0].op.Close(), all[0].op.memories[1].Close(ctx), all[1].run(ctx, paths)))
			testerr.Check(t, threads(ctx, comm, want))
			return errors.Join(r.Close(ctx), threads(ctx, comm, 0))
		})
	}
}
