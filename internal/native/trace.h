// A ring of events for a timeline: the TraceRing and TraceEvent of <mscclgo/trace.cuh>.
#ifndef MSCCLGO_NATIVE_TRACE_H
#define MSCCLGO_NATIVE_TRACE_H

#include <stdint.h>
#include <time.h>

// The kinds of events. What the fields of an event mean is in trace.go.
enum {
  NATIVE_TRACE_SIGNAL = 1,
  NATIVE_TRACE_WAIT,
  NATIVE_TRACE_PORT_SIGNAL,
  NATIVE_TRACE_PORT_WAIT,
  NATIVE_TRACE_PUT,
  NATIVE_TRACE_GET,
  NATIVE_TRACE_PUT_PACKETS,
  NATIVE_TRACE_WAIT_PACKETS,
  NATIVE_TRACE_PUSH,
  NATIVE_TRACE_AWAIT_FLUSH,
  NATIVE_TRACE_AWAIT_TRIGGER,
  NATIVE_TRACE_BARRIER,
  NATIVE_TRACE_ROUND_SIGNAL,
  NATIVE_TRACE_ROUND_WAIT,
  NATIVE_TRACE_PACKETS,
  NATIVE_TRACE_LAUNCH_BEGIN = 64,
  NATIVE_TRACE_LAUNCH_END,
  NATIVE_TRACE_CLOCK,
  NATIVE_TRACE_SERVE = 128,
  NATIVE_TRACE_HOST_SIGNAL,
  NATIVE_TRACE_WRITE,
  NATIVE_TRACE_ATOMIC,
  NATIVE_TRACE_FLUSH,
  NATIVE_TRACE_READ,
};

typedef struct {
  uint64_t number;      // 1 + how many of the ring were before, or 0 where there is none
  uint64_t what;        // kind | note << 8 | block << 32
  uint64_t start, end;  // nanoseconds
  uint64_t where;       // channel << 32 | peer
  uint64_t value, bytes, extra;
} native_event;

typedef struct {
  native_event* events;
  uint64_t* count;  // events so far
  uint64_t size;    // of events, a power of two, or 0
  uint64_t reserved;
} native_trace;

// native_trace_now returns the time of the host's clock (CLOCK_MONOTONIC), nanoseconds.
static inline uint64_t native_trace_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// native_trace_add adds an event, in place of the oldest if the ring is full. It sets the
// number. Any thread may call it.
static inline void native_trace_add(const native_trace* trace, const native_event* e) {
  uint64_t at = __atomic_fetch_add(trace->count, 1, __ATOMIC_RELAXED);
  native_event* slot = &trace->events[at & (trace->size - 1)];
  __atomic_store_n(&slot->number, 0, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  slot->what = e->what;
  slot->start = e->start;
  slot->end = e->end;
  slot->where = e->where;
  slot->value = e->value;
  slot->bytes = e->bytes;
  slot->extra = e->extra;
  __atomic_store_n(&slot->number, at + 1, __ATOMIC_RELEASE);
}

#endif
