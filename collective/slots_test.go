package collective

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestSlotsWhenEpochsRepeat makes a call through slots when the group's epochs have come
// round to that of the call before: flags that were left then do not count as this call's.
func TestSlotsWhenEpochsRepeat(t *testing.T) {
	const source = `#include <mscclgo/group.cuh>
extern "C" __global__ void set(mscclgo::GroupHandle group) { group.epochs[threadIdx.x] = 4; }
`
	const ranks, count = 2, 300 << 10 / 4
	testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		r, err := New(ctx, comm, Options{})
		if err != nil {
			return err
		}
		r.slotSizes.small, r.slotSizes.tiny = 4096, 4096 // so that all goes through slots
		module, err := devicecode.Load(ctx, comm.Device(), "set.cu", []byte(source), devicecode.Options{})
		if err != nil {
			return err
		}
		set, err := module.Kernel("set")
		if err != nil {
			return err
		}
		stream, err := comm.Device().NewStream()
		if err != nil {
			return err
		}
		data := make([]uint32, ranks*count)
		in, err := gpu.Upload(comm.Device(), data)
		if err != nil {
			return err
		}
		out, err := gpu.Upload(comm.Device(), data)
		if err != nil {
			return err
		}
		for number := uint32(1); number <= 3; number++ {
			for i := range data {
				data[i] = number<<24 | uint32(comm.Rank())<<20 | uint32(i)
			}
			if err := errors.Join(gpu.CopyIn(in, data), set.Launch(stream, gpu.Blocks(1, devicecode.MaxBlocks), r.group), comm.Synchronize(ctx, stream), comm.Barrier(ctx)); err != nil {
				return err
			}
			if comm.Rank() == 1 && number > 1 {
				time.Sleep(100 * time.Millisecond) // for rank 0 to find what is wrong, if anything is
			}
			counts := []uint64{count, count}
			if err := errors.Join(r.AllToAllV(stream, out, in, counts, counts, I32), comm.Synchronize(ctx, stream)); err != nil {
				return err
			}
			if err := gpu.CopyOut(data, out); err != nil {
				return err
			}
			for i, got := range data {
				from, at := uint32(i/count), uint32(comm.Rank()*count+i%count)
				if want := number<<24 | from<<20 | at; got != want {
					return fmt.Errorf("call %d, rank %d, element %d: %#x, want %#x", number, comm.Rank(), i, got, want)
				}
			}
		}
		return errors.Join(stream.Close(), in.Close(), out.Close(), module.Close(), r.Close(ctx))
	})
}
