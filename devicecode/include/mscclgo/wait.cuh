// Bounded waits: a wait ends because what it waits for has happened, because its deadline
// has passed, or because the group has failed.
#pragma once

#include <mscclgo/trace.cuh>

namespace mscclgo {

// WaitResult is how a wait ended.
enum class WaitResult : uint32_t {
  Done = 0,      // the condition has come true
  TimedOut = 1,  // the deadline passed first
  Aborted = 2,   // the group failed or was closed
};

// kFaultBytes is the size of a fault's text, kFaultTold the mark that it is there, and kNoPeer the
// peer of a fault that concerns none.
constexpr uint32_t kFaultBytes = 228, kFaultTold = 2, kNoPeer = ~uint32_t(0);

// WaitNote is a long wait, for the host to see. Nobody clears it: the wait goes on as long as
// `last` moves.
struct WaitNote {
  uint64_t what;      // timed out << 63 | channel << 32 | peer << 16 | block
  uint64_t start;     // of the wait, by nanoseconds()
  uint64_t last;      // when this was written, by nanoseconds()
  uint64_t expected;  // start's low 16 bits << 48 | the signal's number, of a wait that has one
};

// kWaitNotes is the number of a group's notes.
constexpr uint32_t kWaitNotes = 64;

// GroupStatus is the group's state in pinned host memory, aligned to 16 bytes. Each rank
// has one.
struct GroupStatus {
  uint32_t aborted;            // the host sets it to end all waits
  uint32_t faulted;            // kFaultTold once a kernel has reported a fault (check.cuh)
  uint64_t firstFailed;        // a kernel sets it when a wait timed out: 1 << 63 | channel << 32 | peer
  uint64_t putOff;             // nanoseconds by which the host defers the deadlines of waits
  uint32_t faultPeer;          // the rank that the fault concerns, or kNoPeer
  char fault[kFaultBytes];     // what was found wrong, ends with a zero byte
  WaitNote notes[kWaitNotes];  // kernels write them; waits share them by a hash
  TraceRing trace;             // for events of kernels; the host sets it before
};

// Watch ends a wait for a signal that does not come. It is part of every handle.
struct Watch {
  GroupStatus* status;
  uint64_t timeout;  // nanoseconds from the wait's first look at the clock; see GroupStatus::putOff
  uint32_t peer;     // the rank waited for, to be reported
  uint32_t channel;  // the channel's number, to be reported

