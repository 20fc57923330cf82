// intrinsics.h: CUDA's small functions on numbers and memory that C++ does not
// have (CUDA Math API; CUDA C++ Programming Guide, "Read-Only Data Cache Load
// Function", "Time Function").
#pragma once

#include <math.h>
#include <string.h>
#include <time.h>

#include "mscclgo/emu/runtime.h"

// Bits of numbers.

namespace mscclgo {
namespace emu {
template <class To, class From>
__forceinline__ To bitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace emu
}  // namespace mscclgo

inline int __float_as_int(float v) { return ::mscclgo::emu::bitCast<int>(v); }
inline unsigned __float_as_uint(float v) { return ::mscclgo::emu::bitCast<unsigned>(v); }
inline float __int_as_float(int v) { return ::mscclgo::emu::bitCast<float>(v); }
inline float __uint_as_float(unsigned v) { return ::mscclgo::emu::bitCast<float>(v); }
inline long long __double_as_longlong(double v) { return ::mscclgo::emu::bitCast<long long>(v); }
inline double __longlong_as_double(long long v) { return ::mscclgo::emu::bitCast<double>(v); }
inline int __double2hiint(double v) { return static_cast<int>(__double_as_longlong(v) >> 32); }
inline int __double2loint(double v) { return static_cast<int>(__double_as_longlong(v)); }
inline double __hiloint2double(int high, int low) {
  return ::mscclgo::emu::bitCast<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 |
                                         static_cast<uint32_t>(low));
}

