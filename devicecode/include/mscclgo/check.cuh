// Checks of a kernel's use of the library: ranges, grids, shapes of blocks. They are made where
// MSCCLGO_CHECK is defined: on the emulated device always, on GPUs with devicecode.Options.Check.
// Elsewhere they cost nothing. FaultText and report are there in every build: some kernels report
// faults themselves.
//
// A check that fails ends the kernel with block, thread, what is wrong, and the line of the
// kernel's call: a function that checks takes a Site as its last argument, and the caller leaves it
// out.
#pragma once

#include <mscclgo/wait.cuh>

#if defined(MSCCLGO_EMU) && !defined(MSCCLGO_CHECK)
#define MSCCLGO_CHECK
#endif

namespace mscclgo {

// Site is the line of a call. A function with such an argument gives it to what it calls, so
// that a failed check has the line of the outermost call. Functions of users may do so too:
//
//   __device__ void sendRow(const MemoryChannelHandle& channel, uint64_t row, Site site = Site::here()) {
//     channel.put(row * kRow, row * kRow, kRow, threadIdx.x, blockDim.x, site);
//   }
struct Site {
#if defined(MSCCLGO_CHECK)
  const char* file;
  uint32_t line;

  // here, as a defaulted argument, returns the line of the function's call.
  MSCCLGO_DEVICE static Site here(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
#else
  MSCCLGO_DEVICE static Site here() { return {}; }
#endif
};

namespace detail {

// FaultText appends words and numbers to a text of kFaultBytes, which stays terminated.
class FaultText {
 public:
  MSCCLGO_DEVICE explicit FaultText(char* text) : at_(text), end_(text + kFaultBytes - 1) { *at_ = 0; }

  // Not inlined: the compiler would unroll the loop over every text.
  __device__ __noinline__ void add(const char* words) {
    while (*words != 0) add(*words++);
  }
  __device__ __noinline__ void add(uint64_t number) {
    uint64_t unit = 1;
    while (number / unit >= 10) unit *= 10;
    for (; unit > 0; unit /= 10) add(char('0' + number / unit % 10));
  }
  MSCCLGO_DEVICE void add(uint32_t number) { add(uint64_t(number)); }
  MSCCLGO_DEVICE void add(const dim3& d) {
    add("("), add(uint64_t(d.x)), add(","), add(uint64_t(d.y)), add(","), add(uint64_t(d.z)), add(")");
  }
#if defined(MSCCLGO_CHECK)
  // A text that is too long makes room for it. Of a path it takes the file's name, at most its last 64 bytes.
  __device__ __noinline__ void add(Site site) {
    const char *end = site.file, *name = site.file;
    for (; *end != 0; ++end)
      if (*site.file == '/' && *end == '/') name = end + 1;
    if (end - name > 64) name = end - 64;
    const int64_t room = end - name + 16;  // with 10 digits
    if (end_ - at_ < room) at_ = end_ - room;
    add("; at "), add(name), add(":"), add(site.line);
  }
#endif

 private:
  MSCCLGO_DEVICE void add(char c) {
    if (at_ == end_) return;
    *at_++ = c;
    *at_ = 0;
  }

