// Loads, stores, read-modify-writes and fences with a memory order. On a GPU each is one PTX
// instruction, on the emulated device the compiler's atomic of the same order (emu/words.h). Other
// headers use these, not PTX of their own.
//
// The terms are from the PTX memory consistency model (PTX ISA, "Memory Consistency Model"). The
// scope says among which threads the order holds: a block, one GPU, or the system: every GPU and
// the host. Pointers are to global memory, which includes mapped peer and pinned host memory, and
// are aligned to the value's size. Any thread may call any function.
#pragma once

#include <mscclgo/config.cuh>

namespace mscclgo {

// Scope is the set of threads among which an order holds.
enum class Scope {
  Device,  // all threads of this GPU (.gpu)
  System,  // all GPUs and the host (.sys)
};

// Order is the order of other accesses around an access.
enum class Order {
  Relaxed,  // nothing; the access alone is atomic
  Acquire,  // later accesses stay after the load
  Release,  // earlier accesses, and what the thread has observed, stay before the store
};

// A relaxed load followed by an acquire fence is an acquire; a release fence followed by
// a relaxed store is a release (PTX: acquire and release patterns).

// MSCCLGO_AWAITED is the last argument of a load by a wait that ends at a value or any later one, and uses
// the value for nothing else. The race finder then knows what orders the wait, whatever it finds.
#if defined(MSCCLGO_EMU)
#define MSCCLGO_AWAITED(value) , value
#else
#define MSCCLGO_AWAITED(value)
#endif

#if defined(MSCCLGO_EMU)

namespace detail {

// emuOrder and emuScope return the emulated device's names.
constexpr uint32_t emuOrder(Order order) {
  return order == Order::Acquire ? MSCCLGO_EMU_ACQUIRE : order == Order::Release ? MSCCLGO_EMU_RELEASE : 0;
}
constexpr uint32_t emuScope(Scope scope) {
  return scope == Scope::Device ? MSCCLGO_EMU_DEVICE : MSCCLGO_EMU_SYSTEM;
}

}  // namespace detail

// load returns a value. The order is Relaxed or Acquire.
template <Scope S, Order O>
MSCCLGO_DEVICE uint32_t load(const uint32_t* p, uint32_t awaited = 0) {
  emu::spinHint();
  return emu::loadWord<detail::emuOrder(O), detail::emuScope(S)>(p, awaited);
}

template <Scope S, Order O>
MSCCLGO_DEVICE uint64_t load(const uint64_t* p, uint64_t awaited = 0) {
  emu::spinHint();
  return emu::loadWord<detail::emuOrder(O), detail::emuScope(S)>(p, awaited);
}

// store writes a value. The order is Relaxed or Release.
template <Scope S, Order O>
MSCCLGO_DEVICE void store(uint32_t* p, uint32_t value) {
  emu::storeWord<detail::emuOrder(O), detail::emuScope(S)>(p, value);
}

template <Scope S, Order O>
MSCCLGO_DEVICE void store(uint64_t* p, uint64_t value) {
  emu::storeWord<detail::emuOrder(O), detail::emuScope(S)>(p, value);
}

// fetchAdd adds to a value and returns what it was before. The order is Relaxed or
// Release.
template <Scope S, Order O>
MSCCLGO_DEVICE uint32_t fetchAdd(uint32_t* p, uint32_t value) {
  return emu::addToWord<detail::emuOrder(O), detail::emuScope(S)>(p, value);
}

template <Scope S, Order O>
MSCCLGO_DEVICE uint64_t fetchAdd(uint64_t* p, uint64_t value) {
  return emu::addToWord<detail::emuOrder(O), detail::emuScope(S)>(p, value);
}

// add is fetchAdd without the value, for which nothing waits.
template <Scope S, Order O>
MSCCLGO_DEVICE void add(uint64_t* p, uint64_t value) {
  fetchAdd<S, O>(p, value);
}

// fetchExchange replaces a value and returns what it was before. It acquires and releases.
template <Scope S>
MSCCLGO_DEVICE uint64_t fetchExchange(uint64_t* p, uint64_t value) {
  constexpr uint32_t both = MSCCLGO_EMU_ACQUIRE | MSCCLGO_EMU_RELEASE;
  return emu::exchangeWord<both, detail::emuScope(S)>(p, value);
}

// fence makes the relaxed loads before it acquire, or the relaxed stores after it
// release (PTX: fence.acquire, fence.release).
template <Scope S, Order O>
MSCCLGO_DEVICE void fence() {
  static_assert(O != Order::Relaxed, "a fence acquires or releases");
  emu::fence<detail::emuOrder(O), detail::emuScope(S)>();
}

// loadRelaxed16 reads two 8-byte words, aligned to 16 bytes. Each is read whole; the two
// are not ordered.
MSCCLGO_DEVICE void loadRelaxed16(const uint64_t* p, uint64_t& first, uint64_t& second) {
  first = load<Scope::System, Order::Relaxed>(p);
  second = emu::loadWord<0, MSCCLGO_EMU_SYSTEM>(p + 1);
}

// storeRelaxed16 writes two 8-byte words, aligned to 16 bytes. Each is written whole; the
// two are not ordered.
MSCCLGO_DEVICE void storeRelaxed16(uint64_t* p, uint64_t first, uint64_t second) {
  store<Scope::System, Order::Relaxed>(p, first);
  store<Scope::System, Order::Relaxed>(p + 1, second);
}

#else

namespace detail {

// global returns an address in the .global state space.
MSCCLGO_DEVICE uint64_t global(const void* p) { return __cvta_generic_to_global(p); }

}  // namespace detail

// One instruction for each pair of order and scope. The "memory" clobber keeps the compiler from
// moving other accesses across it; the qualifiers keep the hardware from it. Relaxed accesses have
// the clobber too: the compiler does not know what memory an instruction's text accesses, and would
// keep an old value in a register.
#define MSCCLGO_FORMS(S, INSTRUCTION, WEAK, STRONG)          \
  if constexpr (O == Order::Relaxed && S == Scope::Device) { \
    INSTRUCTION(WEAK ".gpu");                                \
  } else if constexpr (O == Order::Relaxed) {                \
    INSTRUCTION(WEAK ".sys");                                \
  } else if constexpr (S == Scope::Device) {                 \
    INSTRUCTION(STRONG ".gpu");                              \
  } else {                                                   \
    INSTRUCTION(STRONG ".sys");                              \
  }
#define MSCCLGO_LOAD32(form) \
  asm volatile("ld." form ".global.u32 %0, [%1];" : "=r"(v) : "l"(detail::global(p)) : "memory")
#define MSCCLGO_LOAD64(form) \
  asm volatile("ld." form ".global.u64 %0, [%1];" : "=l"(v) : "l"(detail::global(p)) : "memory")
#define MSCCLGO_STORE32(form) \
  asm volatile("st." form ".global.u32 [%0], %1;" ::"l"(detail::global(p)), "r"(value) : "memory")
#define MSCCLGO_STORE64(form) \
  asm volatile("st." form ".global.u64 [%0], %1;" ::"l"(detail::global(p)), "l"(value) : "memory")
#define MSCCLGO_ADD32(form)                                 \
  asm volatile("atom." form ".global.add.u32 %0, [%1], %2;" \
               : "=r"(v)                                    \
               : "l"(detail::global(p)), "r"(value)         \
               : "memory")
#define MSCCLGO_ADD64(form)                                 \
  asm volatile("atom." form ".global.add.u64 %0, [%1], %2;" \
               : "=l"(v)                                    \
               : "l"(detail::global(p)), "l"(value)         \
               : "memory")
#define MSCCLGO_RED64(form) \
  asm volatile("red." form ".global.add.u64 [%0], %1;" ::"l"(detail::global(p)), "l"(value) : "memory")

#define MSCCLGO_EXCHANGE64(scope)                                     \
  asm volatile("atom.acq_rel." scope ".global.exch.b64 %0, [%1], %2;" \
               : "=l"(v)                                              \
               : "l"(detail::global(p)), "l"(value)                   \
               : "memory")

// load returns a value. The order is Relaxed or Acquire (PTX: ld.relaxed, ld.acquire).
template <Scope S, Order O>
MSCCLGO_DEVICE uint32_t load(const uint32_t* p) {
  static_assert(O != Order::Release, "a load cannot release");
  uint32_t v;
  MSCCLGO_FORMS(S, MSCCLGO_LOAD32, "relaxed", "acquire")
  return v;
}

template <Scope S, Order O>
MSCCLGO_DEVICE uint64_t load(const uint64_t* p) {
  static_assert(O != Order::Release, "a load cannot release");
  uint64_t v;
  MSCCLGO_FORMS(S, MSCCLGO_LOAD64, "relaxed", "acquire")
  return v;
}

// store writes a value. The order is Relaxed or Release (PTX: st.relaxed, st.release).
template <Scope S, Order O>
MSCCLGO_DEVICE void store(uint32_t* p, uint32_t value) {
  static_assert(O != Order::Acquire, "a store cannot acquire");
  MSCCLGO_FORMS(S, MSCCLGO_STORE32, "relaxed", "release")
}

template <Scope S, Order O>
MSCCLGO_DEVICE void store(uint64_t* p, uint64_t value) {
  static_assert(O != Order::Acquire, "a store cannot acquire");
  MSCCLGO_FORMS(S, MSCCLGO_STORE64, "relaxed", "release")
}

// fetchAdd adds to a value and returns what it was before. The order is Relaxed or
// Release (PTX: atom.add).
template <Scope S, Order O>
MSCCLGO_DEVICE uint32_t fetchAdd(uint32_t* p, uint32_t value) {
  static_assert(O != Order::Acquire, "fetchAdd is relaxed or releases");
  uint32_t v;
  MSCCLGO_FORMS(S, MSCCLGO_ADD32, "relaxed", "release")
  return v;
}

template <Scope S, Order O>
MSCCLGO_DEVICE uint64_t fetchAdd(uint64_t* p, uint64_t value) {
  static_assert(O != Order::Acquire, "fetchAdd is relaxed or releases");
  uint64_t v;
  MSCCLGO_FORMS(S, MSCCLGO_ADD64, "relaxed", "release")
  return v;
}

// add is fetchAdd without the value, for which nothing waits (PTX: red.add).
template <Scope S, Order O>
MSCCLGO_DEVICE void add(uint64_t* p, uint64_t value) {
  static_assert(O != Order::Acquire, "add is relaxed or releases");
  MSCCLGO_FORMS(S, MSCCLGO_RED64, "relaxed", "release")
}

// fetchExchange replaces a value and returns what it was before. It acquires and releases (PTX:
// atom.acq_rel.exch).
template <Scope S>
MSCCLGO_DEVICE uint64_t fetchExchange(uint64_t* p, uint64_t value) {
  uint64_t v;
  if constexpr (S == Scope::Device) {
    MSCCLGO_EXCHANGE64("gpu");
  } else {
    MSCCLGO_EXCHANGE64("sys");
  }
  return v;
}

#undef MSCCLGO_FORMS
#undef MSCCLGO_EXCHANGE64
#undef MSCCLGO_LOAD32
#undef MSCCLGO_LOAD64
#undef MSCCLGO_STORE32
#undef MSCCLGO_STORE64
#undef MSCCLGO_ADD32
#undef MSCCLGO_ADD64
#undef MSCCLGO_RED64

// From PTX ISA 8.6 and sm_90 on, a fence can acquire or release alone. Acquiring then
// costs next to nothing, whereas fence.acq_rel waits for all stores of the thread.
#if __CUDA_ARCH__ >= 900 && \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 7))
#define MSCCLGO_FENCE(order, scope) asm volatile("fence." order "." scope ";" ::: "memory")
#else
#define MSCCLGO_FENCE(order, scope) asm volatile("fence.acq_rel." scope ";" ::: "memory")
#endif

// fence makes the relaxed loads before it acquire, or the relaxed stores after it
// release (PTX: fence.acquire, fence.release).
template <Scope S, Order O>
MSCCLGO_DEVICE void fence() {
  static_assert(O != Order::Relaxed, "a fence acquires or releases");
  if constexpr (S == Scope::Device && O == Order::Acquire) {
    MSCCLGO_FENCE("acquire", "gpu");
  } else if constexpr (S == Scope::Device) {
    MSCCLGO_FENCE("release", "gpu");
  } else if constexpr (O == Order::Acquire) {
    MSCCLGO_FENCE("acquire", "sys");
  } else {
    MSCCLGO_FENCE("release", "sys");
  }
}

#undef MSCCLGO_FENCE

// loadRelaxed16 reads two 8-byte words in one access, aligned to 16 bytes. Each is read
// whole; the two are not ordered (PTX: a vector access is a set of scalar accesses
// in no order).
MSCCLGO_DEVICE void loadRelaxed16(const uint64_t* p, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(detail::global(p))
               : "memory");
}

// storeRelaxed16 writes two 8-byte words in one access, aligned to 16 bytes. Each is
// written whole; the two are not ordered.
MSCCLGO_DEVICE void storeRelaxed16(uint64_t* p, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(detail::global(p)), "l"(first),
               "l"(second)
               : "memory");
}

#endif

}  // namespace mscclgo
