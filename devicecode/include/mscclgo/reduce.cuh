// Reductions of words that hold several elements.
//
// The element types are float, double, __half, __nv_bfloat16, __nv_fp8_e4m3,
// __nv_fp8_e5m2, int32_t, int64_t and uint8_t; the operations are Sum, Prod, Max,
// Min and Avg. Every type goes with every operation.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <mscclgo/config.cuh>

namespace mscclgo {

namespace detail {

// Plain is the base of operations without a last step.
struct Plain {
  template <class W>
  MSCCLGO_DEVICE static W finish(W v, uint32_t) {
    return v;
  }
};

}  // namespace detail

// An operation's apply combines two elements in the type of the reduction. Its finish makes the
// result from the combined elements of `ranks` ranks.

// Sum adds. Integers wrap around.
struct Sum : detail::Plain {
  MSCCLGO_DEVICE static float apply(float a, float b) { return a + b; }
  MSCCLGO_DEVICE static double apply(double a, double b) { return a + b; }
  MSCCLGO_DEVICE static uint32_t apply(uint32_t a, uint32_t b) { return a + b; }
  // Unsigned, because signed overflow is undefined; the bits are the same.
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
  MSCCLGO_DEVICE static int64_t apply(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
};

// Prod multiplies. Integers wrap around.
struct Prod : detail::Plain {
  MSCCLGO_DEVICE static float apply(float a, float b) { return a * b; }
  MSCCLGO_DEVICE static double apply(double a, double b) { return a * b; }
  MSCCLGO_DEVICE static uint32_t apply(uint32_t a, uint32_t b) { return a * b; }
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return int32_t(uint32_t(a) * uint32_t(b)); }
  MSCCLGO_DEVICE static int64_t apply(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
};

// Max takes the larger. Floats follow IEEE 754 maximumNumber: of a number and a NaN
// it takes the number, and +0 is above -0. Of two NaNs it makes a NaN, with the same
// bits on every device.
struct Max : detail::Plain {
  MSCCLGO_DEVICE static float apply(float a, float b) { return max(a, b); }
  MSCCLGO_DEVICE static double apply(double a, double b) {
    // Equal numbers have the same bits but for a zero's sign. No arithmetic, so that
    // a NaN keeps its bits.
    if (a == b) return __longlong_as_double(__double_as_longlong(a) & __double_as_longlong(b));
    return a > b || b != b ? a : b;
  }
  MSCCLGO_DEVICE static uint32_t apply(uint32_t a, uint32_t b) { return a > b ? a : b; }
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return a > b ? a : b; }
  MSCCLGO_DEVICE static int64_t apply(int64_t a, int64_t b) { return a > b ? a : b; }
};

// Min takes the smaller, as Max takes the larger (IEEE 754 minimumNumber).
struct Min : detail::Plain {
  MSCCLGO_DEVICE static float apply(float a, float b) { return min(a, b); }
  MSCCLGO_DEVICE static double apply(double a, double b) {
    if (a == b) return __longlong_as_double(__double_as_longlong(a) | __double_as_longlong(b));
    return a < b || b != b ? a : b;
  }
  MSCCLGO_DEVICE static uint32_t apply(uint32_t a, uint32_t b) { return a < b ? a : b; }
  MSCCLGO_DEVICE static int32_t apply(int32_t a, int32_t b) { return a < b ? a : b; }
  MSCCLGO_DEVICE static int64_t apply(int64_t a, int64_t b) { return a < b ? a : b; }
};

// Avg is the sum divided by the number of ranks. Floats are divided in the type of the sum, before
// they are rounded to their own. Integers are divided toward zero: for int32_t and uint8_t the
// exact sum, for int64_t the wrapped sum.
struct Avg : Sum {
  MSCCLGO_DEVICE static float finish(float sum, uint32_t ranks) { return sum / float(ranks); }
  MSCCLGO_DEVICE static double finish(double sum, uint32_t ranks) { return sum / double(ranks); }
  MSCCLGO_DEVICE static uint32_t finish(uint32_t sum, uint32_t ranks) { return sum / ranks; }
  MSCCLGO_DEVICE static int64_t finish(int64_t sum, uint32_t ranks) { return sum / int64_t(ranks); }
};

// Element names the type in which elements are reduced, Wide, and converts to and
// from it. Floats of 8 and 16 bits are reduced in fp32, so that a result is rounded
// once, at its end: to nearest even, and fp8 beyond its range to the largest finite
// number. A NaN stays one.
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
template <>
struct Element<__nv_fp8_e4m3> {
  using Wide = float;
  MSCCLGO_DEVICE static Wide widen(__nv_fp8_e4m3 v) { return float(v); }
  MSCCLGO_DEVICE static __nv_fp8_e4m3 narrow(Wide v) { return __nv_fp8_e4m3(v); }
};
template <>
struct Element<__nv_fp8_e5m2> {
  using Wide = float;
  MSCCLGO_DEVICE static Wide widen(__nv_fp8_e5m2 v) { return float(v); }
  MSCCLGO_DEVICE static __nv_fp8_e5m2 narrow(Wide v) { return __nv_fp8_e5m2(v); }
};
template <>
struct Element<uint8_t> {
  using Wide = uint32_t;
  MSCCLGO_DEVICE static Wide widen(uint8_t v) { return v; }
  MSCCLGO_DEVICE static uint8_t narrow(Wide v) { return uint8_t(v); }
};

namespace detail {

// WideOf is the type in which an operation reduces elements.
template <class T, class Op>
struct WideOf {
  using Type = typename Element<T>::Wide;
};
template <>
struct WideOf<int32_t, Avg> {
  using Type = int64_t;
};

// kWideSums reports whether an unfinished reduction has to stay in WideOf: the sum for an average
// may be out of the elements' range, and fp8 is too coarse to be rounded more than once.
template <class T, class Op>
constexpr bool kWideSums = false;
template <class T>
constexpr bool kWideSums<T, Avg> = sizeof(typename WideOf<T, Avg>::Type) > sizeof(T);
template <>
constexpr bool kWideSums<__nv_fp8_e4m3, Sum> = true;
template <>
constexpr bool kWideSums<__nv_fp8_e4m3, Prod> = true;
template <>
constexpr bool kWideSums<__nv_fp8_e5m2, Sum> = true;
template <>
constexpr bool kWideSums<__nv_fp8_e5m2, Prod> = true;

// Sums are elements of a word, widened.
template <class Wide, uint32_t Count>
struct alignas(16) Sums {
  Wide values[Count];
};

// Either is A or else B.
template <bool IsA, class A, class B>
struct Either {
  using Type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using Type = B;
};

}  // namespace detail

// Reducer reduces words of sizeof(Word) / sizeof(T) elements, by one thread. All ranks get the same
// bits if they add the same words in the same order.
template <class T, class Op, class Word>
class Reducer {
  static_assert(sizeof(Word) % sizeof(T) == 0, "a word holds whole elements");
  static constexpr uint32_t kCount = sizeof(Word) / sizeof(T);
  using Wide = typename detail::WideOf<T, Op>::Type;

