// Semaphores between kernels of two devices.
#pragma once

#include <mscclgo/wait.cuh>

namespace mscclgo {

// Device2DeviceSemaphoreHandle is one end of a pair: signal() here lets wait()
// there go on, and the other way round. One thread at a time uses each
// direction of an end; counts never wrap.
struct Device2DeviceSemaphoreHandle {
  uint64_t* inbound;      // signals that arrived; the peer writes it
  uint64_t* peerInbound;  // the peer's inbound, mapped here
  uint64_t* outbound;     // signals sent; this end only
  uint64_t* expected;     // signals waited for; this end only
  Watch watch;

  // signal counts one up at the peer. One thread. What this thread wrote and
  // observed before, to any memory, the peer's threads see after their wait()
  // (release at system scope): after a __syncthreads() that covers the block.
  MSCCLGO_DEVICE void signal() const { store<Scope::System, Order::Release>(peerInbound, ++*outbound); }

  // relaxedSignal is signal without the promise about other memory: for peers
  // that only need to know that this point was reached.
  MSCCLGO_DEVICE void relaxedSignal() const {
    store<Scope::System, Order::Relaxed>(peerInbound, ++*outbound);
  }

  // wait waits for one more signal. One thread. On Done, what the peer wrote
  // before its signal() is visible (acquire at system scope); a __syncthreads()
  // passes that on to the block. When the result is not Done, nothing was
  // consumed.
  MSCCLGO_DEVICE WaitResult wait() const { return waitFor<Order::Acquire>(); }

  // relaxedWait is wait without the promise about other memory.
  MSCCLGO_DEVICE WaitResult relaxedWait() const { return waitFor<Order::Relaxed>(); }

  // poll consumes one signal if one is there, like wait(), and does not wait.
  // One thread.
  MSCCLGO_DEVICE bool poll() const {
    uint64_t next = *expected + 1;
    if (load<Scope::System, Order::Acquire>(inbound) < next) return false;
    *expected = next;
    return true;
  }

 private:
  template <Order O>
  MSCCLGO_DEVICE WaitResult waitFor() const {
    uint64_t next = *expected + 1;
    WaitResult result = awaitAbove<O>(watch, inbound, *expected);
    if (result == WaitResult::Done) *expected = next;
    return result;
  }
};

}  // namespace mscclgo
