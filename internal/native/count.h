// The number of signals that a semaphore has sent.
#ifndef MSCCLGO_NATIVE_COUNT_H
#define MSCCLGO_NATIVE_COUNT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  uint64_t sent;
  uint32_t claimed;  // 1 while somebody sends
} native_count;

// native_count_claim reports whether the caller alone may send, until
// native_count_release.
static inline bool native_count_claim(native_count* count) {
  return __atomic_exchange_n(&count->claimed, 1, __ATOMIC_ACQUIRE) == 0;
}

static inline void native_count_release(native_count* count) {
  __atomic_store_n(&count->claimed, 0, __ATOMIC_RELEASE);
}

#endif
