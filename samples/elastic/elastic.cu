// A one-shot all-reduce: every rank reads the buffers of all and adds them up.
#include <mscclgo/memory_channel.cuh>

// One block, with at least a thread for each rank. peers holds a channel to
// every rank, this one included. If a rank is lost the waits end, and the sum is
// not written or not complete: the host learns of it.
extern "C" __global__ void allReduce(const mscclgo::MemoryChannelHandle* peers, uint32_t ranks, float* sum,
                                     uint64_t count) {
  bool ok = true;
  if (threadIdx.x < ranks) {  // My buffer is ready; are theirs?
    peers[threadIdx.x].signal();
    ok = peers[threadIdx.x].wait() == mscclgo::WaitResult::Done;
  }
  if (!mscclgo::blockAll(ok)) return;

  for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) {
    float s = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) s += peers[rank].read<float>(i);
    sum[i] = s;
  }

  __syncthreads();
  if (threadIdx.x < ranks) {  // Nobody changes its buffer before all have read.
    peers[threadIdx.x].signal();
    peers[threadIdx.x].wait();
  }
}
