#include <mscclgo/memory_channel.cuh>

// What scaledSum computes: factor * (the sum of all ranks' elements) + bias, for the
// elements from first on.
struct Scaling {
  float factor;
  float bias;
  uint64_t first;
};

// One block, with at least a thread for each rank. peers holds a channel to every rank, this
// one included.
extern "C" __global__ void scaledSum(const mscclgo::MemoryChannelHandle* peers, uint32_t ranks, float* sum,
                                     uint64_t count, Scaling scaling) {
  bool ok = true;
  if (threadIdx.x < ranks) {  // My buffer is ready; are theirs?
    peers[threadIdx.x].signal();
    ok = peers[threadIdx.x].wait() == mscclgo::WaitResult::Done;
  }
  if (!mscclgo::blockAll(ok)) return;  // A wait failed; the host learns of it.

  for (uint64_t i = scaling.first + threadIdx.x; i < count; i += blockDim.x) {
    float s = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) s += peers[rank].read<float>(i);
    sum[i] = scaling.factor * s + scaling.bias;
  }

  __syncthreads();
  if (threadIdx.x < ranks) {  // Nobody leaves, and changes its buffer, before all have read.
    peers[threadIdx.x].signal();
    peers[threadIdx.x].wait();
  }
}

// fill sets n elements to a value.
extern "C" __global__ void fill(float* out, uint64_t n, float value) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = value;
}
