// Litmus tests of memory: four roles, which are two blocks of one thread on each of two ranks, use
// two words x and y, on the two ranks, and each role has results. Each test is run for some pairs
// of words. The comment behind each has the results that are asked for, and whether they may come:
// "role.result=value ...: never" or ": sometimes".
#include <mscclgo/group.cuh>

using namespace mscclgo;

constexpr uint32_t kRounds = 8, kStride = 32, kResults = 4;  // words

struct Round {
  uint32_t *x, *y, *flag;
  uint32_t *results, role;

  __device__ void result(uint32_t i, uint32_t value) const { results[i] = value; }
};

template <class F>
__device__ void rounds(const GroupHandle& group, const PeerMemory& buffers, uint64_t at, F body) {
  const uint32_t role = group.rank * 2 + blockIdx.x;
  for (uint32_t i = 0; i < kRounds; ++i) {
    uint32_t* zero = buffers.of<uint32_t>(0) + at / 4 + i * kStride;
    uint32_t* one = buffers.of<uint32_t>(1) + at / 4 + i * kStride;
    uint32_t* mine = group.rank == 0 ? zero : one;
    body(Round{zero, one, one + 8, mine + 16 + blockIdx.x * kResults, role});
  }
}

#define LITMUS(name, outcome)                                                           \
  __device__ void run_##name(const Round& r);                                           \
  extern "C" __global__ void name(GroupHandle group, PeerMemory buffers, uint64_t at) { \
    rounds(group, buffers, at, [](const Round& r) { run_##name(r); });                  \
  }                                                                                     \
  __device__ void run_##name(const Round& r)

template <Order O = Order::Relaxed, Scope S = Scope::System>
__device__ uint32_t get(const uint32_t* p) {
  return load<S, O>(p);
}
template <Order O = Order::Relaxed, Scope S = Scope::System>
__device__ void set(uint32_t* p, uint32_t value) {
  store<S, O>(p, value);
}
constexpr Order kAcquire = Order::Acquire, kRelease = Order::Release;

// Message passing, from role 0 to role 2, on the other device.

LITMUS(mpRelaxed, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpNoAcquire, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpNoRelease, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mp, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpOld, "2.0=1 2.1=0: never") {  // the first of two stores may be what is seen
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
    set(r.y, 2);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpBehindRelease, "2.0=2 2.1=0: never") {  // a relaxed store behind one that releases
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
    set(r.y, 2);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpAcquireBehind, "2.0=1 2.2=2 2.1=0: never") {  // a relaxed load before one that acquires
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
  } else if (r.role == 1) {
    set(r.y, 2);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    r.result(2, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpNearStore, "2.0=1 2.1=0: sometimes") {  // a store of device scope, whatever the fence
  if (r.role == 0) {
    *r.x = 1;
    fence<Scope::System, kRelease>();
    set<Order::Relaxed, Scope::Device>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpOldIsSeen, "2.0=1 2.1=1: sometimes") {
  if (r.role == 0) {
    set(r.y, 1);
    set(r.y, 2);
    set<kRelease>(r.flag, 1);
  } else if (r.role == 2) {
    r.result(1, get(r.flag));
    r.result(0, get(r.y));
  }
}
LITMUS(mpFences, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    fence<Scope::System, kRelease>();
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    fence<Scope::System, kAcquire>();
    r.result(1, *r.x);
  }
}
LITMUS(mpFenceTooLate, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set(r.y, 1);
    fence<Scope::System, kRelease>();
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    fence<Scope::System, kAcquire>();
    r.result(1, *r.x);
  }
}
LITMUS(mpThreadfence, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    __threadfence_system();
    atomicExch_system(r.y, 1u);
  } else if (r.role == 2) {
    r.result(0, atomicAdd_system(r.y, 0u));
    __threadfence_system();
    r.result(1, *r.x);
  }
}
LITMUS(mpVolatile, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    fence<Scope::System, kRelease>();
    *static_cast<volatile uint32_t*>(r.y) = 1;
  } else if (r.role == 2) {
    r.result(0, *static_cast<volatile uint32_t*>(r.y));
    fence<Scope::System, kAcquire>();
    r.result(1, *r.x);
  }
}
LITMUS(mpVolatileStore, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    fence<Scope::System, kRelease>();
    *static_cast<volatile uint32_t*>(r.y) = 1;
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpVolatileLoad, "2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, *static_cast<volatile uint32_t*>(r.y));
    fence<Scope::System, kAcquire>();
    r.result(1, *r.x);
  }
}
LITMUS(mpVolatileAlone, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    *static_cast<volatile uint32_t*>(r.y) = 1;
  } else if (r.role == 2) {
    r.result(0, *static_cast<volatile uint32_t*>(r.y));
    fence<Scope::System, kAcquire>();
    r.result(1, *r.x);
  }
}
LITMUS(mpDeviceAcross, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease, Scope::Device>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpDeviceFenceAcross, "2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    fence<Scope::Device, kRelease>();
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpDevice, "1.0=1 1.1=0: never") {  // on one device
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease, Scope::Device>(r.y, 1);
  } else if (r.role == 1) {
    r.result(0, get<kAcquire, Scope::Device>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(mpCopied, "2.0=1 2.1=0: sometimes") {  // by a statement that copies an object
  struct Pair {
    uint32_t a, b, c;
  };
  if (r.role == 0) {
    r.x[1] = 1;
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    *reinterpret_cast<Pair*>(r.results + 1) = *reinterpret_cast<const Pair*>(r.x + 1);
  }
}
LITMUS(mpBytes, "2.0=1 2.1=0: never") {  // of other bytes of a word that is written later
  if (r.role == 0) {
    r.x[0] = 1;
    set<kRelease>(r.y, 1);
    r.x[1] = 1;
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, r.x[0]);
  }
}

// Store buffering.

LITMUS(sb, "0.0=0 2.0=0: sometimes") {
  if (r.role == 0) {
    set(r.x, 1);
    r.result(0, get(r.y));
  } else if (r.role == 2) {
    set(r.y, 1);
    r.result(0, get(r.x));
  }
}
LITMUS(sbAcquireRelease, "0.0=0 2.0=0: sometimes") {
  if (r.role == 0) {
    set<kRelease>(r.x, 1);
    r.result(0, get<kAcquire>(r.y));
  } else if (r.role == 2) {
    set<kRelease>(r.y, 1);
    r.result(0, get<kAcquire>(r.x));
  }
}
LITMUS(sbFences, "0.0=0 2.0=0: never") {
  if (r.role == 0) {
    set(r.x, 1);
    __threadfence_system();
    r.result(0, get(r.y));
  } else if (r.role == 2) {
    set(r.y, 1);
    __threadfence_system();
    r.result(0, get(r.x));
  }
}
LITMUS(sbDeviceFencesAcross, "0.0=0 2.0=0: sometimes") {
  if (r.role == 0) {
    set(r.x, 1);
    __threadfence();
    r.result(0, get(r.y));
  } else if (r.role == 2) {
    set(r.y, 1);
    __threadfence();
    r.result(0, get(r.x));
  }
}
LITMUS(sbSequential, "0.0=0 2.0=0: never") {  // the compiler's atomics
  if (r.role == 0) {
    __atomic_store_n(r.x, 1u, __ATOMIC_SEQ_CST);
    r.result(0, __atomic_load_n(r.y, __ATOMIC_SEQ_CST));
  } else if (r.role == 2) {
    __atomic_store_n(r.y, 1u, __ATOMIC_SEQ_CST);
    r.result(0, __atomic_load_n(r.x, __ATOMIC_SEQ_CST));
  }
}

// Coherence. Result 3 is 1 where a value came back.

LITMUS(coherence, "2.3=1: never") {
  if (r.role == 0) {
    for (uint32_t i = 1; i <= 6; ++i) set(r.x, i);
  } else if (r.role == 2) {
    uint32_t last = 0, back = 0;
    for (uint32_t i = 0; i < 6; ++i) {
      const uint32_t now = get(r.x);
      if (now < last) back = 1;
      last = now;
    }
    r.result(3, back);
  }
}
LITMUS(coherencePlain, "2.3=1: never") {
  if (r.role == 0) {
    for (uint32_t i = 1; i <= 6; ++i) *static_cast<volatile uint32_t*>(r.x) = i;
  } else if (r.role == 2) {
    uint32_t last = 0, back = 0;
    for (uint32_t i = 0; i < 6; ++i) {
      const uint32_t now = *static_cast<volatile uint32_t*>(r.x);
      if (now < last) back = 1;
      last = now;
    }
    r.result(3, back);
  }
}
LITMUS(coherenceOfTwo, "2.0=1 3.0=1 3.1=0: never") {  // the second knows what the first has read
  if (r.role == 0) {
    set(r.x, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.x));
    set<kRelease>(r.flag, r.results[0] + 1);
  } else if (r.role == 3) {
    r.result(0, get<kAcquire>(r.flag) == 2);
    r.result(1, get(r.x));
  }
}
LITMUS(coherenceOfParts, "2.0=1 2.1=0: never") {  // of a word of which halves were written
  const auto wide = [](uint32_t* p) { return reinterpret_cast<volatile uint64_t*>(p); };
  if (r.role == 0) {
    set(r.x + 1, 1);
    set(r.x, 1);
  } else if (r.role == 2) {
    r.result(0, *wide(r.x) == 0x100000001);
    r.result(1, get(r.x + 1));
  }
}
LITMUS(ownWrite, "0.0=0: never") {
  if (r.role == 0) {
    set(r.x, 1);
    r.result(0, get(r.x));
  } else if (r.role == 2) {
    set(r.x, 2);
  }
}
LITMUS(counts, "0.0=1 1.0=1: never") { r.result(0, fetchAdd<Scope::System, Order::Relaxed>(r.x, 1)); }