// Integers.

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
  v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(v);
}
inline unsigned long long __brevll(unsigned long long v) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 |
         __brev(static_cast<unsigned>(v >> 32));
}
// __byte_perm picks one of the 8 bytes of {y, x} by each nibble of the selector, or the
// byte's sign if the nibble's highest bit is set (PTX: prmt, default mode).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned nibble = selector >> 4 * i;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (nibble & 7)) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << 8 * i;
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const uint64_t v = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>(v << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const uint64_t v = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<unsigned>(v >> (shift & 31));
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
__extension__ inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// Floating point. Here the fast variants are as exact as the others.

inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __saturatef(float v) { return v > 0 ? (v < 1 ? v : 1) : 0; }

// Conversions. Values out of range saturate, and a NaN becomes 0, as on a GPU.
namespace mscclgo {
namespace emu {
template <class To>
To toInteger(double v) {
  constexpr bool isSigned = To(-1) < To(0);
  constexpr int bits = 8 * sizeof(To) - isSigned;
  constexpr To least = isSigned ? To(uint64_t(1) << bits) : To(0), most = To(~uint64_t(0) >> (64 - bits));
  if (!(v == v)) return 0;
  if (v <= static_cast<double>(least)) return least;
  if (v >= static_cast<double>(most)) return most;
  return static_cast<To>(v);
}
}  // namespace emu
}  // namespace mscclgo

inline int __float2int_rn(float v) { return ::mscclgo::emu::toInteger<int>(rint(v)); }
inline int __float2int_rz(float v) { return ::mscclgo::emu::toInteger<int>(trunc(v)); }
inline int __float2int_ru(float v) { return ::mscclgo::emu::toInteger<int>(ceil(v)); }
inline int __float2int_rd(float v) { return ::mscclgo::emu::toInteger<int>(floor(v)); }
inline unsigned __float2uint_rn(float v) { return ::mscclgo::emu::toInteger<unsigned>(rint(v)); }
inline unsigned __float2uint_rz(float v) { return ::mscclgo::emu::toInteger<unsigned>(trunc(v)); }
inline long long __float2ll_rn(float v) { return ::mscclgo::emu::toInteger<long long>(rint(v)); }
inline long long __float2ll_rz(float v) { return ::mscclgo::emu::toInteger<long long>(trunc(v)); }
inline float __int2float_rn(int v) { return static_cast<float>(v); }
inline float __uint2float_rn(unsigned v) { return static_cast<float>(v); }
inline float __ll2float_rn(long long v) { return static_cast<float>(v); }
inline float __double2float_rn(double v) { return static_cast<float>(v); }

// min and max of two equal types, and of types that C's rules make equal.

#define MSCCLGO_EMU_MINMAX(T)                                \
  inline constexpr T min(T a, T b) { return b < a ? b : a; } \
  inline constexpr T max(T a, T b) { return a < b ? b : a; }
MSCCLGO_EMU_MINMAX(int)
MSCCLGO_EMU_MINMAX(unsigned int)
MSCCLGO_EMU_MINMAX(long)
MSCCLGO_EMU_MINMAX(unsigned long)
MSCCLGO_EMU_MINMAX(long long)
MSCCLGO_EMU_MINMAX(unsigned long long)
#undef MSCCLGO_EMU_MINMAX

#define MSCCLGO_EMU_MINMAX(A, B, T)                                                      \
  inline constexpr T min(A a, B b) { return min(static_cast<T>(a), static_cast<T>(b)); } \
  inline constexpr T max(A a, B b) { return max(static_cast<T>(a), static_cast<T>(b)); }
MSCCLGO_EMU_MINMAX(int, unsigned int, unsigned int)
MSCCLGO_EMU_MINMAX(unsigned int, int, unsigned int)
MSCCLGO_EMU_MINMAX(long, unsigned long, unsigned long)
MSCCLGO_EMU_MINMAX(unsigned long, long, unsigned long)
MSCCLGO_EMU_MINMAX(long long, unsigned long long, unsigned long long)
MSCCLGO_EMU_MINMAX(unsigned long long, long long, unsigned long long)
#undef MSCCLGO_EMU_MINMAX

// min and max of floating point numbers, as on a GPU: a NaN loses against a number, two
// NaNs make the NaN whose bits are all ones but for the sign, and -0 is below +0.

namespace mscclgo {
namespace emu {
template <class Bits, class T>
__forceinline__ T lesserOf(T a, T b) {
  if (a == b) return bitCast<T>(bitCast<Bits>(a) | bitCast<Bits>(b));  // differ at most in a zero's sign
  if (a != a && b != b) return bitCast<T>(static_cast<Bits>(~Bits(0) >> 1));
  return a < b || b != b ? a : b;
}
template <class Bits, class T>
__forceinline__ T greaterOf(T a, T b) {
  if (a == b) return bitCast<T>(bitCast<Bits>(a) & bitCast<Bits>(b));
  if (a != a && b != b) return bitCast<T>(static_cast<Bits>(~Bits(0) >> 1));
  return a > b || b != b ? a : b;
}
}  // namespace emu
}  // namespace mscclgo

inline float min(float a, float b) { return ::mscclgo::emu::lesserOf<uint32_t>(a, b); }
inline float max(float a, float b) { return ::mscclgo::emu::greaterOf<uint32_t>(a, b); }
inline double min(double a, double b) { return ::mscclgo::emu::lesserOf<uint64_t>(a, b); }
inline double max(double a, double b) { return ::mscclgo::emu::greaterOf<uint64_t>(a, b); }
inline double min(float a, double b) { return min(static_cast<double>(a), b); }
inline double max(float a, double b) { return max(static_cast<double>(a), b); }
inline double min(double a, float b) { return min(a, static_cast<double>(b)); }
inline double max(double a, float b) { return max(a, static_cast<double>(b)); }

// Memory accesses with a cache hint, which means nothing to the emulated device.

#define MSCCLGO_EMU_LOAD(name) \
  template <class T>           \
  T name(const T* address) {   \
    return *address;           \
  }
#define MSCCLGO_EMU_STORE(name)    \
  template <class T>               \
  void name(T* address, T value) { \
    *address = value;              \
  }
#if defined(MSCCLGO_EMU_RACE)
// It may come from a cache that no write of the launch reaches.
template <class T>
__attribute__((no_sanitize("thread"), noinline)) T __ldg(const T* address) {
  ::mscclgo::emu::raceAccess(address, sizeof(T), MSCCLGO_EMU_CONSTANT, __builtin_return_address(0));
  return *address;
}
#else
MSCCLGO_EMU_LOAD(__ldg)
#endif
MSCCLGO_EMU_LOAD(__ldca)
MSCCLGO_EMU_LOAD(__ldcs)
MSCCLGO_EMU_LOAD(__ldlu)
MSCCLGO_EMU_STORE(__stwb)
MSCCLGO_EMU_STORE(__stcs)
#undef MSCCLGO_EMU_LOAD
#undef MSCCLGO_EMU_STORE

// These bypass a cache: others may change what they access, so that the compiler must not
// keep it in a register.
template <class T>
T __ldcg(const T* address) {
  __asm__ volatile("" ::: "memory");
  const T value = *address;
  __asm__ volatile("" ::: "memory");
  ::mscclgo::emu::spinHint();
  return value;
}
template <class T>
T __ldcv(const T* address) {
  return __ldcg(address);
}
template <class T>
void __stcg(T* address, T value) {
  __asm__ volatile("" ::: "memory");
  *address = value;
  __asm__ volatile("" ::: "memory");
}
template <class T>
void __stwt(T* address, T value) {
  __stcg(address, value);
}

// Clocks, in nanoseconds here.

inline long long clock64() {
#if defined(MSCCLGO_EMU_RACE)
  mscclgo_emu_thread* self = ::mscclgo::emu::self();
  return static_cast<long long>(self->block->runtime->clock(self));
#else
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
#endif
}
inline unsigned long long __globaltimer() { return static_cast<unsigned long long>(clock64()); }
