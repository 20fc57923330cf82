// atomics.h: CUDA's atomic functions (CUDA C++ Programming Guide, "Atomic
// Functions"), and its fences. All atomics are relaxed, and every scope is the system's,
// because other processes see the same memory. A loop that polls with one of them yields.
#pragma once

#include <string.h>

#include "mscclgo/emu/words.h"

namespace mscclgo {
namespace emu {

// BitsOf is the unsigned integer of a size in bytes.
template <size_t bytes>
struct BitsOf;
template <>
struct BitsOf<2> {
  using type = uint16_t;
};
template <>
struct BitsOf<4> {
  using type = uint32_t;
};
template <>
struct BitsOf<8> {
  using type = uint64_t;
};

// atomicUpdate replaces the old value by change(old), and returns the old value.
template <uint32_t Scope, class T, class F>
__forceinline__ T atomicUpdate(T* address, F change) {
  using Bits = typename BitsOf<sizeof(T)>::type;
  Bits* word = reinterpret_cast<Bits*>(address);
#if defined(MSCCLGO_EMU_RACE)
  Bits before = 0, after;  // else the first replaceWord finds what it is: a load would be a second access
#else
  Bits before = loadWord<0, Scope>(word), after;
#endif
  T value;
  do {
    memcpy(&value, &before, sizeof(T));
    const T changed = change(value);
    memcpy(&after, &changed, sizeof(T));
  } while (!replaceWord<Scope>(word, before, after));
  spinHint(address, before);
  return value;
}

}  // namespace emu
}  // namespace mscclgo

// MSCCLGO_EMU_ATOMIC defines a function of two arguments with its two other scopes.
#define MSCCLGO_EMU_ATOMIC_OF(name, T, result, scope)                                                    \
  inline T name(T* address, T value) {                                                                   \
    return ::mscclgo::emu::atomicUpdate<scope>(address,                                                  \
                                               [value]([[maybe_unused]] T old) -> T { return result; }); \
  }
#define MSCCLGO_EMU_ATOMIC(name, T, result)                           \
  MSCCLGO_EMU_ATOMIC_OF(name, T, result, MSCCLGO_EMU_DEVICE)          \
  MSCCLGO_EMU_ATOMIC_OF(name##_system, T, result, MSCCLGO_EMU_SYSTEM) \
  MSCCLGO_EMU_ATOMIC_OF(name##_block, T, result, MSCCLGO_EMU_BLOCK)

#define MSCCLGO_EMU_ATOMIC_INTEGER(T)                         \
  MSCCLGO_EMU_ATOMIC(atomicExch, T, value)                    \
  MSCCLGO_EMU_ATOMIC(atomicMin, T, old < value ? old : value) \
  MSCCLGO_EMU_ATOMIC(atomicMax, T, old > value ? old : value) \
  MSCCLGO_EMU_ATOMIC(atomicAnd, T, old& value)                \
  MSCCLGO_EMU_ATOMIC(atomicOr, T, old | value)                \
  MSCCLGO_EMU_ATOMIC(atomicXor, T, old ^ value)

// Sums wrap around, as on the GPU.
#define MSCCLGO_EMU_ATOMIC_SUM(T, U)                                                            \
  MSCCLGO_EMU_ATOMIC(atomicAdd, T, static_cast<T>(static_cast<U>(old) + static_cast<U>(value))) \
  MSCCLGO_EMU_ATOMIC(atomicSub, T, static_cast<T>(static_cast<U>(old) - static_cast<U>(value)))

MSCCLGO_EMU_ATOMIC_INTEGER(int)
MSCCLGO_EMU_ATOMIC_INTEGER(unsigned int)
MSCCLGO_EMU_ATOMIC_INTEGER(long long)
MSCCLGO_EMU_ATOMIC_INTEGER(unsigned long long)
MSCCLGO_EMU_ATOMIC_SUM(int, unsigned int)
MSCCLGO_EMU_ATOMIC_SUM(unsigned int, unsigned int)
MSCCLGO_EMU_ATOMIC_SUM(unsigned long long, unsigned long long)
MSCCLGO_EMU_ATOMIC(atomicExch, float, value)
MSCCLGO_EMU_ATOMIC(atomicAdd, float, old + value)
MSCCLGO_EMU_ATOMIC(atomicAdd, double, old + value)
MSCCLGO_EMU_ATOMIC(atomicInc, unsigned int, old >= value ? 0 : old + 1)
MSCCLGO_EMU_ATOMIC(atomicDec, unsigned int, old == 0 || old > value ? value : old - 1)

#undef MSCCLGO_EMU_ATOMIC_INTEGER
#undef MSCCLGO_EMU_ATOMIC_SUM

#define MSCCLGO_EMU_ATOMIC_CAS_OF(name, T, scope)                  \
  inline T name(T* address, T compare, T value) {                  \
    T old = compare;                                               \
    ::mscclgo::emu::replaceWord<scope>(address, old, value);       \
    ::mscclgo::emu::spinHint(address, static_cast<uint64_t>(old)); \
    return old;                                                    \
  }
#define MSCCLGO_EMU_ATOMIC_CAS(T)                                    \
  MSCCLGO_EMU_ATOMIC_CAS_OF(atomicCAS, T, MSCCLGO_EMU_DEVICE)        \
  MSCCLGO_EMU_ATOMIC_CAS_OF(atomicCAS_system, T, MSCCLGO_EMU_SYSTEM) \
  MSCCLGO_EMU_ATOMIC_CAS_OF(atomicCAS_block, T, MSCCLGO_EMU_BLOCK)

MSCCLGO_EMU_ATOMIC_CAS(int)
MSCCLGO_EMU_ATOMIC_CAS(unsigned int)
MSCCLGO_EMU_ATOMIC_CAS(unsigned long long)
MSCCLGO_EMU_ATOMIC_CAS(unsigned short)

#undef MSCCLGO_EMU_ATOMIC_CAS
#undef MSCCLGO_EMU_ATOMIC_CAS_OF

// "Memory Fence Functions". Threads of a block share an OS thread, so only the compiler has
// to be kept from moving accesses.
inline void __threadfence_block() {
#if defined(MSCCLGO_EMU_RACE)
  ::mscclgo::emu::fence<MSCCLGO_EMU_ACQUIRE | MSCCLGO_EMU_RELEASE, MSCCLGO_EMU_BLOCK>();
#else
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}
inline void __threadfence() {
  ::mscclgo::emu::fence<MSCCLGO_EMU_ACQUIRE | MSCCLGO_EMU_RELEASE, MSCCLGO_EMU_DEVICE>();
}
inline void __threadfence_system() {
  ::mscclgo::emu::fence<MSCCLGO_EMU_ACQUIRE | MSCCLGO_EMU_RELEASE, MSCCLGO_EMU_SYSTEM>();
}