  using Sums = detail::Sums<Wide, kCount>;

 public:
  // Unfinished is a reduction that goes on elsewhere, such as on another host: a word, or the
  // larger Sums if a word's elements cannot hold it. Floats of 16 bits are rounded in a word;
  // averages of them and all fp8 are not.
  using Unfinished = typename detail::Either<detail::kWideSums<T, Op>, Sums, Word>::Type;

  // A reducer to assign to before use.
  MSCCLGO_DEVICE Reducer() : wide_{} {}

  // Begins with the first word.
  MSCCLGO_DEVICE explicit Reducer(Word first) {
    Elements e{first};
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) wide_[i] = Wide(Element<T>::widen(e.values[i]));
  }

  // Begins with what unfinished() returned elsewhere.
  MSCCLGO_DEVICE explicit Reducer(const Sums& sums) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) wide_[i] = sums.values[i];
  }

  // add reduces one more word.
  MSCCLGO_DEVICE void add(Word next) {
    Elements e{next};
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i)
      wide_[i] = Op::apply(wide_[i], Wide(Element<T>::widen(e.values[i])));
  }

  // add reduces one more unfinished reduction.
  MSCCLGO_DEVICE void add(const Sums& sums) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) wide_[i] = Op::apply(wide_[i], sums.values[i]);
  }

  // get returns the result of the words of `ranks` ranks.
  MSCCLGO_DEVICE Word get(uint32_t ranks) const {
    Elements e;
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i)
      e.values[i] = Element<T>::narrow(typename Element<T>::Wide(Op::finish(wide_[i], ranks)));
    return e.word;
  }

  // unfinished returns the reduction so far, for a Reducer elsewhere to go on.
  MSCCLGO_DEVICE Unfinished unfinished() const {
    if constexpr (detail::kWideSums<T, Op>) {
      Sums sums;
#pragma unroll
      for (uint32_t i = 0; i < kCount; ++i) sums.values[i] = wide_[i];
      return sums;
    } else {
      Elements e;
#pragma unroll
      for (uint32_t i = 0; i < kCount; ++i)
        e.values[i] = Element<T>::narrow(typename Element<T>::Wide(wide_[i]));
      return e.word;
    }
  }

 private:
  union Elements {
    Word word;
    T values[kCount];
    MSCCLGO_DEVICE Elements() {}
    MSCCLGO_DEVICE Elements(Word w) : word(w) {}
  };

  Wide wide_[kCount];
};

}  // namespace mscclgo
