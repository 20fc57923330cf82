// Reductions of words that hold several elements: fp32, fp16, bf16 and int32
// with sum, max and min.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <mscclgo/config.cuh>

namespace mscclgo {

// Sum, Max and Min are the operations. max and min give the other operand for a
// NaN, as IEEE 754 maximumNumber does.
struct Sum {
  MSCCLGO_DEVICE static float apply(float a, float b) { return a + b; }
  // Unsigned, because signed overflow is undefined; the bits are the same.
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
};
struct Max {
  MSCCLGO_DEVICE static float apply(float a, float b) { return fmaxf(a, b); }
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return a > b ? a : b; }
};
struct Min {
  MSCCLGO_DEVICE static float apply(float a, float b) { return fminf(a, b); }
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return a < b ? a : b; }
};

// Element says in which type elements are reduced: 16-bit floats in fp32, so
// that a sum is rounded once, at its end.
template <class T>
struct Element {
  using Wide = T;
  MSCCLGO_DEVICE static Wide widen(T v) { return v; }
  MSCCLGO_DEVICE static T narrow(Wide v) { return v; }
};
template <>
struct Element<__half> {
  using Wide = float;
  MSCCLGO_DEVICE static Wide widen(__half v) { return __half2float(v); }
  MSCCLGO_DEVICE static __half narrow(Wide v) { return __float2half_rn(v); }
};
template <>
struct Element<__nv_bfloat16> {
  using Wide = float;
  MSCCLGO_DEVICE static Wide widen(__nv_bfloat16 v) { return __bfloat162float(v); }
  MSCCLGO_DEVICE static __nv_bfloat16 narrow(Wide v) { return __float2bfloat16_rn(v); }
};

// Reducer collects words that each hold sizeof(Word) / sizeof(T) elements. All
// ranks that add the same words in the same order get the same bits. One thread.
template <class T, class Op, class Word>
class Reducer {
 public:
  // One to be assigned before it is used.
  MSCCLGO_DEVICE Reducer() : wide_{} {}

  // The first word.
  MSCCLGO_DEVICE explicit Reducer(Word first) {
    Elements e{first};
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) wide_[i] = Element<T>::widen(e.values[i]);
  }

  // add reduces one more word.
  MSCCLGO_DEVICE void add(Word next) {
    Elements e{next};
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) wide_[i] = Op::apply(wide_[i], Element<T>::widen(e.values[i]));
  }

  // get gives the result.
  MSCCLGO_DEVICE Word get() const {
    Elements e;
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) e.values[i] = Element<T>::narrow(wide_[i]);
    return e.word;
  }

 private:
  static constexpr uint32_t kCount = sizeof(Word) / sizeof(T);
  union Elements {
    Word word;
    T values[kCount];
    MSCCLGO_DEVICE Elements() {}
    MSCCLGO_DEVICE Elements(Word w) : word(w) {}
  };
  typename Element<T>::Wide wide_[kCount];
};

}  // namespace mscclgo
