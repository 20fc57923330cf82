// float16.h: floating point numbers of 16 bits, and what half and bfloat16 have in common.
// Every operation rounds its exact result once, to nearest even: it is computed in double,
// whose 53 bits are more than twice as many as are kept, so that the second rounding
// changes nothing. A NaN result is 0x7fff, as on a GPU.
#pragma once

#include "mscclgo/emu/atomics.h"
#include "mscclgo/emu/intrinsics.h"

namespace mscclgo {
namespace emu {

// narrow returns the bits of the nearest number with that many bits of exponent and
// fraction.
template <int exponentBits, int fractionBits>
uint16_t narrow(double v) {
  constexpr int bias = (1 << (exponentBits - 1)) - 1;
  constexpr int infinite = (1 << exponentBits) - 1;
  const uint64_t bits = bitCast<uint64_t>(v);
  const uint16_t sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const uint64_t fraction = bits & 0xfffffffffffffull;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent == 1024 && fraction) return 0x7fff;
  if (exponent + bias >= infinite) return sign | infinite << fractionBits;
  if (exponent < -bias - fractionBits) return sign;  // below half of the smallest
  // Below the normal range the fraction loses a bit with each power of two.
  const bool normal = exponent > -bias;
  const int shift = 52 - fractionBits + (normal ? 0 : 1 - bias - exponent);
  const uint64_t significand = fraction | 1ull << 52;
  uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  kept += rest > half || (rest == half && (kept & 1));
  // A carry goes into the exponent, and from the largest number to infinity.
  if (normal) kept += static_cast<uint64_t>(exponent + bias - 1) << fractionBits;
  return static_cast<uint16_t>(sign | kept);
}

// widen returns a number's exact value.
template <int exponentBits, int fractionBits>
float widen(uint16_t bits) {
  constexpr int bias = (1 << (exponentBits - 1)) - 1;
  constexpr uint32_t infinite = (1 << exponentBits) - 1;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> fractionBits & infinite;
  const uint32_t fraction = bits & ((1u << fractionBits) - 1);
  if (exponentBits == 8) return bitCast<float>(static_cast<uint32_t>(bits) << 16);
  if (exponent == infinite) return bitCast<float>(sign | 0x7f800000u | fraction << (23 - fractionBits));
  if (exponent == 0) {
    const float magnitude = ldexpf(static_cast<float>(fraction), 1 - bias - fractionBits);
    return sign ? -magnitude : magnitude;
  }
  return bitCast<float>(sign | (exponent + 127 - bias) << 23 | fraction << (23 - fractionBits));
}

// fusedMultiplyAdd returns a * b + c so that rounding it to 16 bits is right. The
// product is exact; if the sum is not, its last bit is made odd, which keeps the
// second rounding from seeing a tie (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", 2008).
inline double fusedMultiplyAdd(double a, double b, double c) {
  const double p = a * b, s = p + c;
  if (!(fabs(s) <= 1.7e308)) return s;
  const double v = s - p, lost = (p - (s - v)) + (c - v);
  uint64_t bits = bitCast<uint64_t>(s);
  if (lost == 0 || (bits & 1)) return s;
  bits += (lost > 0) == (s > 0) ? 1 : -1;
  return bitCast<double>(bits);
}

// Float16 is a number with that many bits of exponent and of fraction.
template <int exponentBits, int fractionBits>
struct __attribute__((aligned(2))) Float16 {
  uint16_t bits;

  Float16() = default;
  Float16(double v) : bits(narrow<exponentBits, fractionBits>(v)) {}
  Float16(float v) : Float16(static_cast<double>(v)) {}
  Float16(int v) : Float16(static_cast<double>(v)) {}
  Float16(unsigned v) : Float16(static_cast<double>(v)) {}
  Float16(short v) : Float16(static_cast<double>(v)) {}
  Float16(unsigned short v) : Float16(static_cast<double>(v)) {}
  Float16(long v) : bits(fromWide(v)) {}
  Float16(unsigned long v) : bits(fromWide(v)) {}
  Float16(long long v) : bits(fromWide(v)) {}
  Float16(unsigned long long v) : bits(fromWide(v)) {}

  operator float() const { return widen<exponentBits, fractionBits>(bits); }

  static Float16 fromBits(uint16_t bits) {
    Float16 r;
    r.bits = bits;
    return r;
  }

  Float16& operator+=(Float16 o) { return *this = *this + o; }
  Float16& operator-=(Float16 o) { return *this = *this - o; }
  Float16& operator*=(Float16 o) { return *this = *this * o; }
  Float16& operator/=(Float16 o) { return *this = *this / o; }
  Float16& operator++() { return *this = *this + Float16(1); }
  Float16& operator--() { return *this = *this - Float16(1); }

