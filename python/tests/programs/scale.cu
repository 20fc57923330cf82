// Compiled into a file, which tests load.
#include <mscclgo/atomic.cuh>

extern "C" __global__ void scale(float* to, const float* from, float by, uint64_t count) {
  uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x;
  if (i < count) to[i] = from[i] * by;
}
