// What package elements does on the host, on a device: random elements, and how many
// of a result are wrong. A test compares the two.
//
// TYPE is the place of the element type among the package's.
#include <mscclgo/atomic.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/reduce.cuh>

#ifndef TYPE
#define TYPE 0
#endif

using namespace mscclgo;

namespace elements {

// Float is the arithmetic of a floating point type T, whose elements have
// Mantissa bits of mantissa and that bias.
template <class T, class Bits, uint32_t Mantissa, uint32_t Bias>
struct Float {
  using Element = Bits;
  static constexpr bool kInteger = false;
  static constexpr uint32_t kMantissa = Mantissa, kBias = Bias;
  union Any {
    Bits bits;
    T value;
    MSCCLGO_DEVICE Any() {}
  };

  MSCCLGO_DEVICE static double value(Bits bits) {
    Any v;
    v.bits = bits;
    return double(mscclgo::Element<T>::widen(v.value));
  }
  // nearest returns the value of the type that a result is rounded to.
  MSCCLGO_DEVICE static double nearest(double wide) {
    using Wide = typename mscclgo::Element<T>::Wide;
    return double(mscclgo::Element<T>::widen(mscclgo::Element<T>::narrow(Wide(wide))));
  }
};

// Integer is the arithmetic of integers.
template <class T, class Bits>
struct Integer {
  using Element = Bits;
  static constexpr bool kInteger = true;
  static constexpr uint32_t kMantissa = 0, kBias = 0;
  MSCCLGO_DEVICE static int64_t value(Bits bits) { return int64_t(T(bits)); }
};

template <uint32_t Place>
struct Types;
template <>
struct Types<0> : Float<float, uint32_t, 23, 127> {};
template <>
struct Types<1> : Float<__half, uint16_t, 10, 15> {};
template <>
struct Types<2> : Float<__nv_bfloat16, uint16_t, 7, 127> {};
template <>
struct Types<3> : Float<double, uint64_t, 52, 1023> {};
template <>
struct Types<4> : Float<__nv_fp8_e4m3, uint8_t, 3, 7> {};
template <>
struct Types<5> : Float<__nv_fp8_e5m2, uint8_t, 2, 15> {};
template <>
struct Types<6> : Integer<int32_t, uint32_t> {};
template <>
struct Types<7> : Integer<int64_t, uint64_t> {};
template <>
struct Types<8> : Integer<uint8_t, uint8_t> {};
using Type = Types<TYPE>;
using Bits = Type::Element;

enum Op { kSum, kProd, kMax, kMin, kAvg };

MSCCLGO_DEVICE uint64_t mix(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

MSCCLGO_DEVICE Bits random(uint64_t seed, uint64_t index) {
  uint64_t r = mix(seed, index);
  if constexpr (Type::kInteger) return Bits(r);
  uint64_t exponent = Type::kBias - 6 + (r >> 60 & 7), sign = r >> 59 & 1;
  return Bits(sign << (8 * sizeof(Bits) - 1) | exponent << Type::kMantissa |
              (r & ((uint64_t(1) << Type::kMantissa) - 1)));
}

MSCCLGO_DEVICE double magnitudeOf(double v) { return v < 0 ? -v : v; }

// Rounding bounds errors: of one rounding to the type, and of one operation in the
// wide one.
struct Rounding {
  double relative, absolute, wideRelative, wideAbsolute;
  uint64_t times;  // of roundings to the type
};

// Operands are element i of what all ranks have.
struct Operands {
  const uint64_t* seeds;
  uint32_t ranks;
  uint64_t i;

  MSCCLGO_DEVICE auto operator[](uint32_t rank) const { return Type::value(random(seeds[rank], i)); }
};

// rightInteger and rightFloat report whether an element is what Type.WrongReduced wants.
MSCCLGO_DEVICE bool rightInteger(Bits bits, uint32_t operation, const Operands& operands) {
  uint64_t v = uint64_t(operands[0]);
  for (uint32_t rank = 1; rank < operands.ranks; ++rank) {
    uint64_t next = uint64_t(operands[rank]);
    if (operation == kProd) {
      v *= next;
    } else if (operation == kMax || operation == kMin) {
      v = (int64_t(next) > int64_t(v)) == (operation == kMax) ? next : v;
    } else {
      v += next;
    }
  }
  if (operation == kAvg) v = uint64_t(int64_t(v) / int64_t(operands.ranks));
  return bits == Bits(v);
}

template <class A>
MSCCLGO_DEVICE bool rightFloat(Bits bits, uint32_t operation, const Operands& operands,
                               const Rounding& rounding) {
  double v = operands[0], size = magnitudeOf(v), growth = size > 1 ? size : 1;
  for (uint32_t rank = 1; rank < operands.ranks; ++rank) {
    double next = operands[rank], magnitude = magnitudeOf(next);
    size += magnitude;
    if (magnitude > 1) growth *= magnitude;
    if (operation == kProd) {
      v *= next;
    } else if (operation == kMax || operation == kMin) {
      v = (next > v) == (operation == kMax) ? next : v;
    } else {
      v += next;
    }
  }
  double got = A::value(bits), ranks = double(operands.ranks);
  if (operation == kMax || operation == kMin || operands.ranks == 1) return got == v;
  double lost = rounding.wideAbsolute + double(rounding.times - 1) * rounding.absolute;
  if (operation == kProd) size = magnitudeOf(v), lost *= growth;
  lost += (ranks * rounding.wideRelative + double(rounding.times - 1) * rounding.relative) * size;
  if (operation == kAvg) v /= ranks, lost /= ranks;
  // A NaN is neither.
  return got >= A::nearest(v - lost) && got <= A::nearest(v + lost);
}

MSCCLGO_DEVICE uint64_t firstElement() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
MSCCLGO_DEVICE uint64_t stride() { return uint64_t(gridDim.x) * blockDim.x; }

}  // namespace elements

using namespace elements;

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

// check is Type.WrongReduced of count elements, by an operation, which is a number of
// collective.Op, of what fill makes of the seeds.
extern "C" __global__ void check(const uint8_t* got, uint64_t count, uint32_t operation,
                                 const uint64_t* seeds, uint32_t ranks, Rounding rounding, Found* found) {
  uint64_t wrong = 0, checksum = 0;
  for (uint64_t i = firstElement(); i < count; i += stride()) {
    Bits bits = loadPartial<Bits>(got + i * sizeof(Bits), sizeof(Bits));
    checksum += mix(bits, i);
    Operands operands{seeds, ranks, i};
    bool right = false;
    if constexpr (Type::kInteger) {
      right = rightInteger(bits, operation, operands);
    } else {
      right = rightFloat<Type>(bits, operation, operands, rounding);
    }
    if (!right) ++wrong;
  }
  if (wrong > 0) fetchAdd<Scope::Device, Order::Relaxed>(&found->wrong, wrong);
  fetchAdd<Scope::Device, Order::Relaxed>(&found->checksum, checksum);
}
