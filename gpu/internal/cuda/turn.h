// Turns at work that one thread at a time should do.
#ifndef MSCCLGO_CUDA_TURN_H
#define MSCCLGO_CUDA_TURN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// cuda_turn is ready to use when it is zero.
typedef struct {
  int64_t since;  // when the current turn began, in nanoseconds, or 0 if there is none
} cuda_turn;

// TURN_PATIENCE is how long other threads wait for the end of a turn, in nanoseconds. The
// system may stop a thread in its turn for some milliseconds, during which nobody else
// may go ahead.
enum { TURN_PATIENCE = 50 * 1000 * 1000 };

static inline int64_t turn_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * (int64_t)1000000000 + t.tv_nsec + 1;
}

// turn_take waits for a turn and takes it. It returns false, without a turn, if another
// thread does not end its turn in time: it may be waiting for what the caller is about
// to do.
//
// turn_take acquires and turn_end releases, as with a lock, so a turn happens after the
// one before it. A thread without a turn has no such order. It needs none, since the
// driver has locks of its own.
static inline bool turn_take(cuda_turn* turn) {
  for (;;) {
    int64_t since = 0, now = turn_now();
    if (__atomic_compare_exchange_n(&turn->since, &since, now, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return true;
    if (now - since > TURN_PATIENCE) return false;
    sched_yield();
  }
}

// turn_end ends a turn if one was taken.
static inline void turn_end(cuda_turn* turn, bool taken) {
  if (taken) __atomic_store_n(&turn->since, 0, __ATOMIC_RELEASE);
}

#endif
