// Kernels of the tests of GroupHandle.
#include <mscclgo/group.cuh>

using mscclgo::GroupHandle;
using mscclgo::PeerMemory;
using mscclgo::WaitResult;

// rounds has every thread write to the same thread of all ranks, and look after a
// barrier at what all have written, many times. wrong counts old data, and 1 << 20
// for each block whose barrier failed.
extern "C" __global__ void rounds(GroupHandle group, uint32_t rounds, uint32_t* wrong) {
  // Blocks and senders have rows of their own.
  uint32_t row = blockIdx.x * group.size * blockDim.x;
  for (uint32_t round = 1; round <= rounds; ++round) {
    for (uint32_t peer = 0; peer < group.size; ++peer) {
      uint32_t* scratch = reinterpret_cast<uint32_t*>(group.scratch(peer));
      scratch[row + group.rank * blockDim.x + threadIdx.x] = round * 256 + group.rank;
    }
    bool ok = group.barrier() == WaitResult::Done;
    const uint32_t* mine = reinterpret_cast<const uint32_t*>(group.scratch(group.rank));
    for (uint32_t peer = 0; peer < group.size; ++peer) {
      uint32_t other = blockDim.x - 1 - threadIdx.x;  // of another thread
      if (mine[row + peer * blockDim.x + other] != round * 256 + peer) atomicAdd(wrong, 1u);
    }
    // Nobody writes the next round's before all have read this one's.
    ok = ok && group.barrier() == WaitResult::Done;
    if (!ok) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
  }
}

// meet calls a barrier once and keeps each thread's worst result of all launches.
extern "C" __global__ void meet(GroupHandle group, uint32_t relaxed, uint32_t* results) {
  WaitResult result = relaxed ? group.relaxedBarrier() : group.barrier();
  atomicMax(results + blockIdx.x * blockDim.x + threadIdx.x, uint32_t(result));
}

// call writes the epoch that each block's threads saw, the least and the most.
extern "C" __global__ void call(GroupHandle group, uint32_t* least, uint32_t* most) {
  atomicMin(least + blockIdx.x, group.epoch());
  atomicMax(most + blockIdx.x, group.epoch());
  group.nextEpoch();
}

// own writes this rank's number into its element of every rank's memory.
extern "C" __global__ void own(PeerMemory memory, uint32_t rank, uint32_t ranks) {
  if (threadIdx.x < ranks) memory.of<uint32_t>(threadIdx.x)[rank] = 100 * threadIdx.x + rank;
}
