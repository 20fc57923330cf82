// What the ranks of a group share: a window of each rank's memory, barriers between their blocks,
// and epochs, the numbers of calls.
#pragma once

#include <mscclgo/check.cuh>
#include <mscclgo/wait.cuh>

namespace mscclgo {

namespace detail {

// addressBehind returns the address of a rank from kRanksByValue on. No kernel writes these
// addresses (PTX: ld.global.nc), and the load cannot be merged with one of a parameter. It is
// volatile: the compiler may move another load out of a loop, and then load for ranks without an
// address.
MSCCLGO_DEVICE uint8_t* addressBehind(uint8_t* const* more, uint32_t rank) {
  uint8_t* const* at = more + (rank - kRanksByValue);
#if defined(MSCCLGO_EMU)
  return *at;
#else
  uint8_t* address;
  asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(address) : "l"(__cvta_generic_to_global(at)));
  return address;
#endif
}

// unknown returns n, and hides from the compiler that it is n. So n is computed before, and what
// depends on n after. The compiler would otherwise defer a division until its result is used, and
// compute a number for each rank before a loop, in a register each.
MSCCLGO_DEVICE uint32_t unknown(uint32_t n) {
#if !defined(MSCCLGO_EMU)
  asm volatile("" : "+r"(n));
#endif
  return n;
}

}  // namespace detail

// PeerMemory is one buffer of each rank, mapped here. It is passed by value, like GroupHandle.
// Barriers and signals say when a peer's buffer may be accessed.
//
// Handles fill whole lines of the constant bank, 64 bytes each, so that a kernel's parameters are
// on as few lines as possible: otherwise a reduce-scatter took 1 us longer on an H200.
struct PeerMemory {
  uint8_t* ranks[kRanksByValue];  // of the first ranks
  uint8_t* const* more;           // of the others, in device memory
  uint64_t offset;                // bytes to add to the others' addresses
  uint64_t stride;                // and bytes for each rank before
  uint8_t* own;                   // of ownRank
  uint64_t ownRank;               // one of the others, not in `more`; or 0
  uint64_t size;                  // ranks, or 0 if unknown
  GroupStatus* status;            // of the group, or null
  uint64_t unused;

  // of returns a rank's buffer as an array of T. Any thread may call it. For the first
  // kRanksByValue ranks this costs no trip to memory. With checks, a rank that the group does not
  // have ends the kernel.
  template <class T>
  MSCCLGO_DEVICE auto of(uint32_t rank, Site site = Site::here()) const -> T* {
#if defined(MSCCLGO_CHECK)
    if (size != 0 && rank >= size)
      detail::fault(Watch{status, 0, 0, 0}, kNoPeer, site, "of(", rank, ") of a PeerMemory of ", size,
                    " ranks");
#else
    (void)site;
#endif
    if (!kManyRanks || rank < kRanksByValue) return reinterpret_cast<T*>(ranks[rank]);
    if (rank == ownRank) return reinterpret_cast<T*>(own);
    return reinterpret_cast<T*>(detail::addressBehind(more, rank) + offset + rank * stride);
  }
};

// GroupHandle is one rank's view of a group. It is passed to a kernel by value: its pointers are
// then in the constant bank and cost no trip to memory, except the windows of the ranks from
// kRanksByValue on. The host refuses to launch a grid of more than kMaxBlocks blocks with it.
//
// A window is a rank's memory, which all others map. It begins with the flags of the barriers, one
// for each block and sender, and the scratch follows.
struct GroupHandle {
  uint32_t rank;           // this rank
  uint32_t size;           // ranks in the group
  uint64_t scratchOffset;  // of the scratch in every window, bytes
  uint64_t scratchSize;    // bytes
  uint32_t* epochs;        // kMaxBlocks call numbers; this rank's blocks only
  uint32_t* arrivals;      // kMaxBlocks barrier counts; this rank's blocks only
  Watch watch;
  uint8_t* windows[kRanksByValue];  // the first ranks' windows, mapped here
  uint8_t* const* more;             // the others' windows, in device memory
  uint64_t unused[7];

  // window returns a rank's window. Any thread may call it.
  MSCCLGO_DEVICE uint8_t* window(uint32_t of, Site site = Site::here()) const {
    checkRank(of, site);
    return !kManyRanks || of < kRanksByValue ? windows[of] : detail::addressBehind(more, of);
  }

