// Kernels of TestReduce.
#include <mscclgo/reduce.cuh>

using mscclgo::Max;
using mscclgo::Min;
using mscclgo::Reducer;
using mscclgo::Sum;

namespace {

// reduce reduces `inputs` rows of n words each into out.
template <class T, class Op, class Word>
__device__ void reduce(Word* out, const Word* rows, uint32_t inputs, uint32_t n) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    Reducer<T, Op, Word> r(rows[i]);
    for (uint32_t input = 1; input < inputs; ++input) r.add(rows[input * n + i]);
    out[i] = r.get();
  }
}

}  // namespace

#define KERNEL(type, T, Word, op, Op)                                                                \
  extern "C" __global__ void type##_##op(Word* out, const Word* rows, uint32_t inputs, uint32_t n) { \
    reduce<T, Op>(out, rows, inputs, n);                                                             \
  }
#define KERNELS(type, T, Word)    \
  KERNEL(type, T, Word, sum, Sum) \
  KERNEL(type, T, Word, max, Max) \
  KERNEL(type, T, Word, min, Min)

KERNELS(f32, float, uint4)
KERNELS(f16, __half, uint4)
KERNELS(bf16, __nv_bfloat16, uint2)
KERNELS(i32, int32_t, uint2)
