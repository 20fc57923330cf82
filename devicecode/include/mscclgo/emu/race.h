// race.h: what the compiler calls before each access in a module that is compiled for the
// race finder or the explorer (-fsanitize=thread, of which only the instrumentation is used), and what
// stands for atomic operations there, with the scope that C++'s lack.
#pragma once

#include "mscclgo/emu/runtime.h"

#if defined(MSCCLGO_EMU_RACE)

// The linker binds a module's calls to its own (-Bsymbolic): the compiler has declared them
// already, and not as hidden.
#define MSCCLGO_EMU_HOOK extern "C" __attribute__((no_sanitize("thread"), noinline))

namespace mscclgo {
namespace emu {

// raceAccess tells of an access if its memory is watched, which stacks are not. A loop may wait on a
// volatile load, whose other thread of the block has to come on.
__attribute__((no_sanitize("thread"), always_inline)) inline void raceAccess(const volatile void* p,
                                                                             uint64_t size, uint32_t how,
                                                                             const void* code) {
  mscclgo_emu_thread* t = self();
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  if (how == MSCCLGO_EMU_VOLATILE) spinHint();
  if (t->block->watched && !t->block->watched[at >> 12]) return;
  t->block->runtime->accessed(t, const_cast<const void*>(p), size, how, code);
}

__attribute__((no_sanitize("thread"), noinline)) inline uint64_t raceAtomic(uint32_t what, void* at,
                                                                            uint32_t size, uint64_t value,
                                                                            uint64_t expected, uint32_t order,
                                                                            uint32_t scope) {
  const mscclgo_emu_atomic a = {at, value, expected, what, size, order, scope};
  mscclgo_emu_thread* t = self();
  return t->block->runtime->atomic(t, &a, __builtin_return_address(0));
}

__attribute__((no_sanitize("thread"), noinline)) inline void raceFence(uint32_t order, uint32_t scope) {
  mscclgo_emu_thread* t = self();
  t->block->runtime->fence(t, order, scope, __builtin_return_address(0));
}

}  // namespace emu
}  // namespace mscclgo

#define MSCCLGO_EMU_ACCESS(name, size, how)                                \
  MSCCLGO_EMU_HOOK void __tsan_##name(void* p) {                           \
    ::mscclgo::emu::raceAccess(p, size, how, __builtin_return_address(0)); \
  }
