// A ring of triggers as the thread that serves it sees it; see <mscclgo/fifo.cuh>.
#ifndef MSCCLGO_NATIVE_RING_H
#define MSCCLGO_NATIVE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t* tail;           // pinned: triggers popped, for kernels; NULL once closed
  const uint64_t* entries;  // pinned: 4 words each
  const uint8_t* payloads;  // pinned: payload_stride bytes for each entry
  uint64_t size;            // entries, a power of two
  uint64_t payload;         // the most bytes that a thread sends with a trigger
  uint64_t payload_stride;
  uint64_t polled;  // triggers polled
  uint64_t popped;  // triggers popped; a copy of what kernels see
} native_ring;

// native_trigger is the fifo.Trigger of Go.
typedef struct {
  uint64_t a, b, c;
  uint64_t detail;  // 52 bits
  uint8_t kind;
} native_trigger;

enum { NATIVE_ENTRY_WORDS = 4 };

// native_trigger_decode returns the trigger of an entry's words, whose top bits are
// tags:
//
//   tag 63 | kind 55..62 | top bits of c 54, b 53, a 52 | detail 0..51
static inline native_trigger native_trigger_decode(const uint64_t words[NATIVE_ENTRY_WORDS]) {
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

static inline const uint64_t* native_ring_entry(const native_ring* ring, uint64_t position) {
  return ring->entries + (position & (ring->size - 1)) * NATIVE_ENTRY_WORDS;
}

// native_ring_tag returns the tag of a position's lap. Fresh memory has the tag of
// no lap.
static inline uint64_t native_ring_tag(const native_ring* ring, uint64_t position) {
  return position & ring->size ? 0 : (uint64_t)1 << 63;
}

// native_ring_peek finds the oldest trigger that was not polled, if it has arrived,
// and leaves it there. Each word has a tag, since the words arrive in any order.
static inline bool native_ring_peek(const native_ring* ring, native_trigger* trigger) {
  const uint64_t* entry = native_ring_entry(ring, ring->polled);
  uint64_t tag = native_ring_tag(ring, ring->polled);
  uint64_t words[NATIVE_ENTRY_WORDS], different = 0;
  for (int i = 0; i < NATIVE_ENTRY_WORDS; i++) {
    words[i] = __atomic_load_n(&entry[i], __ATOMIC_ACQUIRE);
    different |= words[i] ^ tag;
  }
  if (different >> 63) return false;
  *trigger = native_trigger_decode(words);
  return true;
}

// native_ring_pop frees the entry of the trigger that native_ring_peek found, when
// all polled before were popped, and stores for kernels that it was served.
static inline void native_ring_pop(native_ring* ring) {
  ring->popped = ++ring->polled;
  __atomic_store_n(ring->tail, ring->popped, __ATOMIC_RELEASE);
}

// native_ring_payload returns the c bytes that a thread sent with a trigger, which
// may hold anything, at a position, or NULL where there can be none. They begin b
// bytes behind the beginning of a 16-byte word, as they did in the device's memory.
static inline const uint8_t* native_ring_payload(const native_ring* ring, uint64_t position,
                                                 const native_trigger* t) {
  if (t->b >= 16 || t->c == 0 || t->c > ring->payload) return NULL;
  return ring->payloads + (position & (ring->size - 1)) * ring->payload_stride + t->b;
}

// native_ring_waiting returns how many triggers have arrived and were not popped.
// Any thread may call it.
static inline uint64_t native_ring_waiting(const native_ring* ring) {
  uint64_t tail = __atomic_load_n(ring->tail, __ATOMIC_ACQUIRE), n = 0;
  while (n < ring->size && !((__atomic_load_n(native_ring_entry(ring, tail + n), __ATOMIC_ACQUIRE) ^
                              native_ring_tag(ring, tail + n)) >>
                             63))
    n++;
  return n;
}

#endif