// Causes of causes, and reads of independent writes.

LITMUS(wrc, "1.0=1 2.0=1 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.flag, 1);
  } else if (r.role == 1) {
    r.result(0, get<kAcquire>(r.flag));
    set<kRelease>(r.y, r.results[0]);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(wrcRelaxed, "1.0=1 2.0=1 2.1=0: sometimes") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.flag, 1);
  } else if (r.role == 1) {
    r.result(0, get(r.flag));
    set<kRelease>(r.y, r.results[0]);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(releaseSequence, "2.0=2 2.1=0: never") {
  if (r.role == 0) {
    *r.x = 1;
    set<kRelease>(r.y, 1);
  } else if (r.role == 1) {
    if (get(r.y) == 1) fetchAdd<Scope::System, Order::Relaxed>(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get<kAcquire>(r.y));
    r.result(1, *r.x);
  }
}
LITMUS(iriw, "1.0=1 1.1=0 3.0=1 3.1=0: sometimes") {
  if (r.role == 0) {
    set(r.x, 1);
  } else if (r.role == 2) {
    set(r.y, 1);
  } else {
    r.result(0, get<kAcquire>(r.role == 1 ? r.x : r.y));
    r.result(1, get<kAcquire>(r.role == 1 ? r.y : r.x));
  }
}
LITMUS(iriwFences, "1.0=1 1.1=0 3.0=1 3.1=0: never") {
  if (r.role == 0) {
    set(r.x, 1);
  } else if (r.role == 2) {
    set(r.y, 1);
  } else {
    r.result(0, get(r.role == 1 ? r.x : r.y));
    __threadfence_system();
    r.result(1, get(r.role == 1 ? r.y : r.x));
  }
}
LITMUS(loadBuffering, "0.0=1 2.0=1: never") {  // PTX allows it where nothing depends on the loads
  if (r.role == 0) {
    r.result(0, get(r.x));
    set(r.y, 1);
  } else if (r.role == 2) {
    r.result(0, get(r.y));
    set(r.x, 1);
  }
}

// flood writes more words than are remembered.
extern "C" __global__ void flood(uint8_t* at, uint64_t n) { memset(at, 7, n); }