  // scratch returns a rank's scratch. All kernels with this handle share it; the runners of package
  // collective have another. Its user must know that the kernel before has finished with it, and
  // that nextEpoch() clears it once in 2^32 - 2 calls. It is for packets, whose flag is the epoch.
  // A plain word with the value of a flag, left where a packet comes later, would pass for that
  // packet. So kernels keep other data in a part without packets, or clear it at their end. Any
  // thread may call it.
  MSCCLGO_DEVICE uint8_t* scratch(uint32_t of, Site site = Site::here()) const {
    return window(of, site) + scratchOffset;
  }

  // epoch returns the number of this call, at least 1: the same in all blocks, and on all ranks if
  // they make the same calls. Any thread may call it before nextEpoch(). Epochs and barriers are
  // for one-dimensional grids of at most kMaxBlocks blocks.
  MSCCLGO_DEVICE uint32_t epoch(Site site = Site::here()) const {
    checkGrid("epoch", site);
    return epochs[blockIdx.x] + 1;
  }

  // nextEpoch ends the call. Every thread of every block of a one-dimensional grid calls it once,
  // last. The blocks of the grid also count for blocks that were not launched, so calls may have
  // different numbers of blocks.
  MSCCLGO_DEVICE void nextEpoch(Site site = Site::here()) const { nextEpoch(epoch(site), site); }

