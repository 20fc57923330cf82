// A one-shot all-reduce: every rank reads the buffers of all and adds them up.
#include <mscclgo/memory_channel.cuh>

// One block, with at least a thread for each rank. peers has a channel to every rank.
extern "C" __global__ void allReduce(mscclgo::MemoryChannelSet peers, float* sum, uint64_t count) {
  bool ok = true;
  if (threadIdx.x < peers.size) {  // My buffer is ready; are theirs?
    peers.to(threadIdx.x).signal();
    ok = peers.to(threadIdx.x).wait() == mscclgo::WaitResult::Done;
  }
  if (!mscclgo::blockAll(ok)) return;  // A wait failed; the host learns of it.
  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) {
    float s = 0;
    for (uint32_t rank = 0; rank < peers.size; ++rank) s += peers.to(rank).read<float>(i);
    sum[i] = s;
  }
  __syncthreads();
  if (threadIdx.x < peers.size) {  // Nobody leaves, and changes its buffer, before all have read.
    peers.to(threadIdx.x).signal();
    peers.to(threadIdx.x).wait();
  }
}
