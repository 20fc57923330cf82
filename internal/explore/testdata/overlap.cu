// Kernels that are launched with Overlap, two in one stream, and wrong in a few orders; and what mends
// each, where MENDED is defined. The first finds words[i] == i + 1, and its results, or those of the
// second, are 1 more.
#include <mscclgo/launch.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

__device__ uint32_t index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// The first lets the next one begin before it has read what that one overwrites.
extern "C" __global__ void writtenTooEarly1(const uint32_t* words, uint32_t* results) {
  awaitPrevious();
  results[index()] = words[index()] + 1;
}
extern "C" __global__ void writtenTooEarly2(uint32_t* words, uint32_t*) {
  if (mended) awaitPrevious();
  words[index()] = 0;
  if (!mended) awaitPrevious();
}

// The second reads what the first writes.
extern "C" __global__ void readTooEarly1(uint32_t* words, uint32_t*) {
  awaitPrevious();
  words[index()] += 1;
}
extern "C" __global__ void readTooEarly2(const uint32_t* words, uint32_t* results) {
  if (mended) awaitPrevious();
  results[index()] = words[index()];
  if (!mended) awaitPrevious();
}
