// cuda_fp16.h: CUDA's half precision for the emulated device.
#pragma once

#include "mscclgo/emu/float16.h"

using __half = ::mscclgo::emu::Float16<5, 10>;
using __half2 = ::mscclgo::emu::Pair<__half>;
using half = __half;
using half2 = __half2;

// Conversions to and from one number.

inline __half __float2half(float v) { return v; }
inline __half __float2half_rn(float v) { return v; }
inline __half __double2half(double v) { return v; }
inline __half __int2half_rn(int v) { return v; }
inline __half __uint2half_rn(unsigned v) { return v; }
inline __half __ll2half_rn(long long v) { return v; }
inline __half __ull2half_rn(unsigned long long v) { return v; }
inline float __half2float(__half v) { return v; }
inline int __half2int_rn(__half v) { return __float2int_rn(v); }
inline int __half2int_rz(__half v) { return __float2int_rz(v); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline short __half_as_short(__half v) { return static_cast<short>(v.bits); }
inline __half __ushort_as_half(unsigned short v) { return __half::fromBits(v); }
inline __half __short_as_half(short v) { return __half::fromBits(static_cast<uint16_t>(v)); }

// Conversions to and from a pair.

inline __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
inline __half2 __float2half2_rn(float v) { return __half2(v, v); }
inline __half2 __float22half2_rn(float2 v) { return __half2(v.x, v.y); }
inline float2 __half22float2(__half2 v) { return make_float2(v.x, v.y); }
inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
inline __half2 __half2half2(__half v) { return __half2(v, v); }
inline __half2 make_half2(__half x, __half y) { return __half2(x, y); }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline float __low2float(__half2 v) { return v.x; }
inline float __high2float(__half2 v) { return v.y; }
inline __half2 __low2half2(__half2 v) { return __half2(v.x, v.x); }
inline __half2 __high2half2(__half2 v) { return __half2(v.y, v.y); }
inline __half2 __lowhigh2highlow(__half2 v) { return __half2(v.y, v.x); }