  // trace returns where kernels write events, or null. Any thread may call it.
  MSCCLGO_DEVICE const TraceRing* trace() const { return status == nullptr ? nullptr : &status->trace; }
};

namespace detail {

#if defined(MSCCLGO_EMU)
constexpr uint32_t kPollsBetweenLooks = 64;
#else
constexpr uint32_t kPollsBetweenLooks = 1024;
#endif

// kNoteAfter is how long a wait lasts before its first note, and kNoteInterval the time from one
// note to the next, in nanoseconds: the stores cross PCIe.
constexpr int64_t kNoteAfter = 1000000;
constexpr uint64_t kNoteInterval = 4000000;

// kJudging is how long the host may take to make the group fail after a wait has passed its
// deadline, in nanoseconds. Without a communicator nobody does.
constexpr uint64_t kJudging = 200000000;

// Look is what a wait has read from its watch.
struct Look {
  WaitResult result;
  uint64_t start;  // the time of the first look, nanoseconds
};

// noteWait writes a wait's note. Threads that wait for the same thing share a note, and one of them
// writes it in each interval. If the clock has stepped back, a note of a later time is written
// again. A wait without an expected number leaves another wait's number there; its `start` does not
// fit. More code here costs kernels registers, even if they do not run it.
template <class... Expected>
MSCCLGO_DEVICE void noteWait(const Watch& watch, uint64_t start, uint64_t now, bool timedOut,
                             Expected... expected) {
  uint64_t what = uint64_t(watch.channel & 0x7fffffffu) << 32 | uint64_t(watch.peer & 0xffffu) << 16 |
                  (blockIdx.x & 0xffffu);
  uint32_t slot = (watch.channel * 29 + watch.peer * 7 + blockIdx.x) % kWaitNotes;
  WaitNote* note = &watch.status->notes[slot];
  if (!timedOut && now - load<Scope::System, Order::Relaxed>(&note->last) < kNoteInterval) return;
  storeRelaxed16(&note->what, uint64_t(timedOut) << 63 | what, start);
  if constexpr (sizeof...(expected) > 0) {
    storeRelaxed16(&note->last, now, ((start << 48) | ... | (expected & 0xffffffffffffu)));
  } else {
    store<Scope::System, Order::Relaxed>(&note->last, now);
  }
}

// awaitFailure waits until the host has made the group fail, for kJudging at most, after a wait
// that has passed its deadline. So a kernel that is queued after this one begins after the failure,
// and proxies drop its triggers. Otherwise a peer might take its data for data that this kernel did
// not send. A relaxed load is enough. The host sets the proxies' flag before the abort word. This
// thread sees that word before its kernel ends, and so before the next kernel's triggers, which
// proxies acquire before they look at the flag.
inline __device__ __noinline__ void awaitFailure(const GroupStatus* status, uint64_t now) {
  while (load<Scope::System, Order::Relaxed>(&status->aborted) == 0 && nanoseconds() - now < kJudging) {
#if defined(__CUDA_ARCH__)
    __nanosleep(20000);  // the loads cross PCIe, perhaps of all threads
#endif
  }
}

// lookAt is look.
template <class... Expected>
MSCCLGO_DEVICE Look lookAt(const Watch& watch, uint64_t start, Expected... expected) {
  if (load<Scope::System, Order::Relaxed>(&watch.status->aborted) != 0) return {WaitResult::Aborted, start};
  uint64_t now = nanoseconds();
  if (start == 0) return {WaitResult::Done, now};
  // Signed: the clock may step back.
  int64_t waited = int64_t(now - start);
  // Written so that it costs kernels no registers.
  if (waited > int64_t(watch.timeout))
    waited -= int64_t(load<Scope::System, Order::Relaxed>(&watch.status->putOff));
  if (waited <= int64_t(watch.timeout)) {
    if (waited >= kNoteAfter) noteWait(watch, start, now, false, expected...);
    return {WaitResult::Done, start};
  }
  noteWait(watch, start, now, true, expected...);
  // A plain store: any of several reports will do, and not every bus lets a GPU do
  // read-modify-writes on host memory.
  uint64_t report = uint64_t(1) << 63 | uint64_t(watch.channel) << 32 | watch.peer;
  store<Scope::System, Order::Relaxed>(&watch.status->firstFailed, report);
  awaitFailure(watch.status, now);
  return {WaitResult::TimedOut, start};
}

// look is the slow part of a wait, a read across PCIe; a wait calls it once in many polls. start is
// 0 the first time. Arguments and result go by value, to stay in registers. Most waits expect no
// number, and should not keep one for the call.
inline __device__ __noinline__ Look look(Watch watch, uint64_t start) { return lookAt(watch, start); }
inline __device__ __noinline__ Look look(Watch watch, uint64_t start, uint64_t expected) {
  return lookAt(watch, start, expected);
}

}  // namespace detail

// waitUntil calls ready() until it returns true, the watch's deadline passes, or the group fails.
// Any thread may call it. It orders no memory: the accesses in ready() do, and only memory may
// decide ready()'s result. A wait that timed out is reported to the host, and the communicator
// makes it the group's error; waitUntil returns when that is done, 0.2 s after the deadline at
// most. A wait for a signal may give its number, expected, which the host can read if the wait
// lasts.
template <class Ready, class... Expected>
MSCCLGO_DEVICE WaitResult waitUntil(const Watch& watch, Ready ready, Expected... expected) {
  uint64_t start = 0;
#if defined(MSCCLGO_EMU)
  emu::Waiting waiting;
#endif
  for (uint32_t polls = 1; !ready(); ++polls) {
#if defined(MSCCLGO_EMU)
    waiting.poll({watch.status, watch.channel, watch.peer, (uint64_t(0) | ... | expected)});
#endif
    if (polls % detail::kPollsBetweenLooks == 0) {
      detail::Look seen = detail::look(watch, start, expected...);
      if (seen.result != WaitResult::Done) return seen.result;
      start = seen.start;
    }
  }
  return WaitResult::Done;
}

// awaitAbove waits until a count in memory is above a value. Any thread may call it. O is Acquire
// or Relaxed, at system scope. An acquire is one fence after the last of many relaxed loads: these
// are cheaper than acquiring loads.
template <Order O>
MSCCLGO_DEVICE WaitResult awaitAbove(const Watch& watch, const uint64_t* count, uint64_t value) {
  WaitResult result = waitUntil(
      watch, [&] { return load<Scope::System, Order::Relaxed>(count MSCCLGO_AWAITED(value + 1)) > value; },
      value + 1);
  if constexpr (O == Order::Acquire) fence<Scope::System, O>();
  return result;
}

// blockAll reports to every thread of the block whether ok is true in all of them. It is
// a barrier of the block (__syncthreads): what one thread observed before it, all have
// observed after it. Every thread of the block must call it.
MSCCLGO_DEVICE bool blockAll(bool ok) { return __syncthreads_and(ok) != 0; }

}  // namespace mscclgo