  friend Float16 operator+(Float16 a) { return a; }
  friend Float16 operator-(Float16 a) { return fromBits(a.bits ^ 0x8000); }
  friend Float16 operator+(Float16 a, Float16 b) { return a.wide() + b.wide(); }
  friend Float16 operator-(Float16 a, Float16 b) { return a.wide() - b.wide(); }
  friend Float16 operator*(Float16 a, Float16 b) { return a.wide() * b.wide(); }
  friend Float16 operator/(Float16 a, Float16 b) { return a.wide() / b.wide(); }
  friend bool operator==(Float16 a, Float16 b) { return a.wide() == b.wide(); }
  friend bool operator!=(Float16 a, Float16 b) { return a.wide() != b.wide(); }
  friend bool operator<(Float16 a, Float16 b) { return a.wide() < b.wide(); }
  friend bool operator<=(Float16 a, Float16 b) { return a.wide() <= b.wide(); }
  friend bool operator>(Float16 a, Float16 b) { return a.wide() > b.wide(); }
  friend bool operator>=(Float16 a, Float16 b) { return a.wide() >= b.wide(); }

  double wide() const { return widen<exponentBits, fractionBits>(bits); }

 private:
  // An integer of 64 bits may not fit into a double. Of the bits below the 53 highest it
  // matters only whether any is set.
  template <class T>
  static uint16_t fromWide(T v) {
    const bool negative = v < T(0);
    uint64_t magnitude = static_cast<uint64_t>(v);
    if (negative) magnitude = 0 - magnitude;
    if (magnitude >> 53) magnitude = (magnitude & ~0x7ffull) | ((magnitude & 0x7ff) != 0) << 11;
    const double exact = static_cast<double>(magnitude);
    return narrow<exponentBits, fractionBits>(negative ? -exact : exact);
  }
};

// Pair is two numbers of 16 bits.
template <class T>
struct __attribute__((aligned(4))) Pair {
  T x, y;

  Pair() = default;
  Pair(T vx, T vy) : x(vx), y(vy) {}

  friend Pair operator+(Pair a, Pair b) { return Pair(a.x + b.x, a.y + b.y); }
  friend Pair operator-(Pair a, Pair b) { return Pair(a.x - b.x, a.y - b.y); }
  friend Pair operator*(Pair a, Pair b) { return Pair(a.x * b.x, a.y * b.y); }
  friend Pair operator/(Pair a, Pair b) { return Pair(a.x / b.x, a.y / b.y); }
  friend Pair operator-(Pair a) { return Pair(-a.x, -a.y); }
  friend bool operator==(Pair a, Pair b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(Pair a, Pair b) { return a.x != b.x && a.y != b.y; }
  Pair& operator+=(Pair o) { return *this = *this + o; }
  Pair& operator-=(Pair o) { return *this = *this - o; }
  Pair& operator*=(Pair o) { return *this = *this * o; }
  Pair& operator/=(Pair o) { return *this = *this / o; }
};

// lesser and greater ignore a NaN if the other operand is a number, and order -0 below
// +0.
template <class T>
T lesser(T a, T b) {
  if (!(a == a)) return b == b ? b : T::fromBits(0x7fff);
  if (!(b == b)) return a;
  if (a == b) return a.bits & 0x8000 ? a : b;
  return a < b ? a : b;
}
template <class T>
T greater(T a, T b) {
  if (!(a == a)) return b == b ? b : T::fromBits(0x7fff);
  if (!(b == b)) return a;
  if (a == b) return a.bits & 0x8000 ? b : a;
  return a > b ? a : b;
}

}  // namespace emu
}  // namespace mscclgo

// CUDA Math API, "Half Precision Intrinsics" and "Bfloat16 Precision
// Intrinsics": the functions that both have.

#define MSCCLGO_EMU_F16 ::mscclgo::emu::Float16<e, f>
#define MSCCLGO_EMU_F16_UNARY(name, result)                    \
  template <int e, int f>                                      \
  MSCCLGO_EMU_F16 name(MSCCLGO_EMU_F16 a) {                    \
    return result;                                             \
  }                                                            \
  template <class T>                                           \
  ::mscclgo::emu::Pair<T> name##2(::mscclgo::emu::Pair<T> a) { \
    return ::mscclgo::emu::Pair<T>(name(a.x), name(a.y));      \
  }
#define MSCCLGO_EMU_F16_BINARY(name, result)                                              \
  template <int e, int f>                                                                 \
  MSCCLGO_EMU_F16 name(MSCCLGO_EMU_F16 a, MSCCLGO_EMU_F16 b) {                            \
    return result;                                                                        \
  }                                                                                       \
  template <class T>                                                                      \
  ::mscclgo::emu::Pair<T> name##2(::mscclgo::emu::Pair<T> a, ::mscclgo::emu::Pair<T> b) { \
    return ::mscclgo::emu::Pair<T>(name(a.x, b.x), name(a.y, b.y));                       \
  }