  // nextEpoch with the call's epoch() does not load that again.
  MSCCLGO_DEVICE void nextEpoch(uint32_t now, Site site = Site::here()) const {
#if defined(MSCCLGO_EMU)
    ++emu::self()->calls;
#endif
    if (now == 0xffffffffu) return restart(site);
    gather("nextEpoch", site);
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kMaxBlocks; b += blockDim.x * gridDim.x)
      epochs[b] = now;
  }

  // barrier waits until the blocks of this number on all ranks have called it. Every thread of the
  // block calls it and gets the same result. Writes by any thread of these blocks before it are
  // visible to all of them after it (release and acquire at system scope).
  MSCCLGO_DEVICE WaitResult barrier(Site site = Site::here()) const {
    gather("barrier", site);
    return meet<Order::Release, Order::Acquire>(arrived(site), site);
  }

  // relaxedBarrier is barrier() without the memory ordering: for the start of a call, to
  // learn that the peers have begun theirs.
  MSCCLGO_DEVICE WaitResult relaxedBarrier(Site site = Site::here()) const {
    gather("barrier", site);
    return relaxedBarrier(arrived(site), site);
  }

  // relaxedBarrier with the result of arrived() does not load that, and does not wait for the other
  // threads of the block before it signals the peers. It is for a kernel's first barrier.
  MSCCLGO_DEVICE WaitResult relaxedBarrier(uint32_t arrived, Site site = Site::here()) const {
    return meet<Order::Relaxed, Order::Relaxed>(arrived, site);
  }

  // arrived returns how many barriers this block has had. Any thread may call it before the
  // kernel's first barrier.
  MSCCLGO_DEVICE uint32_t arrived(Site site = Site::here()) const {
    checkGrid("barrier", site);
    return arrivals[blockIdx.x];
  }

 private:
  friend class Rounds;

  // restart is nextEpoch() of the last call before the numbers repeat. An old packet would pass for
  // a new one, so all ranks clear their scratch. Block 0 does it once the others of its grid have
  // ended, and it ends when all ranks have, so that no packet of the next call comes before. That
  // call has number 2: fresh scratch holds 0, and odd and even alternate.
  MSCCLGO_DEVICE void restart(Site site) const {
    constexpr uint32_t kFirst = 1;
    __syncthreads();
    if (blockIdx.x > 0) {
      if (threadIdx.x == 0) store<Scope::Device, Order::Release>(&epochs[blockIdx.x], kFirst);
      return;
    }
    bool ok = true;
    for (uint32_t b = threadIdx.x + 1; b < gridDim.x && ok; b += blockDim.x)
      ok = waitUntil(watch, [&] { return load<Scope::Device, Order::Relaxed>(&epochs[b]) == kFirst; }) ==
           WaitResult::Done;
    fence<Scope::Device, Order::Acquire>();
    if (!blockAll(ok)) return;
    for (uint64_t i = threadIdx.x; i < scratchSize / 8; i += blockDim.x)
      reinterpret_cast<uint64_t*>(scratch(rank, site))[i] = 0;
    if (barrier(site) != WaitResult::Done) return;
    if (threadIdx.x == 0) epochs[0] = kFirst;
    for (uint32_t b = gridDim.x + threadIdx.x; b < kMaxBlocks; b += blockDim.x) epochs[b] = kFirst;
  }

  // flag returns where rank `from` writes for rank `to` how often its block has arrived.
  MSCCLGO_DEVICE uint32_t* flag(uint32_t block, uint32_t to, uint32_t from, Site site) const {
    return reinterpret_cast<uint32_t*>(window(to, site)) + block * size + from;
  }

  // meet is a barrier with the orders of its signals and waits, after so many others.
  template <Order Signal, Order Wait>
  MSCCLGO_DEVICE WaitResult meet(uint32_t arrived, Site site) const {
    detail::Span span(watch.trace());
    uint32_t arrival = arrived + 1;
    WaitResult result = WaitResult::Done;
    for (uint32_t peer = threadIdx.x; peer < size; peer += blockDim.x) {
      if (peer == rank) continue;
      store<Scope::System, Signal>(flag(blockIdx.x, peer, rank, site), arrival);
      Watch w = watch;
      w.peer = peer;
      const uint32_t* theirs = flag(blockIdx.x, rank, peer, site);
      // A signed difference, for wrap-around.
      WaitResult r = waitUntil(w, [&] {
        return int32_t(load<Scope::System, Order::Relaxed>(theirs MSCCLGO_AWAITED(arrival)) - arrival) >= 0;
      });
      if constexpr (Wait == Order::Acquire) fence<Scope::System, Wait>();
      if (r != WaitResult::Done) result = r;
    }
    bool done = blockAll(result == WaitResult::Done);
    if (threadIdx.x == 0)
      arrivals[blockIdx.x] = arrival;  // all threads have read it; the next call begins with a barrier
    WaitResult met = WaitResult::Done;
    if (!done) met = blockAll(result != WaitResult::Aborted) ? WaitResult::TimedOut : WaitResult::Aborted;
    if (threadIdx.x == 0) span.end(TraceKind::Barrier, watch, uint32_t(met), arrival);
    return met;
  }

  // gather is __syncthreads(). With checks, it ends the kernel if not all threads of the block have
  // called it: others have ended, or have called another __syncthreads().
  MSCCLGO_DEVICE void gather(const char* what, Site site) const {
#if defined(MSCCLGO_CHECK)
    const uint32_t all = blockDim.x * blockDim.y * blockDim.z, called = uint32_t(__syncthreads_count(1));
    if (called == all || detail::waitFailed(watch.status)) return;  // the others may have ended there
    detail::fault(watch, kNoPeer, site, "a ", what, " of a group by ", called, " of ", all,
                  " threads: every thread of the block calls it");
#else
    (void)what, (void)site;
    __syncthreads();
#endif
  }

  // checkRank ends the kernel if the group has no such rank, or the kernel was compiled for fewer
  // ranks (check.cuh).
  MSCCLGO_DEVICE void checkRank(uint32_t of, Site site) const {
#if defined(MSCCLGO_CHECK)
    if (of >= size)
      detail::fault(watch, kNoPeer, site, "the window of rank ", of, " of a group of ", size, " ranks");
    if (kManyRanks || of < kRanksByValue) return;
    detail::fault(watch, of, site, "the window of rank ", of,
                  " in a kernel compiled with MSCCLGO_FEW_RANKS, for ", kRanksByValue, " ranks");
#else
    (void)of, (void)site;
#endif
  }

  // checkGrid and checkBlock end the kernel if a block has no epoch, arrivals and flags of its own
  // (check.cuh).
  MSCCLGO_DEVICE void checkGrid(const char* what, Site site) const {
#if defined(MSCCLGO_CHECK)
    if (gridDim.x <= kMaxBlocks && gridDim.y == 1 && gridDim.z == 1) return;
    detail::fault(watch, kNoPeer, site, what, " of a group in a grid of ", gridDim,
                  " blocks: it is for one-dimensional grids of at most ", kMaxBlocks);
#else
    (void)what, (void)site;
#endif
  }
  MSCCLGO_DEVICE void checkBlock(uint32_t block, Site site) const {
#if defined(MSCCLGO_CHECK)
    if (block < kMaxBlocks) return;
    detail::fault(watch, kNoPeer, site, "Rounds of block ", block, " of a group, which has ", kMaxBlocks);
#else
    (void)block, (void)site;
#endif
  }
};

