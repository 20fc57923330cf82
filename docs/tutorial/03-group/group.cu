#include <mscclgo/copy.cuh>
#include <mscclgo/group.cuh>

using namespace mscclgo;

// allGather has every rank write its part of the buffer to the same place at all ranks. Any
// number of blocks: the blocks of one number meet, and each writes a slice of the part.
extern "C" __global__ void allGather(GroupHandle group, PeerMemory buffers, uint64_t bytes) {
  if (group.relaxedBarrier() != WaitResult::Done) return;  // the others' buffers may be written
  uint64_t slice = bytes / gridDim.x, first = group.rank * bytes + blockIdx.x * slice;
  const uint8_t* mine = buffers.of<uint8_t>(group.rank) + first;
  for (uint32_t i = 1; i < group.size; ++i) {
    uint32_t peer = (group.rank + i) % group.size;  // not all at the same peer
    copy(buffers.of<uint8_t>(peer) + first, mine, slice, threadIdx.x, blockDim.x);
  }
  group.barrier();  // all have written
}
