// The threads that make a call together, as a template argument of device functions: a block or a
// warp.
#pragma once

#include <mscclgo/check.cuh>

namespace mscclgo {

// BlockThreads are all threads of a block. All of them make each call.
struct BlockThreads {
  // thread returns the number of the calling thread among them, and threads how many they are.
  MSCCLGO_DEVICE static uint32_t thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  MSCCLGO_DEVICE static uint32_t threads() { return blockDim.x * blockDim.y * blockDim.z; }

  // sync is a barrier: what one of them did or observed before it is visible to all after it.
  MSCCLGO_DEVICE static void sync() { __syncthreads(); }

  // all reports to each whether ok is true in all of them. It is a barrier, as sync() is.
  MSCCLGO_DEVICE static bool all(bool ok) { return blockAll(ok); }

  // check ends the kernel if the block does not consist of such threads (check.cuh). what is the
  // call.
  MSCCLGO_DEVICE static void check(const Watch&, const char*, Site) {}
};

// WarpThreads are the 32 threads of a warp, for blocks of whole warps. All of them make each call,
// and other warps of the block do not join it. It has the functions of BlockThreads.
struct WarpThreads {
  MSCCLGO_DEVICE static uint32_t thread() { return BlockThreads::thread() % 32; }
  MSCCLGO_DEVICE static uint32_t threads() { return 32; }
  MSCCLGO_DEVICE static void sync() { __syncwarp(); }
  MSCCLGO_DEVICE static bool all(bool ok) {
    bool result = __all_sync(0xffffffffu, ok) != 0;
    __syncwarp();  // a vote orders no memory
    return result;
  }
  MSCCLGO_DEVICE static void check(const Watch& watch, const char* what, Site site) {
#if defined(MSCCLGO_CHECK)
    if (BlockThreads::threads() % 32 != 0)
      detail::fault(watch, kNoPeer, site, what, " by warps in blocks of ", BlockThreads::threads(),
                    " threads: they must be whole warps");
#else
    (void)watch, (void)what, (void)site;
#endif
  }
};

namespace detail {

// agree returns the result of thread 0, the leader, to all of the threads. They call it together,
// and the others pass Done.
template <class Threads>
MSCCLGO_DEVICE WaitResult agree(WaitResult leaders) {
  if (Threads::all(leaders == WaitResult::Done)) return WaitResult::Done;
  return Threads::all(leaders != WaitResult::Aborted) ? WaitResult::TimedOut : WaitResult::Aborted;
}

}  // namespace detail
}  // namespace mscclgo
