#include <mscclgo/group.cuh>

using namespace mscclgo;

// allGather has every rank write its part of the buffer, whole uint4, to the same place at all
// ranks. Any number of blocks: the blocks of one number meet, and take every gridDim.x-th tile,
// which they read once and write to all peers.
extern "C" __global__ void allGather(GroupHandle group, PeerMemory buffers, uint64_t bytes, uint64_t tile) {
  extern __shared__ uint4 shared[];
  if (group.relaxedBarrier() != WaitResult::Done) return;  // the others' buffers may be written
  for (uint64_t at = blockIdx.x * tile; at < bytes; at += gridDim.x * tile) {
    uint64_t first = (group.rank * bytes + at) / sizeof(uint4);
    uint64_t words = (bytes - at < tile ? bytes - at : tile) / sizeof(uint4);
    const uint4* mine = buffers.of<uint4>(group.rank) + first;
    // A thread writes what it has read itself, so that no __syncthreads is needed.
    for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) shared[i] = mine[i];
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t peer = (group.rank + k) % group.size;  // not all at the same peer
      uint4* theirs = buffers.of<uint4>(peer) + first;
      for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) theirs[i] = shared[i];
    }
  }
  group.barrier();  // all have written
}