  char* at_;
  char* end_;
};

// report gives the host a text: the group's error. peer is the rank that it concerns, or kNoPeer.
// One thread of a group calls it, once; with checks, the one that claimFault has chosen.
template <class... Parts>
inline __device__ __noinline__ void report(GroupStatus* status, uint32_t peer, Parts... parts) {
  FaultText text(status->fault);
  text.add("block "), text.add(dim3(blockIdx.x, blockIdx.y, blockIdx.z));
  text.add(", thread "), text.add(dim3(threadIdx.x, threadIdx.y, threadIdx.z)), text.add(": ");
  (text.add(parts), ...);
  status->faultPeer = peer;
  fence<Scope::System, Order::Release>();
  store<Scope::System, Order::Relaxed>(&status->faulted, kFaultTold);
  fence<Scope::System, Order::Release>();  // it is out before the kernel ends
}

}  // namespace detail
}  // namespace mscclgo

#if defined(MSCCLGO_CHECK)

namespace mscclgo {
namespace detail {

// claimFault reports, to one thread, that it may write the fault's text.
inline __device__ __noinline__ bool claimFault(GroupStatus* status) {
#if defined(MSCCLGO_EMU)
  uint32_t none = 0;
  return __atomic_compare_exchange_n(&status->faulted, &none, 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
#else
  // In device memory, since not every bus lets a GPU do read-modify-writes on host memory.
  static unsigned int claimed;
  (void)status;
  return atomicExch(&claimed, 1) == 0;
#endif
}

// waitFailed reports whether the group has failed, or a wait of this rank's kernels has timed out:
// threads may end at a failed wait, without the others of their block.
MSCCLGO_DEVICE bool waitFailed(const GroupStatus* status) {
  return status != nullptr && (load<Scope::System, Order::Relaxed>(&status->aborted) != 0 ||
                               load<Scope::System, Order::Relaxed>(&status->firstFailed) != 0);
}

#if defined(MSCCLGO_EMU)
// failWith ends the kernel with a text.
template <class... Parts>
inline void failWith(Parts... parts) {
  char text[kFaultBytes];
  FaultText all(text);
  (all.add(parts), ...);
  emu::fail(text, nullptr);
}
#endif

// fault ends the kernel. It writes what was wrong, words and numbers in turn, with block, thread
// and line to the group's status, for the host. peer is the rank that it concerns, or kNoPeer. Any
// thread may call it. It does not return.
template <class... Parts>
inline __device__ __noinline__ void fault(Watch watch, uint32_t peer, Site site, Parts... parts) {
  GroupStatus* status = watch.status;
  if (status != nullptr && claimFault(status)) report(status, peer, parts..., site);
  // The thread that writes the text must not be ended by another thread's failure. The wait is
  // bounded, as a launch of another module may have claimed another group's status.
  const uint64_t start = nanoseconds();
  while (status != nullptr && load<Scope::System, Order::Relaxed>(&status->faulted) != kFaultTold &&
         nanoseconds() - start < 100000000) {
  }
#if defined(MSCCLGO_EMU)
  failWith(parts..., site);
#else
  __trap();
#endif
}

}  // namespace detail
}  // namespace mscclgo

#endif

namespace mscclgo {
namespace detail {

// reportOnce is report for kernels without checks too. Any thread may call it: only the first call
// with the same word does anything, and none does after another fault. The cause may be a kernel
// that ended early at a failed wait, on any rank; so it first gives the host the time to report
// that. The word is 0 at first, in memory of this device that no other group's kernels use.
template <class... Parts>
inline __device__ __noinline__ void reportOnce(uint64_t* reported, GroupStatus* status, uint32_t peer,
                                               Parts... parts) {
  if (fetchAdd<Scope::Device, Order::Relaxed>(reported, uint64_t(1)) != 0) return;
  constexpr uint64_t kPatience = 150000000;  // nanoseconds: ranks take 100 ms to compare what they wait for
  for (const uint64_t start = nanoseconds(); nanoseconds() - start < kPatience;)
    if (load<Scope::System, Order::Relaxed>(&status->aborted) != 0) return;
  if (load<Scope::System, Order::Relaxed>(&status->faulted) != 0) return;
#if defined(MSCCLGO_CHECK)
  if (!claimFault(status)) return;
#endif
  report(status, peer, parts...);
}

}  // namespace detail
}  // namespace mscclgo

namespace mscclgo {
namespace detail {

// checkTogether, for the race finder, ends the kernel if the lanes of a warp make a call at
// different lines. All of them make it.
MSCCLGO_DEVICE void checkTogether(const char* function, Site site) {
#if defined(MSCCLGO_EMU_RACE)
  const uint32_t first = __shfl_sync(0xffffffffu, site.line, 0);
  if (site.line != first)
    failWith("lanes of a warp call ", function, " at lines ", first, " and ", site.line,
             ", and all have to call it together", site);
#else
  (void)function, (void)site;
#endif
}

}  // namespace detail
}  // namespace mscclgo
