// words.h: atomic operations on words, by the compiler's built-ins. In a module that is
// compiled for the race finder the device does them, and is told the scope.
#pragma once

#include "mscclgo/emu/race.h"
#include "mscclgo/emu/runtime.h"

namespace mscclgo {
namespace emu {

// builtinOrder returns the compiler's name of an order, MSCCLGO_EMU_ACQUIRE and so on.
constexpr int builtinOrder(uint32_t order) {
  return order == MSCCLGO_EMU_ACQUIRE   ? __ATOMIC_ACQUIRE
         : order == MSCCLGO_EMU_RELEASE ? __ATOMIC_RELEASE
         : order == 0                   ? __ATOMIC_RELAXED
         : order == MSCCLGO_EMU_NEWEST  ? __ATOMIC_RELAXED
                                        : __ATOMIC_SEQ_CST;
}

// loadWord returns a word. A wait tells which value it awaits at least, and does not use the value
// otherwise.
template <uint32_t Order, uint32_t Scope, class T>
__forceinline__ T loadWord(const T* p, T awaited = 0) {
#if defined(MSCCLGO_EMU_RACE)
  return static_cast<T>(raceAtomic(MSCCLGO_EMU_LOAD, const_cast<T*>(p), sizeof(T), 0, awaited, Order, Scope));
#else
  (void)awaited;
  return __atomic_load_n(p, builtinOrder(Order));
#endif
}

template <uint32_t Order, uint32_t Scope, class T>
__forceinline__ void storeWord(T* p, T value) {
#if defined(MSCCLGO_EMU_RACE)
  raceAtomic(MSCCLGO_EMU_STORE, p, sizeof(T), value, 0, Order, Scope);
#else
  __atomic_store_n(p, value, builtinOrder(Order));
#endif
}

template <uint32_t Order, uint32_t Scope, class T>
__forceinline__ T addToWord(T* p, T value) {
#if defined(MSCCLGO_EMU_RACE)
  return static_cast<T>(raceAtomic(MSCCLGO_EMU_FETCH_ADD, p, sizeof(T), value, 0, Order, Scope));
#else
  return __atomic_fetch_add(p, value, builtinOrder(Order));
#endif
}

template <uint32_t Order, uint32_t Scope, class T>
__forceinline__ T exchangeWord(T* p, T value) {
#if defined(MSCCLGO_EMU_RACE)
  return static_cast<T>(raceAtomic(MSCCLGO_EMU_EXCHANGE, p, sizeof(T), value, 0, Order, Scope));
#else
  return __atomic_exchange_n(p, value, builtinOrder(Order));
#endif
}

// replaceWord stores value if the word is `expected`, and reports whether it was; expected
// becomes what the word was. It is relaxed.
template <uint32_t Scope, class T>
__forceinline__ bool replaceWord(T* p, T& expected, T value) {
#if defined(MSCCLGO_EMU_RACE)
  const T had = static_cast<T>(raceAtomic(MSCCLGO_EMU_COMPARE, p, sizeof(T), value, expected, 0, Scope));
  const bool same = had == expected;
  expected = had;
  return same;
#else
  return __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
#endif
}

template <uint32_t Order, uint32_t Scope>
__forceinline__ void fence() {
#if defined(MSCCLGO_EMU_RACE)
  raceFence(Order, Scope);  // and the device's atomics are in one order
#else
  __atomic_thread_fence(builtinOrder(Order));
#endif
}

}  // namespace emu
}  // namespace mscclgo
