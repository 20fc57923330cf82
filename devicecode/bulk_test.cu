// Kernels of TestBulkCopy.
#include <mscclgo/bulk.cuh>

using namespace mscclgo;

// pieces copies n bytes again and again, each time from another alignment, through one ring.
extern "C" __global__ void pieces(uint8_t* dst, uint8_t* src, uint64_t n, uint64_t apart, uint32_t times,
                                  uint32_t stage) {
  extern __shared__ uint4 memory[];
  BulkRing<4> ring(memory, stage);
  for (uint32_t i = 0; i < times; ++i)
    bulkCopy(ring, dst + i * apart + i % 16, src + i * apart + (i + i / 16) % 16, n, blockIdx.x, gridDim.x);
  ring.wait();
}

// large copies n bytes.
extern "C" __global__ void large(uint8_t* dst, const uint8_t* src, uint64_t n, uint32_t stage) {
  extern __shared__ uint4 memory[];
  BulkRing<4> ring(memory, stage);
  bulkCopy(ring, dst, src, n, blockIdx.x, gridDim.x);
  ring.wait();
}

// doubled copies n words, doubles them by its threads, and copies them on, by one block.
extern "C" __global__ void doubled(uint32_t* dst, uint32_t* middle, const uint32_t* src, uint32_t n,
                                   uint32_t stage) {
  extern __shared__ uint4 memory[];
  BulkRing<4> ring(memory, stage);
  bulkCopy(ring, middle, src, n * 4, 0, 1);
  ring.wait();
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) middle[i] *= 2;
  bulkFence();
  __syncthreads();
  bulkCopy(ring, dst, middle, n * 4, 0, 1);
  ring.wait();
}

// several has one thread announce two loads in one phase, another wait for them, and a third
// store what came.
#if defined(MSCCLGO_BULK)
extern "C" __global__ void several(uint32_t* dst, const uint32_t* src) {
  __shared__ alignas(128) uint32_t words[64];
  __shared__ BulkBarrier barrier;
  if (threadIdx.x == 0) {
    barrier.init();
    bulkFence();
  }
  __syncthreads();
  for (uint32_t phase = 0; phase < 3; ++phase) {
    if (threadIdx.x == 0) {
      barrier.expect(256);
      bulkLoad(words, src + 64 * phase, 128, barrier);
      bulkLoad(words + 32, src + 64 * phase + 32, 128, barrier);
    }
    barrier.wait(phase % 2);
    words[threadIdx.x] += threadIdx.x;
    bulkFence();
    __syncthreads();
    if (threadIdx.x == 2) {
      bulkStore(dst + 64 * phase, words, 256);
      bulkCommit();
      bulkWait<0>();
    }
    __syncthreads();
  }
}
#endif
