// cuda_bf16.h: CUDA's bfloat16 for the emulated device.
#pragma once

#include "mscclgo/emu/float16.h"

using __nv_bfloat16 = ::mscclgo::emu::Float16<8, 7>;
using __nv_bfloat162 = ::mscclgo::emu::Pair<__nv_bfloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

// Conversions to and from one number.

inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline __nv_bfloat16 __double2bfloat16(double v) { return v; }
inline __nv_bfloat16 __int2bfloat16_rn(int v) { return v; }
inline __nv_bfloat16 __uint2bfloat16_rn(unsigned v) { return v; }
inline __nv_bfloat16 __ll2bfloat16_rn(long long v) { return v; }
inline __nv_bfloat16 __ull2bfloat16_rn(unsigned long long v) { return v; }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline int __bfloat162int_rn(__nv_bfloat16 v) { return __float2int_rn(v); }
inline int __bfloat162int_rz(__nv_bfloat16 v) { return __float2int_rz(v); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 v) { return static_cast<short>(v.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16::fromBits(v); }
inline __nv_bfloat16 __short_as_bfloat16(short v) {
  return __nv_bfloat16::fromBits(static_cast<uint16_t>(v));
}

// Conversions to and from a pair.

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __float2bfloat162_rn(float v) { return __nv_bfloat162(v, v); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __nv_bfloat162(v.x, v.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return __nv_bfloat162(v, v); }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.x, v.x); }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.y, v.y); }
inline __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 v) { return __nv_bfloat162(v.y, v.x); }
