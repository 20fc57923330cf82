package collective_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestTypes all-reduces elements of every type by packets of each kind and by direct
// access, at odd counts and alignments. Each type has two of the operations, so that
// each operation has floats and integers, and in a short run the one that TestEveryType gives it;
// package devicecode tests all pairs.
func TestTypes(t *testing.T) {
	testdev.Parallel(t)
	for i, typ := range collective.Types() {
		ranks := 1 + (i+1)%4
		t.Run(fmt.Sprintf("%v/ranks=%d", typ, ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
				runner := testerr.Must(collective.New(ctx, comm, collective.Options{}))(t)
				ops := collective.Ops()
				ops = []collective.Op{ops[i%5], ops[(i*2+4)%5]}
				if testing.Short() { // compilers take most of the time
					ops = []collective.Op{collective.Op((5 - int(typ)%5) % 5)}
				}
				for _, op := range ops {
					testerr.Check(t, allReduceType(ctx, comm, runner, typ, op))
				}
				return runner.Close(ctx)
			})
		})
	}
}

func allReduceType(ctx context.Context, comm *communicator.Communicator, runner *collective.Runner, typ collective.Type, op collective.Op) error {
	const most, room = 1021, 64
	reference, err := elements.Of(typ)
	if err != nil {
		return err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	var memory [2]*collective.Memory
	for k := range memory {
		b, err := comm.Device().Alloc(uint64(most*typ.Size() + 2*room))
		if err != nil {
			return err
		}
		if memory[k], err = runner.Share(ctx, b); err != nil {
			return err
		}
	}
	seeds := make([]uint64, comm.Size())
	for _, algorithm := range []string{"oneShotLL8", "oneShotLL16", "twoShotLL128", "direct"} {
		for k, count := range []int{1, 7, 121, most} {
			size := count * typ.Size()
			var views [2]*collective.Memory
			for v, offset := range [2]int{k % 3 * 4, k % 4 * typ.Size()} {
				if views[v], err = memory[v].Slice(uint64(offset), uint64(size+room)); err != nil {
					return err
				}
			}
			for rank := range seeds {
				seeds[rank] = uint64(count*100 + rank)
			}
			data := make([]byte, size)
			reference.Fill(data, seeds[comm.Rank()])
			if err := gpu.CopyIn(views[0].Buffer, data); err != nil {
				return err
			}
			if err := gpu.CopyIn(views[1].Buffer, bytes.Repeat([]byte{0xee}, size+room)); err != nil {
				return err
			}
			call := collective.Call{
				Kind: collective.AllReduce, Type: typ, Op: op, Count: uint64(count), In: views[0], Out: views[1],
				Choice: collective.Choice{Algorithm: algorithm, Blocks: 2, Threads: 64},
			}
			operation, err := runner.Prepare(ctx, call)
			if err != nil {
				return err
			}
			if err := operation.Launch(stream); err != nil {
				return err
			}
			if err := comm.Synchronize(ctx, stream); err != nil {
				return err
			}
			got := make([]byte, size+room)
			if err := gpu.CopyOut(got, views[1].Buffer); err != nil {
				return err
			}
			if wrong := reference.WrongReduced(got[:size], op, seeds, 1); wrong != 0 {
				return fmt.Errorf("%s of %d %v, %v: %d are wrong", algorithm, count, typ, op, wrong)
			}
			if n := bytes.Count(got[size:], []byte{0xee}); n != room {
				return fmt.Errorf("%s of %d %v, %v: %d bytes behind the output were written", algorithm, count, typ, op, room-n)
			}
		}
	}
	return stream.Close()
}
