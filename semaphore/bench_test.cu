// Kernels of the benchmarks: round trips of signals made in several ways, and fences behind
// accesses that are under way.
#include <mscclgo/semaphore.cuh>

using namespace mscclgo;

namespace {

// End is one end's counts in registers, of which the handle's words know nothing.
struct End {
  Device2DeviceSemaphoreHandle semaphore;
  uint64_t sent, awaited;

  MSCCLGO_DEVICE End(const Device2DeviceSemaphoreHandle& s)
      : semaphore(s), sent(*s.outbound), awaited(*s.expected) {}
};

// Each way is a pair of a signal and a wait.

struct Library {
  MSCCLGO_DEVICE static void signal(End& e) { e.semaphore.signal(); }
  MSCCLGO_DEVICE static WaitResult wait(End& e) { return e.semaphore.wait(); }
};

struct Relaxed {
  MSCCLGO_DEVICE static void signal(End& e) { e.semaphore.relaxedSignal(); }
  MSCCLGO_DEVICE static WaitResult wait(End& e) { return e.semaphore.relaxedWait(); }
};

// Registers has the counts in registers, and Bare no order either: what the link costs.
template <Order Acquiring, class Fence>
struct InRegisters {
  MSCCLGO_DEVICE static void signal(End& e) {
    Fence::fence();
    store<Scope::System, Order::Relaxed>(e.semaphore.peerInbound, ++e.sent);
  }
  MSCCLGO_DEVICE static WaitResult wait(End& e) {
    return awaitAbove<Acquiring>(e.semaphore.watch, e.semaphore.inbound, e.awaited++);
  }
};
struct ToSystem {
  MSCCLGO_DEVICE static void fence() { mscclgo::fence<Scope::System, Order::Release>(); }
};
struct ToDevice {  // orders too little for a peer
  MSCCLGO_DEVICE static void fence() { mscclgo::fence<Scope::Device, Order::Release>(); }
};
struct None {
  MSCCLGO_DEVICE static void fence() {}
};
using Registers = InRegisters<Order::Acquire, ToSystem>;
using RegistersToDevice = InRegisters<Order::Acquire, ToDevice>;
using Bare = InRegisters<Order::Relaxed, None>;

// Adds adds one at the peer, which not every link can, and needs no count of signals.
template <Order O>
struct Adds {
  MSCCLGO_DEVICE static void signal(End& e) { add<Scope::System, O>(e.semaphore.peerInbound, 1); }
  MSCCLGO_DEVICE static WaitResult wait(End& e) {
    return O == Order::Relaxed ? e.semaphore.relaxedWait() : e.semaphore.wait();
  }
};

// trips signals and waits in turn, as one side of two; before each signal it stores a word in
// the peer's memory if `put`. What it took goes to *took, in nanoseconds. One thread.
template <class Way>
MSCCLGO_DEVICE void trips(const Device2DeviceSemaphoreHandle& semaphore, uint32_t serves, uint32_t rounds,
                          bool put, uint64_t* theirs, uint64_t* took) {
  End end(semaphore);
  uint64_t start = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i) {
    if (!serves && Way::wait(end) != WaitResult::Done) return;
    if (put) *theirs = i;
    Way::signal(end);
    if (serves && Way::wait(end) != WaitResult::Done) return;
  }
  *took = nanoseconds() - start;
}

}  // namespace

#define TRIPS(name, Way)                                                                          \
  extern "C" __global__ void name(__grid_constant__ const Device2DeviceSemaphoreHandle semaphore, \
                                  uint32_t serves, uint32_t rounds, bool put, uint64_t* theirs,   \
                                  uint64_t* took) {                                               \
    trips<Way>(semaphore, serves, rounds, put, theirs, took);                                     \
  }
TRIPS(library, Library)
TRIPS(relaxed, Relaxed)
TRIPS(registers, Registers)
TRIPS(registersToDevice, RegistersToDevice)
TRIPS(bare, Bare)
TRIPS(adds, Adds<Order::Release>)
TRIPS(relaxedAdds, Adds<Order::Relaxed>)
#undef TRIPS

// Under is the access that is under way when a fence begins.
enum Under : uint32_t { kNothing, kLoad, kStore, kAtomic };

// fences makes an access to a word, waits `pause` nanoseconds, and makes a fence: 0 none, 1 at
// device scope, 2 at system scope. One thread.
extern "C" __global__ void fences(uint32_t under, uint64_t* word, uint32_t pause, uint32_t scope,
                                  uint32_t rounds, uint64_t* took) {
  uint64_t start = nanoseconds(), sum = 0;
  for (uint32_t i = 0; i < rounds; ++i) {
    uint64_t value = 0;
    if (under == kLoad) value = load<Scope::Device, Order::Relaxed>(word);
    if (under == kStore) store<Scope::System, Order::Relaxed>(word, i);
    if (under == kAtomic) value = fetchAdd<Scope::Device, Order::Relaxed>(word, 1);
    if (pause != 0) {
#if !defined(MSCCLGO_EMU)
      for (long long from = clock64(); clock64() - from < pause;) {
      }
#endif
    }
    if (scope == 1) fence<Scope::Device, Order::Release>();
    if (scope == 2) fence<Scope::System, Order::Release>();
    sum += value;
  }
  took[0] = nanoseconds() - start;
  took[1] = sum;  // so that the loads are made
}
