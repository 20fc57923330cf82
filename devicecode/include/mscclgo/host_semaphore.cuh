// The end of a semaphore that a host signals and kernels wait for.
#pragma once

#include <mscclgo/wait.cuh>

namespace mscclgo {

// Host2DeviceSemaphoreHandle is where signals of the peer's host arrive, in order
// behind what its connection wrote before. One thread at a time waits; counts
// never wrap.
struct Host2DeviceSemaphoreHandle {
  uint64_t* inbound;   // 2 words: signals by the peer's host, and straight from its kernels
  uint64_t* expected;  // signals waited for; this end only
  Watch watch;

  // wait waits for one more signal. One thread. On Done, what the peer put before
  // its signal is visible (acquire at system scope); a __syncthreads() passes that
  // on to the block. When the result is not Done, nothing was consumed.
  MSCCLGO_DEVICE WaitResult wait() const {
    uint64_t next = *expected + 1;
    WaitResult result = waitUntil(watch, [&] { return arrived() >= next; });
    if (result == WaitResult::Done) consume(next);
    return result;
  }

  // poll consumes one signal if one is there, like wait(), and does not wait. One
  // thread.
  MSCCLGO_DEVICE bool poll() const {
    uint64_t next = *expected + 1;
    if (arrived() < next) return false;
    consume(next);
    return true;
  }

 private:
  // arrived gives the signals so far. The words are read in one access, so that
  // polling costs one trip to memory; the fence of consume() makes it an acquire
  // of both.
  MSCCLGO_DEVICE uint64_t arrived() const {
    uint64_t byHost, byKernels;
    loadRelaxed16(inbound, byHost, byKernels);
    return byHost + byKernels;
  }

  MSCCLGO_DEVICE void consume(uint64_t next) const {
    fence<Scope::System, Order::Acquire>();
    *expected = next;
  }
};

}  // namespace mscclgo
