// Events of kernels for a timeline: puts, signals, waits. They are written where MSCCLGO_TRACE is
// defined, by devicecode.Options.Trace or the environment variable of this name. Elsewhere they
// cost nothing.
#pragma once

#include <mscclgo/atomic.cuh>

namespace mscclgo {

// TraceKind is the kind of an event.
enum class TraceKind : uint32_t {
  Signal = 1,
  Wait,
  PortSignal,
  PortWait,
  Put,
  Get,
  PutPackets,
  WaitPackets,
  Push,
  AwaitFlush,
  AwaitTrigger,
  Barrier,
  RoundSignal,
  RoundWait,
  Packets,
};

// TraceEvent is what a thread did in a span of time. The meaning of value, bytes and extra depends
// on the kind.
struct TraceEvent {
  uint64_t number;      // 1 + the number of events before
  uint64_t what;        // kind | note << 8 | block << 32
  uint64_t start, end;  // by nanoseconds()
  uint64_t where;       // channel << 32 | peer
  uint64_t value, bytes, extra;
};

// TraceRing is where the kernels of a rank write events. When it is full, the oldest are
// overwritten.
struct TraceRing {
  TraceEvent* events;  // pinned, or null where there is no timeline; aligned to 16 bytes
  uint64_t* count;     // events so far, in device memory
  uint64_t size;       // of events, a power of two
  uint64_t reserved;
};

namespace detail {

#if defined(MSCCLGO_TRACE)

// writeEvent adds an event to a ring, unless that is null. The stores need no order: the host reads
// them after the kernel has ended. It is not inlined, because of its registers.
inline __device__ __noinline__ void writeEvent(const TraceRing* ring, uint64_t what, uint64_t where,
                                               uint64_t start, uint64_t value, uint64_t bytes,
                                               uint64_t extra) {
  if (ring == nullptr || ring->events == nullptr) return;
  uint64_t end = nanoseconds();
  uint64_t at = fetchAdd<Scope::Device, Order::Relaxed>(ring->count, 1);
  TraceEvent* event = &ring->events[at & (ring->size - 1)];
  storeRelaxed16(&event->start, start, end);
  storeRelaxed16(&event->where, where, value);
  storeRelaxed16(&event->bytes, bytes, extra);
  storeRelaxed16(&event->number, at + 1, what | uint64_t(blockIdx.x) << 32);
}

// Span is the time from its construction until end(), of one thread.
class Span {
 public:
  MSCCLGO_DEVICE explicit Span(const TraceRing* ring) : ring_(ring), start_(nanoseconds()) {}

  // end writes the event. Watch has the channel and the peer.
  template <class Watch>
  MSCCLGO_DEVICE void end(TraceKind kind, const Watch& watch, uint32_t note, uint64_t value,
                          uint64_t bytes = 0, uint64_t extra = 0) const {
    writeEvent(ring_, uint64_t(kind) | uint64_t(note & 0xff) << 8, uint64_t(watch.channel) << 32 | watch.peer,
               start_, value, bytes, extra);
  }

 private:
  const TraceRing* ring_;
  uint64_t start_;
};

#else

class Span {
 public:
  MSCCLGO_DEVICE explicit Span(const TraceRing*) {}

  template <class Watch>
  MSCCLGO_DEVICE void end(TraceKind, const Watch&, uint32_t, uint64_t, uint64_t = 0, uint64_t = 0) const {}
};

#endif

}  // namespace detail
}  // namespace mscclgo
