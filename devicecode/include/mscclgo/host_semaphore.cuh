// The end of a semaphore that a host signals and kernels wait on.
#pragma once

#include <mscclgo/wait.cuh>

namespace mscclgo {

// Host2DeviceSemaphoreHandle is where signals of the peer's host arrive, after the earlier writes
// of its connection. One thread at a time waits. The counts never wrap around.
struct Host2DeviceSemaphoreHandle {
  uint64_t* inbound;   // 2 words: signals by the peer's host, and by its kernels directly
  uint64_t* expected;  // signals waited for; this end only
  Watch watch;

  // wait waits for one more signal and consumes it. One thread calls it. On Done, what the
  // peer put before its signal is visible (acquire at system scope), and after a
  // __syncthreads() to the block. Otherwise nothing is consumed.
  MSCCLGO_DEVICE WaitResult wait() const {
    return waitUnless([] { return false; });
  }

  // waitUnless is wait(), but ends as Aborted once never() returns true, as no signal will come. It
  // looks for a signal first.
  template <class Never>
  MSCCLGO_DEVICE WaitResult waitUnless(Never never) const {
    detail::Span span(watch.trace());
    uint64_t next = *expected + 1;
    bool none = false;
    WaitResult result = waitUntil(
        watch,
        [&] {
          if (arrived() >= next) return true;
          none = never();
          return none;
        },
        next);
    if (none) result = WaitResult::Aborted;
    if (result == WaitResult::Done) consume(next);
    end(span, result, next);
    return result;
  }

  // poll consumes one signal, as wait() does, if there is one, and reports whether it
  // did. It does not wait. One thread calls it.
  MSCCLGO_DEVICE bool poll() const {
    detail::Span span(watch.trace());
    uint64_t next = *expected + 1;
    if (arrived() < next) return false;
    consume(next);
    end(span, WaitResult::Done, next);
    return true;
  }

 private:
  // arrived returns the number of signals so far. It reads both words in one access, so a poll
  // costs one trip to memory. The fence in consume() makes that an acquire.
  MSCCLGO_DEVICE uint64_t arrived() const {
    uint64_t byHost, byKernels;
    loadRelaxed16(inbound, byHost, byKernels);
    return byHost + byKernels;
  }

  // consume acquires and stores how many signals have been waited for.
  MSCCLGO_DEVICE void consume(uint64_t next) const {
    fence<Scope::System, Order::Acquire>();
    *expected = next;
  }

  // end writes the end of a wait to the timeline, with the numbers of signals.
  MSCCLGO_DEVICE void end(const detail::Span& span, WaitResult result, uint64_t number) const {
#if defined(MSCCLGO_TRACE)
    uint64_t byHost, byKernels;
    loadRelaxed16(inbound, byHost, byKernels);
    span.end(TraceKind::PortWait, watch, uint32_t(result), number, byHost, byKernels);
#else
    (void)span, (void)result, (void)number;
#endif
  }
};

}  // namespace mscclgo
