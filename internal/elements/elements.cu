// What package elements does on the host, on a device: random elements, and how
// many of a result are wrong. A test compares the two.
//
// TYPE is the place of the element type among the package's.
#include <cuda_fp16.h>

#include <mscclgo/atomic.cuh>
#include <mscclgo/copy.cuh>

#ifndef TYPE
#define TYPE 0
#endif

using namespace mscclgo;

namespace {

enum Type { kF32, kF16, kBF16, kI32, kU8 };
constexpr Type kType = Type(TYPE);

template <uint32_t Size>
struct BitsOf {
  using Type = uint32_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};
using Bits = BitsOf<kType == kU8 ? 1 : kType == kF16 || kType == kBF16 ? 2 : 4>::Type;

MSCCLGO_DEVICE uint64_t mix(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

MSCCLGO_DEVICE Bits random(uint64_t seed, uint64_t index) {
  uint64_t r = mix(seed, index);
  if constexpr (kType == kI32 || kType == kU8) return Bits(r);
  constexpr uint32_t kMantissa = kType == kF32 ? 23 : kType == kF16 ? 10 : 7;
  constexpr uint32_t kBias = kType == kF16 ? 15 : 127;
  uint32_t exponent = kBias - 6 + uint32_t(r >> 60 & 7), sign = uint32_t(r >> 59 & 1);
  return Bits((sign << (kType == kF16 ? 5 : 8) | exponent) << kMantissa |
              (uint32_t(r) & ((1u << kMantissa) - 1)));
}

MSCCLGO_DEVICE double value(Bits bits) {
  union {
    uint32_t bits;
    float value;
  } wide;
  union {
    Bits bits;
    __half value;
  } narrow;
  if constexpr (kType == kI32) return double(int32_t(bits));
  if constexpr (kType == kU8) return double(bits);
  if constexpr (kType == kF16) {
    narrow.bits = bits;
    return double(__half2float(narrow.value));
  }
  wide.bits = kType == kBF16 ? uint32_t(bits) << 16 : uint32_t(bits);
  return double(wide.value);
}

MSCCLGO_DEVICE double magnitudeOf(double v) { return v < 0 ? -v : v; }

MSCCLGO_DEVICE uint64_t firstElement() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
MSCCLGO_DEVICE uint64_t stride() { return uint64_t(gridDim.x) * blockDim.x; }

}  // namespace

// fill is Type.Fill of count elements.
extern "C" __global__ void fill(uint8_t* dst, uint64_t count, uint64_t seed) {
  for (uint64_t i = firstElement(); i < count; i += stride())
    storePartial(dst + i * sizeof(Bits), random(seed, i), sizeof(Bits));
}

// Found is what check adds to.
struct Found {
  uint64_t wrong;     // elements
  uint64_t checksum;  // of all elements, each with its index
};

// Rounding bounds the error of one rounding to the type.
struct Rounding {
  double relative, absolute;
  uint64_t times;
};

// check is Type.WrongReduced of count elements, by operation 0, sum, 1, max, or 2,
// min, of what fill makes of the seeds.
extern "C" __global__ void check(const uint8_t* got, uint64_t count, uint32_t operation,
                                 const uint64_t* seeds, uint32_t ranks, Rounding rounding, Found* found) {
  uint64_t wrong = 0, checksum = 0;
  for (uint64_t i = firstElement(); i < count; i += stride()) {
    Bits bits = loadPartial<Bits>(got + i * sizeof(Bits), sizeof(Bits));
    checksum += mix(bits, i);
    double want = 0, magnitude = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
      double v = value(random(seeds[r], i));
      magnitude += magnitudeOf(v);
      if (r == 0) {
        want = v;
      } else if (operation == 0) {
        want += v;
      } else {
        want = (operation == 1) == (v > want) ? v : want;
      }
    }
    if (kType == kI32 && operation == 0) {
      if (uint32_t(bits) != uint32_t(int64_t(want))) ++wrong;
      continue;
    }
    double bound = 0;
    if (operation == 0 && ranks > 1) {
      // The result's own rounding is relative to it, those before to partial sums,
      // which are no larger than all magnitudes together.
      bound = rounding.relative * (magnitudeOf(want) + double(rounding.times - 1) * magnitude) +
              double(rounding.times) * rounding.absolute + ranks * 0x1p-23 * magnitude;
    }
    // Written so that a NaN is wrong.
    if (!(magnitudeOf(value(bits) - want) <= bound)) ++wrong;
  }
  if (wrong > 0) fetchAdd<Scope::Device, Order::Relaxed>(&found->wrong, wrong);
  fetchAdd<Scope::Device, Order::Relaxed>(&found->checksum, checksum);
}