// Rounds count how far the blocks of one number are on all ranks. Each round is a barrier in two
// parts, a signal and a wait: a block can work in between, or other blocks can wait. All threads of
// a block make one for a block number. The blocks of that number use no barrier() of the group in
// this kernel.
class Rounds {
 public:
  // The rounds of a block number. Every thread of the block makes one.
  MSCCLGO_DEVICE Rounds(const GroupHandle& group, uint32_t block, Site site = Site::here())
      : group_(group), block_(block) {
    group.checkBlock(block, site);
    start_ = round_ = group.arrivals[block];
  }

  // signal ends a number of rounds at once. Only the block of the number calls it, with all
  // threads. What it wrote before is visible to blocks that wait for the rounds (release at system
  // scope).
  MSCCLGO_DEVICE void signal(uint32_t rounds = 1, Site site = Site::here()) {
    detail::Span span(group_.watch.trace());
    group_.gather("signal of Rounds", site);
    round_ += rounds;
    for (uint32_t peer = threadIdx.x; peer < group_.size; peer += blockDim.x) {
      if (peer != group_.rank)
        store<Scope::System, Order::Release>(group_.flag(block_, peer, group_.rank, site), round_);
    }
    if (threadIdx.x == 0) span.end(TraceKind::RoundSignal, group_.watch, 0, round_, rounds, block_);
  }

  // wait waits until the blocks of the number on all other ranks have signalled that many rounds in
  // this call (acquire at system scope). Any block of this rank may call it, with all threads. They
  // get the same result: false if a wait failed.
  MSCCLGO_DEVICE bool wait(uint32_t rounds, Site site = Site::here()) const {
    detail::Span span(group_.watch.trace());
    bool ok = true;
    for (uint32_t peer = threadIdx.x; peer < group_.size && ok; peer += blockDim.x) {
      if (peer != group_.rank) ok = heard(peer, rounds, site);
    }
    return ended(span, kNoPeer, rounds, blockAll(ok));
  }

  // waitFor is wait() for the block of one other rank.
  MSCCLGO_DEVICE bool waitFor(uint32_t peer, uint32_t rounds, Site site = Site::here()) const {
    detail::Span span(group_.watch.trace());
    return ended(span, peer, rounds, blockAll(threadIdx.x != 0 || heard(peer, rounds, site)));
  }

  // end records how many rounds there were. One block calls it, last, when no block of this rank
  // makes Rounds of the number any more.
  MSCCLGO_DEVICE void end(uint32_t rounds, Site site = Site::here()) const {
    group_.gather("end of Rounds", site);
    if (threadIdx.x == 0) group_.arrivals[block_] = start_ + rounds;
  }

 private:
  // ended writes the end of a wait to the timeline, and returns ok.
  MSCCLGO_DEVICE bool ended(const detail::Span& span, uint32_t peer, uint32_t rounds, bool ok) const {
#if defined(MSCCLGO_TRACE)
    Watch watch = group_.watch;
    watch.peer = peer;
    WaitResult result = ok ? WaitResult::Done : WaitResult::Aborted;
    if (threadIdx.x == 0)
      span.end(TraceKind::RoundWait, watch, uint32_t(result), uint32_t(start_ + rounds), 0, block_);
#else
    (void)span, (void)peer, (void)rounds;
#endif
    return ok;
  }

  // heard is waitFor() by one thread.
  MSCCLGO_DEVICE bool heard(uint32_t peer, uint32_t rounds, Site site) const {
    Watch watch = group_.watch;
    watch.peer = peer;
    const uint32_t* theirs = group_.flag(block_, group_.rank, peer, site);
    // A signed difference, for wrap-around.
    WaitResult result = waitUntil(watch, [&] {
      return int32_t(load<Scope::System, Order::Relaxed>(theirs MSCCLGO_AWAITED(start_ + rounds)) -
                     (start_ + rounds)) >= 0;
    });
    fence<Scope::System, Order::Acquire>();
    return result == WaitResult::Done;
  }

  const GroupHandle& group_;
  uint32_t block_, start_, round_;
};

}  // namespace mscclgo
