// Semaphores between kernels of two devices.
#pragma once

#include <mscclgo/wait.cuh>

namespace mscclgo {

// Device2DeviceSemaphoreHandle is one end of a pair: a signal() at one end ends a wait()
// at the other. One thread at a time uses each direction of an end. The counts never
// wrap around.
struct Device2DeviceSemaphoreHandle {
  uint64_t* inbound;      // signals that arrived; the peer writes it
  uint64_t* peerInbound;  // the peer's inbound, mapped here
  uint64_t* outbound;     // signals sent; this end only
  uint64_t* expected;     // signals waited for; this end only
  Watch watch;

  // signal adds one to the peer's count. One thread calls it. What this thread wrote and
  // observed before, in any memory, is visible to the peer after its wait() (release at
  // system scope). A __syncthreads() before it covers what the block wrote.
  MSCCLGO_DEVICE void signal() const { signalAs<Order::Release>(*outbound); }

  // relaxedSignal is signal() without the memory ordering, for peers that only need to know that
  // this point was reached.
  MSCCLGO_DEVICE void relaxedSignal() const { relaxedSignal(*outbound); }

  // relaxedSignal with the number of signals sent before, *outbound. A thread that reads it before
  // a fence does not wait for it after the fence.
  MSCCLGO_DEVICE void relaxedSignal(uint64_t before) const { signalAs<Order::Relaxed>(before); }

  // wait waits for one more signal and consumes it. One thread calls it. On Done, what the
  // peer wrote before its signal() is visible (acquire at system scope), and after a
  // __syncthreads() to the block. Otherwise nothing is consumed.
  MSCCLGO_DEVICE WaitResult wait() const { return waitFor<Order::Acquire>(); }

  // relaxedWait is wait() without the memory ordering.
  MSCCLGO_DEVICE WaitResult relaxedWait() const { return waitFor<Order::Relaxed>(); }

  // poll consumes one signal, as wait() does, if there is one, and reports whether it
  // did. It does not wait. One thread calls it.
  MSCCLGO_DEVICE bool poll() const {
    detail::Span span(watch.trace());
    uint64_t next = *expected + 1;
    if (load<Scope::System, Order::Acquire>(inbound MSCCLGO_AWAITED(next)) < next) return false;
    *expected = next;
    span.end(TraceKind::Wait, watch, uint32_t(WaitResult::Done), next);
    return true;
  }

 private:
  // signalAs is signal() with the order of its store, after so many signals.
  template <Order O>
  MSCCLGO_DEVICE void signalAs(uint64_t before) const {
    detail::Span span(watch.trace());
    uint64_t* word = peerInbound;  // first, as the compiler cannot move it across the next store
    uint64_t number = before + 1;
    *outbound = number;
    store<Scope::System, O>(word, number);
    span.end(TraceKind::Signal, watch, 0, number);
  }

  // waitFor is wait() with the order of its last load.
  template <Order O>
  MSCCLGO_DEVICE WaitResult waitFor() const {
    detail::Span span(watch.trace());
    uint64_t next = *expected + 1;
    WaitResult result = awaitAbove<O>(watch, inbound, *expected);
    if (result == WaitResult::Done) *expected = next;
    span.end(TraceKind::Wait, watch, uint32_t(result), next);
    return result;
  }
};

}  // namespace mscclgo
