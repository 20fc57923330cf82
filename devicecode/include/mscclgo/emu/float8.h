// float8.h: floating point numbers of 8 bits (Open Compute Project, "OCP 8-bit
// Floating Point Specification"; CUDA Math API, "FP8 Intrinsics"). E5M2 has the
// infinities and NaNs of IEEE 754; E4M3 has no infinity, and 0x7f is its NaN.
#pragma once

#include "mscclgo/emu/float16.h"

namespace mscclgo {
namespace emu {

// Float8 is a number with that many bits of exponent and fraction.
template <int exponentBits, int fractionBits>
struct Float8 {
  unsigned char __x;

  Float8() = default;
  // Rounds to nearest even. What is beyond the largest finite number, infinities too,
  // becomes that number, as with __NV_SATFINITE; a NaN becomes 0x7f, as on GPUs that
  // convert in hardware.
  explicit Float8(float v) : __x(round(v)) {}

  // The number's exact value.
  explicit operator float() const {
    const int magnitude = __x & 0x7f, exponent = magnitude >> fractionBits;
    const int fraction = magnitude & ((1 << fractionBits) - 1);
    float v = ldexpf(static_cast<float>(fraction), 1 - kBias - fractionBits);
    if (magnitude >= kFirstNaN) {
      v = bitCast<float>(0x7fffffffu);
    } else if (magnitude > kLargest) {
      v = HUGE_VALF;
    } else if (exponent > 0) {
      v = ldexpf(static_cast<float>(fraction + (1 << fractionBits)), exponent - kBias - fractionBits);
    }
    return __x & 0x80 ? -v : v;
  }

 private:
  static constexpr int kBias = (1 << (exponentBits - 1)) - 1;
  static constexpr int kFirstNaN = exponentBits == 5 ? 0x7d : 0x7f;
  static constexpr int kLargest = exponentBits == 5 ? 0x7b : 0x7e;  // that is finite

  static unsigned char round(float v) {
    if (v != v) return 0x7f;
    const unsigned char sign = bitCast<uint32_t>(v) >> 31 ? 0x80 : 0;
    const float magnitude = fabsf(v);
    if (magnitude == 0) return sign;
    if (magnitude > 0x1p16f) return static_cast<unsigned char>(sign | kLargest);
    int exponent;
    frexpf(magnitude, &exponent);  // magnitude is in [2^(exponent - 1), 2^exponent)
    if (exponent < 2 - kBias) exponent = 2 - kBias;
    // In units of the last place. Those below 2^fractionBits are subnormal, and what
    // carries over counts the exponent up.
    const int units = static_cast<int>(rintf(ldexpf(magnitude, fractionBits + 1 - exponent)));
    const int bits = units + (exponent - 2 + kBias) * (1 << fractionBits);
    return static_cast<unsigned char>(sign | (bits < kLargest ? bits : kLargest));
  }
};

}  // namespace emu
}  // namespace mscclgo
