// A ring of triggers as who serves it sees it; see <mscclgo/fifo.cuh>.
#ifndef MSCCLGO_NATIVE_RING_H
#define MSCCLGO_NATIVE_RING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  uint64_t* tail;           // pinned: triggers popped, for kernels
  const uint64_t* entries;  // pinned: 4 words each
  uint64_t size;            // entries, a power of two
  uint64_t polled;          // triggers polled
  uint64_t popped;          // triggers popped; a copy of what kernels see
} native_ring;

typedef struct {
  uint64_t a, b, c;
  uint64_t detail;  // 52 bits
  uint8_t kind;
} native_trigger;

// native_trigger_decode gives the trigger of an entry's words, whose top bits are
// tags:
//
//   tag 63 | kind 55..62 | top bits of c 54, b 53, a 52 | detail 0..51
static inline native_trigger native_trigger_decode(const uint64_t words[4]) {
  const uint64_t top = (uint64_t)1 << 63;
  uint64_t last = words[3];
  return (native_trigger){
      .a = (words[0] & ~top) | last >> 52 << 63,
      .b = (words[1] & ~top) | last >> 53 << 63,
      .c = (words[2] & ~top) | last >> 54 << 63,
      .detail = last & (((uint64_t)1 << 52) - 1),
      .kind = (uint8_t)(last >> 55),
  };
}

// native_ring_peek gives the oldest trigger that was not polled, if it has
// arrived, and leaves it there.
static inline bool native_ring_peek(const native_ring* ring, native_trigger* trigger) {
  const uint64_t* entry = ring->entries + (ring->polled & (ring->size - 1)) * 4;
  uint64_t lap = ring->polled & ring->size ? 0 : (uint64_t)1 << 63;
  uint64_t words[4], different = 0;
  for (int i = 0; i < 4; i++) {
    words[i] = __atomic_load_n(&entry[i], __ATOMIC_ACQUIRE);
    different |= words[i] ^ lap;
  }
  if (different >> 63) return false;
  *trigger = native_trigger_decode(words);
  return true;
}

// native_ring_pop frees the entry of the trigger that native_ring_peek gave, when
// all polled before were popped, and tells kernels that it was served.
static inline void native_ring_pop(native_ring* ring) {
  ring->popped = ++ring->polled;
  __atomic_store_n(ring->tail, ring->popped, __ATOMIC_RELEASE);
}

#endif
