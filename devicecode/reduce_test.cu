// Kernels of TestReduce.
#include <mscclgo/reduce.cuh>

using namespace mscclgo;

namespace {

// reduce reduces `inputs` rows of n words each into out. What the reducers of two
// halves of the rows keep, a third one joins, if the rows are cut in halves.
template <class T, class Op, class Word>
__device__ void reduce(Word* out, const Word* rows, uint32_t inputs, uint32_t n, uint32_t cut) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    Reducer<T, Op, Word> r(rows[i]);
    if (cut == 0) {
      for (uint32_t input = 1; input < inputs; ++input) r.add(rows[input * n + i]);
    } else {
      for (uint32_t input = 1; input < cut; ++input) r.add(rows[input * n + i]);
      Reducer<T, Op, Word> behind(rows[cut * n + i]);
      for (uint32_t input = cut + 1; input < inputs; ++input) behind.add(rows[input * n + i]);
      r = Reducer<T, Op, Word>(r.unfinished());
      r.add(behind.unfinished());
    }
    out[i] = r.get(inputs);
  }
}

}  // namespace

#define KERNEL(type, T, Word, op, Op)                                                              \
  extern "C" __global__ void type##_##op(Word* out, const Word* rows, uint32_t inputs, uint32_t n, \
                                         uint32_t cut) {                                           \
    reduce<T, Op>(out, rows, inputs, n, cut);                                                      \
  }
#define KERNELS(type, T, Word)      \
  KERNEL(type, T, Word, sum, Sum)   \
  KERNEL(type, T, Word, prod, Prod) \
  KERNEL(type, T, Word, max, Max)   \
  KERNEL(type, T, Word, min, Min)   \
  KERNEL(type, T, Word, avg, Avg)

KERNELS(f32, float, uint4)
KERNELS(f16, __half, uint4)
KERNELS(bf16, __nv_bfloat16, uint2)
KERNELS(f64, double, uint2)
KERNELS(e4m3, __nv_fp8_e4m3, uint2)
KERNELS(e5m2, __nv_fp8_e5m2, uint4)
KERNELS(i32, int32_t, uint2)
KERNELS(i64, int64_t, uint4)
KERNELS(u8, uint8_t, uint4)

// What CUDA's conversions of fp8 make of n numbers.
#define CONVERSIONS(type, T)                                                                       \
  extern "C" __global__ void type##_widen(float* out, const uint8_t* in, uint32_t n) {             \
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { \
      T v;                                                                                         \
      v.__x = in[i];                                                                               \
      out[i] = Element<T>::widen(v);                                                               \
    }                                                                                              \
  }                                                                                                \
  extern "C" __global__ void type##_narrow(uint8_t* out, const float* in, uint32_t n) {            \
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)   \
      out[i] = Element<T>::narrow(in[i]).__x;                                                      \
  }
CONVERSIONS(e4m3, __nv_fp8_e4m3)
CONVERSIONS(e5m2, __nv_fp8_e5m2)
