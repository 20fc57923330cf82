// Bounded waiting: a wait ends because it was signalled, because its deadline
// passed, or because the group failed.
#pragma once

#include <mscclgo/atomic.cuh>

namespace mscclgo {

// WaitResult is how a wait ended.
enum class WaitResult : uint32_t {
  Done = 0,      // what was awaited is there
  TimedOut = 1,  // the deadline passed first
  Aborted = 2,   // the group failed or was closed
};

// GroupStatus is the group's state in pinned host memory, one for each rank.
struct GroupStatus {
  uint32_t aborted;      // the host sets it to end all waits
  uint32_t reserved;     //
  uint64_t firstFailed;  // a kernel sets it when a wait timed out: 1 << 63 | channel << 32 | peer
};

// Watch is what a wait needs to end by itself. It is part of every handle.
struct Watch {
  GroupStatus* status;
  uint64_t timeout;  // nanoseconds from a wait's first look
  uint32_t peer;     // the rank that is awaited, for the report
  uint32_t channel;  // the channel's number, for the report
};

namespace detail {

#if defined(MSCCLGO_EMU)
constexpr uint32_t kPollsBetweenLooks = 64;
#else
constexpr uint32_t kPollsBetweenLooks = 1024;
#endif

// Look is what a wait learned from its watch.
struct Look {
  WaitResult result;
  uint64_t start;  // when the wait first looked, nanoseconds
};

// look is the slow part of a wait. It costs a read across PCIe, which is why a
// wait calls it once in many polls only. start is 0 the first time. Everything
// goes by value, to stay in registers.
inline __device__ __noinline__ Look look(Watch watch, uint64_t start) {
  if (load<Scope::System, Order::Relaxed>(&watch.status->aborted) != 0) return {WaitResult::Aborted, start};
  uint64_t now = nanoseconds();
  if (start == 0) return {WaitResult::Done, now};
  if (now - start <= watch.timeout) return {WaitResult::Done, start};
  // A plain store: any one of several reports will do, and not every bus lets a
  // GPU do read-modify-writes on host memory.
  uint64_t report = uint64_t(1) << 63 | uint64_t(watch.channel) << 32 | watch.peer;
  store<Scope::System, Order::Relaxed>(&watch.status->firstFailed, report);
  return {WaitResult::TimedOut, start};
}

}  // namespace detail

// waitUntil calls ready() until it gives true, the watch's deadline passes or
// its group fails. Any thread. It orders nothing itself: ready() holds the
// access that does. A wait that timed out is reported to the host, where the
// communicator turns it into the group's error.
template <class Ready>
MSCCLGO_DEVICE WaitResult waitUntil(const Watch& watch, Ready ready) {
  uint64_t start = 0;
  for (uint32_t polls = 1; !ready(); ++polls) {
#if defined(MSCCLGO_EMU)
    emu::yield();
#endif
    if (polls % detail::kPollsBetweenLooks == 0) {
      detail::Look seen = detail::look(watch, start);
      if (seen.result != WaitResult::Done) return seen.result;
      start = seen.start;
    }
  }
  return WaitResult::Done;
}

// awaitAbove waits until a count in memory is above a value. Any thread. O is
// Acquire or Relaxed, at system scope: an acquire is one fence behind the last of
// many relaxed loads, which are cheaper than loads that acquire.
template <Order O>
MSCCLGO_DEVICE WaitResult awaitAbove(const Watch& watch, const uint64_t* count, uint64_t value) {
  WaitResult result = waitUntil(watch, [&] { return load<Scope::System, Order::Relaxed>(count) > value; });
  if constexpr (O == Order::Acquire) fence<Scope::System, O>();
  return result;
}

// blockAll gives every thread of the block the same answer: whether ok is true
// on all of them. It is a barrier of the block (__syncthreads), so what a thread
// observed before it, all threads have observed after it. Every thread must
// call it.
MSCCLGO_DEVICE bool blockAll(bool ok) { return __syncthreads_and(ok) != 0; }

}  // namespace mscclgo