// A comparison of pairs returns 1.0 or 0.0 for each.
#define MSCCLGO_EMU_F16_COMPARE(name, result)                                             \
  template <int e, int f>                                                                 \
  bool name(MSCCLGO_EMU_F16 a, MSCCLGO_EMU_F16 b) {                                       \
    return result;                                                                        \
  }                                                                                       \
  template <class T>                                                                      \
  ::mscclgo::emu::Pair<T> name##2(::mscclgo::emu::Pair<T> a, ::mscclgo::emu::Pair<T> b) { \
    return ::mscclgo::emu::Pair<T>(T(int(name(a.x, b.x))), T(int(name(a.y, b.y))));       \
  }

MSCCLGO_EMU_F16_UNARY(__hneg, -a)
MSCCLGO_EMU_F16_UNARY(__habs, (MSCCLGO_EMU_F16::fromBits(a.bits & 0x7fff)))
MSCCLGO_EMU_F16_BINARY(__hadd, a + b)
MSCCLGO_EMU_F16_BINARY(__hsub, a - b)
MSCCLGO_EMU_F16_BINARY(__hmul, a* b)
MSCCLGO_EMU_F16_BINARY(__hmin, ::mscclgo::emu::lesser(a, b))
MSCCLGO_EMU_F16_BINARY(__hmax, ::mscclgo::emu::greater(a, b))
MSCCLGO_EMU_F16_BINARY(__hmin_nan, a == a && b == b ? __hmin(a, b) : MSCCLGO_EMU_F16::fromBits(0x7fff))
MSCCLGO_EMU_F16_BINARY(__hmax_nan, a == a && b == b ? __hmax(a, b) : MSCCLGO_EMU_F16::fromBits(0x7fff))
MSCCLGO_EMU_F16_COMPARE(__heq, a == b)
MSCCLGO_EMU_F16_COMPARE(__hne, a<b || a> b)
MSCCLGO_EMU_F16_COMPARE(__hlt, a < b)
MSCCLGO_EMU_F16_COMPARE(__hle, a <= b)
MSCCLGO_EMU_F16_COMPARE(__hgt, a > b)
MSCCLGO_EMU_F16_COMPARE(__hge, a >= b)

template <int e, int f>
MSCCLGO_EMU_F16 __hdiv(MSCCLGO_EMU_F16 a, MSCCLGO_EMU_F16 b) {
  return a / b;
}
template <class T>
::mscclgo::emu::Pair<T> __h2div(::mscclgo::emu::Pair<T> a, ::mscclgo::emu::Pair<T> b) {
  return a / b;
}
template <int e, int f>
MSCCLGO_EMU_F16 __hfma(MSCCLGO_EMU_F16 a, MSCCLGO_EMU_F16 b, MSCCLGO_EMU_F16 c) {
  return ::mscclgo::emu::fusedMultiplyAdd(a.wide(), b.wide(), c.wide());
}
template <class T>
::mscclgo::emu::Pair<T> __hfma2(::mscclgo::emu::Pair<T> a, ::mscclgo::emu::Pair<T> b,
                                ::mscclgo::emu::Pair<T> c) {
  return ::mscclgo::emu::Pair<T>(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
template <int e, int f>
bool __hisnan(MSCCLGO_EMU_F16 a) {
  return !(a == a);
}
// __hisinf returns 1 or -1 for an infinity of that sign, and otherwise 0.
template <int e, int f>
int __hisinf(MSCCLGO_EMU_F16 a) {
  constexpr uint16_t infinity = ((1 << e) - 1) << f;
  return (a.bits & 0x7fff) != infinity ? 0 : a.bits & 0x8000 ? -1 : 1;
}
template <int e, int f>
MSCCLGO_EMU_F16 hsqrt(MSCCLGO_EMU_F16 a) {
  return sqrt(a.wide());
}
template <int e, int f>
MSCCLGO_EMU_F16 hrcp(MSCCLGO_EMU_F16 a) {
  return 1.0 / a.wide();
}
template <int e, int f>
MSCCLGO_EMU_F16 hexp(MSCCLGO_EMU_F16 a) {
  return exp(a.wide());
}
template <int e, int f>
MSCCLGO_EMU_F16 hlog(MSCCLGO_EMU_F16 a) {
  return log(a.wide());
}

// atomicAdd on 16 bits, and on a pair, of which both are added to at once.
template <int e, int f>
MSCCLGO_EMU_F16 atomicAdd(MSCCLGO_EMU_F16* address, MSCCLGO_EMU_F16 value) {
  return ::mscclgo::emu::atomicUpdate<MSCCLGO_EMU_DEVICE>(
      address, [value](MSCCLGO_EMU_F16 old) { return old + value; });
}
template <class T>
::mscclgo::emu::Pair<T> atomicAdd(::mscclgo::emu::Pair<T>* address, ::mscclgo::emu::Pair<T> value) {
  return ::mscclgo::emu::atomicUpdate<MSCCLGO_EMU_DEVICE>(
      address, [value](::mscclgo::emu::Pair<T> old) { return old + value; });
}

#undef MSCCLGO_EMU_F16
#undef MSCCLGO_EMU_F16_UNARY
#undef MSCCLGO_EMU_F16_BINARY
#undef MSCCLGO_EMU_F16_COMPARE
