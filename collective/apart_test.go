package collective_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// scribble leaves words in a group's scratch that look like packets of the next call, and counts calls and
// barriers that only this rank had.
const scribble = `#include <mscclgo/group.cuh>
extern "C" __global__ void scribble(mscclgo::GroupHandle group) {
  auto words = reinterpret_cast<uint2*>(group.scratch(group.rank));
  for (uint64_t i = threadIdx.x; i < group.scratchSize / 8; i += blockDim.x) words[i] = make_uint2(7, group.epoch());
  __syncthreads();
  for (uint32_t b = threadIdx.x; b < mscclgo::kMaxBlocks; b += blockDim.x) {
    group.epochs[b] += 2 * group.rank;
    group.arrivals[b] += group.rank;
  }
}`

// TestGroupsOfUsers has a kernel write into all that handles of Group and HostGroup reach, between calls of a
// runner: none of it becomes a packet or a number of these.
func TestGroupsOfUsers(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Scratch: 64 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(collective.New(ctx, comm, collective.Options{}))(t)
		whole := testerr.Must(comm.Group(ctx))(t)
		host := testerr.Must(comm.HostGroup(ctx))(t)
		module := testerr.Must(devicecode.Load(ctx, comm.Device(), "scribble.cu", []byte(scribble), devicecode.Options{}))(t)
		kernel := testerr.Must(module.Kernel("scribble"))(t)
		stream := testerr.Must(comm.Device().NewStream())(t)
		in := testerr.Must(gpu.Upload(comm.Device(), []int32{1, 2, 3, 4}))(t)
		out := testerr.Must(comm.Device().Alloc(in.Size()))(t)
		for range 3 {
			testerr.Check(t, errors.Join(
				kernel.Launch(stream, gpu.Blocks(1, 64), whole), kernel.Launch(stream, gpu.Blocks(1, 64), host),
				runner.AllReduce(stream, out, in, 4, collective.I32, collective.Sum), comm.Synchronize(ctx, stream)))
			got := make([]int32, 4)
			testerr.Check(t, gpu.CopyOut(got, out))
			if want := []int32{2, 4, 6, 8}; !slices.Equal(got, want) {
				return fmt.Errorf("the sums are %v, want %v", got, want)
			}
		}
		return errors.Join(runner.Close(ctx), module.Close(), stream.Close())
	})
}
