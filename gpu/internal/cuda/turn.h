// Turns at what one thread at a time should do.
#ifndef MSCCLGO_CUDA_TURN_H
#define MSCCLGO_CUDA_TURN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// cuda_turn begins as zeros.
typedef struct {
  int64_t since;  // when the turn under way began, in nanoseconds, or 0
} cuda_turn;

// TURN_PATIENCE is for how long others let one have its turn, in nanoseconds.
enum { TURN_PATIENCE = 1000 * 1000 };

static inline int64_t turn_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * (int64_t)1000000000 + t.tv_nsec + 1;
}

// turn_take waits for a turn and takes it. It gives false, without one, where somebody
// has not ended theirs in time: they may wait for what the caller is about to do.
//
// Acquire here and release in turn_end, as of a lock: what was done in the turn before
// is done before what follows. Who goes without a turn has no such order, and needs
// none, as the driver has locks of its own.
static inline bool turn_take(cuda_turn* turn) {
  for (;;) {
    int64_t since = 0, now = turn_now();
    if (__atomic_compare_exchange_n(&turn->since, &since, now, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return true;
    if (now - since > TURN_PATIENCE) return false;
    sched_yield();
  }
}

// turn_end ends what turn_take gave.
static inline void turn_end(cuda_turn* turn, bool taken) {
  if (taken) __atomic_store_n(&turn->since, 0, __ATOMIC_RELEASE);
}

#endif
