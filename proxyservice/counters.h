// What a proxy counts: the counters of counters.go.
#ifndef MSCCLGO_PROXYSERVICE_COUNTERS_H
#define MSCCLGO_PROXYSERVICE_COUNTERS_H

#include <stdint.h>
#include <time.h>

enum { PROXY_FLUSH_BUCKETS = 22 };

typedef struct {
  uint64_t triggers[256];                     // by kind
  uint64_t bytes[8];                          // by the number of the transport's bit
  uint64_t flushes[PROXY_FLUSH_BUCKETS + 1];  // by their time: up to 1, 2, 4, ... microseconds
  uint64_t flushing;                          // nanoseconds of all flushes
  uint64_t idle;                              // nanoseconds
} proxy_counters;

// proxy_count adds to a counter that only this thread writes and any thread reads.
static inline void proxy_count(uint64_t* counter, uint64_t n) {
  __atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

// proxy_count_flushes counts n flushes that took that many nanoseconds each.
static inline void proxy_count_flushes(proxy_counters* counters, uint64_t n, int64_t took) {
  uint64_t microseconds = took > 0 ? (uint64_t)(took - 1) / 1000 : 0;
  unsigned bucket = microseconds ? 64 - (unsigned)__builtin_clzll(microseconds) : 0;
  proxy_count(&counters->flushes[bucket < PROXY_FLUSH_BUCKETS ? bucket : PROXY_FLUSH_BUCKETS], n);
  proxy_count(&counters->flushing, n * (uint64_t)took);
}

// proxy_now returns the nanoseconds since a fixed moment.
static inline int64_t proxy_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
