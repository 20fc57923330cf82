// Kernels of two blocks on one device, whose mistakes are in memory that is no buffer of the device:
// variables, and memory of the host. The two lines that race end in the test's name.
#include <mscclgo/atomic.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

constexpr Order kRelease = mended ? Order::Release : Order::Relaxed;
constexpr uint32_t kThreads = 64;

namespace counts {
__device__ unsigned arrived;
__device__ uint32_t partial[2 * kThreads];
}  // namespace counts

// The last block to arrive sums what both wrote. Without fences its atomic orders nothing.
extern "C" __global__ void lastBlock(uint32_t* sum) {
  __shared__ bool last;
  counts::partial[blockIdx.x * kThreads + threadIdx.x] = threadIdx.x;  // lastBlock
  __syncthreads();
  if (threadIdx.x == 0) {
    if (mended) __threadfence();
    last = atomicAdd(&counts::arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (mended) __threadfence();
  uint32_t of = 0;
  for (uint32_t i = threadIdx.x; i < 2 * kThreads; i += kThreads) of += counts::partial[i];  // lastBlock
  sum[threadIdx.x] = of;
  if (threadIdx.x == 0) counts::arrived = 0;  // for the next launch: nobody else comes behind the last
}

// Block 1 reads what block 0 wrote before a flag, which is in the same memory.
extern "C" __global__ void passOn(uint32_t* data) {
  uint32_t* flag = data + 2 * kThreads;
  if (blockIdx.x == 0) {
    data[threadIdx.x] = threadIdx.x;  // passOn
    __syncthreads();
    if (threadIdx.x == 0) {
      store<Scope::Device, kRelease>(flag, 1);
    }
    return;
  }
  if (threadIdx.x == 0)
    while (load<Scope::Device, Order::Acquire>(flag) == 0) {
    }
  __syncthreads();
  data[kThreads + threadIdx.x] = data[threadIdx.x];  // passOn
}

// The host polls the flag, and then reads what was written before it.
extern "C" __global__ void tellHost(uint32_t* data) {
  data[threadIdx.x] = threadIdx.x;  // tellHost
  __syncthreads();
  if (threadIdx.x == 0) store<Scope::System, kRelease>(data + kThreads, 1);
}