#define MSCCLGO_EMU_ACCESSES(size)                                                         \
  MSCCLGO_EMU_ACCESS(read##size, size, 0)                                                  \
  MSCCLGO_EMU_ACCESS(write##size, size, MSCCLGO_EMU_WRITE)                                 \
  MSCCLGO_EMU_ACCESS(volatile_read##size, size, MSCCLGO_EMU_VOLATILE)                      \
  MSCCLGO_EMU_ACCESS(volatile_write##size, size, MSCCLGO_EMU_WRITE | MSCCLGO_EMU_VOLATILE) \
  MSCCLGO_EMU_ACCESS(unaligned_read##size, size, 0)                                        \
  MSCCLGO_EMU_ACCESS(unaligned_write##size, size, MSCCLGO_EMU_WRITE)
MSCCLGO_EMU_ACCESSES(1)
MSCCLGO_EMU_ACCESSES(2)
MSCCLGO_EMU_ACCESSES(4)
MSCCLGO_EMU_ACCESSES(8)
MSCCLGO_EMU_ACCESSES(16)
#undef MSCCLGO_EMU_ACCESSES
#undef MSCCLGO_EMU_ACCESS

MSCCLGO_EMU_HOOK void __tsan_read_range(void* p, long n) {
  ::mscclgo::emu::raceAccess(p, static_cast<uint64_t>(n), 0, __builtin_return_address(0));
}
MSCCLGO_EMU_HOOK void __tsan_write_range(void* p, long n) {
  ::mscclgo::emu::raceAccess(p, n, MSCCLGO_EMU_WRITE, __builtin_return_address(0));
}

// Functions of the C library that the linker has kernels call instead (--wrap).
extern "C" void* __real_memcpy(void*, const void*, size_t);
extern "C" void* __real_memmove(void*, const void*, size_t);
extern "C" void* __real_memset(void*, int, size_t);
MSCCLGO_EMU_HOOK void* __wrap_memcpy(void* to, const void* from, size_t n) {
  ::mscclgo::emu::raceAccess(from, n, 0, __builtin_return_address(0));
  ::mscclgo::emu::raceAccess(to, n, MSCCLGO_EMU_WRITE, __builtin_return_address(0));
  return __real_memcpy(to, from, n);
}
MSCCLGO_EMU_HOOK void* __wrap_memmove(void* to, const void* from, size_t n) {
  ::mscclgo::emu::raceAccess(from, n, 0, __builtin_return_address(0));
  ::mscclgo::emu::raceAccess(to, n, MSCCLGO_EMU_WRITE, __builtin_return_address(0));
  return __real_memmove(to, from, n);
}
MSCCLGO_EMU_HOOK void* __wrap_memset(void* to, int value, size_t n) {
  ::mscclgo::emu::raceAccess(to, n, MSCCLGO_EMU_WRITE, __builtin_return_address(0));
  return __real_memset(to, value, n);
}

// The compiler's own atomics, which have no scope: they count as the system's. Of a comparison g++
// calls the second form, and clang the first.
namespace mscclgo {
namespace emu {
constexpr uint32_t raceOrder(int order) {
  return (order == __ATOMIC_RELAXED || order == __ATOMIC_RELEASE ? 0 : MSCCLGO_EMU_ACQUIRE) |
         (order == __ATOMIC_RELEASE || order >= __ATOMIC_ACQ_REL ? MSCCLGO_EMU_RELEASE : 0);
}
}  // namespace emu
}  // namespace mscclgo
#define MSCCLGO_EMU_BUILTINS(bits, T)                                                                        \
  MSCCLGO_EMU_HOOK T __tsan_atomic##bits##_load(const volatile void* p, int order) {                         \
    return static_cast<T>(::mscclgo::emu::raceAtomic(MSCCLGO_EMU_LOAD, const_cast<void*>(p), bits / 8, 0, 0, \
                                                     ::mscclgo::emu::raceOrder(order), MSCCLGO_EMU_SYSTEM)); \
  }                                                                                                          \
  MSCCLGO_EMU_HOOK void __tsan_atomic##bits##_store(volatile void* p, T value, int order) {                  \
    ::mscclgo::emu::raceAtomic(MSCCLGO_EMU_STORE, const_cast<void*>(p), bits / 8, value, 0,                  \
                               ::mscclgo::emu::raceOrder(order), MSCCLGO_EMU_SYSTEM);                        \
  }                                                                                                          \
  MSCCLGO_EMU_HOOK T __tsan_atomic##bits##_exchange(volatile void* p, T value, int order) {                  \
    return static_cast<T>(::mscclgo::emu::raceAtomic(MSCCLGO_EMU_EXCHANGE, const_cast<void*>(p), bits / 8,   \
                                                     value, 0, ::mscclgo::emu::raceOrder(order),             \
                                                     MSCCLGO_EMU_SYSTEM));                                   \
  }                                                                                                          \
  MSCCLGO_EMU_HOOK T __tsan_atomic##bits##_fetch_add(volatile void* p, T value, int order) {                 \
    return static_cast<T>(::mscclgo::emu::raceAtomic(MSCCLGO_EMU_FETCH_ADD, const_cast<void*>(p), bits / 8,  \
                                                     value, 0, ::mscclgo::emu::raceOrder(order),             \
                                                     MSCCLGO_EMU_SYSTEM));                                   \
  }                                                                                                          \
  MSCCLGO_EMU_HOOK T __tsan_atomic##bits##_compare_exchange_val(volatile void* p, T expected, T value,       \
                                                                int order, int) {                            \
    return static_cast<T>(::mscclgo::emu::raceAtomic(MSCCLGO_EMU_COMPARE, const_cast<void*>(p), bits / 8,    \
                                                     value, expected, ::mscclgo::emu::raceOrder(order),      \
                                                     MSCCLGO_EMU_SYSTEM));                                   \
  }                                                                                                          \
  MSCCLGO_EMU_HOOK bool __tsan_atomic##bits##_compare_exchange_strong(volatile void* p, void* expected,      \
                                                                      T value, int order, int unless) {      \
    T* want = static_cast<T*>(expected);                                                                     \
    const T had = __tsan_atomic##bits##_compare_exchange_val(p, *want, value, order, unless);                \
    const bool same = had == *want;                                                                          \
    *want = had;                                                                                             \
    return same;                                                                                             \
  }
MSCCLGO_EMU_BUILTINS(8, unsigned char)
MSCCLGO_EMU_BUILTINS(32, unsigned int)
MSCCLGO_EMU_BUILTINS(64, unsigned long)
#undef MSCCLGO_EMU_BUILTINS

MSCCLGO_EMU_HOOK void __tsan_init() {}
MSCCLGO_EMU_HOOK void __tsan_func_entry(void*) {}
MSCCLGO_EMU_HOOK void __tsan_func_exit(void*) {}
MSCCLGO_EMU_HOOK void __tsan_vptr_update(void*, void*) {}

#endif
