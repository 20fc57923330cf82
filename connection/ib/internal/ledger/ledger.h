// Which requests of a send queue are posted and which are done. Requests have consecutive
// numbers. The completion of one means that all before it are done too, so only some
// request a completion. Go has the same structs.
#ifndef MSCCLGO_IB_LEDGER_H
#define MSCCLGO_IB_LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "verbs/post.h"

// What requests do, for messages: the texts of ledger.go.
enum {
  IB_NOTHING,
  IB_WRITE,
  IB_WRITTEN,  // a read after a write
  IB_STORE,
  IB_UPDATE,
  IB_ADDITION,
  IB_EXCHANGE,
  IB_READ,
  IB_MARKED,  // a read before a mark
  IB_LANDED,  // a write behind a read
  IB_EMPTY,
  IB_APPLIED,  // a read of the number of updates applied
  IB_OLD,      // a read of what a word was
  IB_GREETING,
  IB_NEWS,
  IB_GOODBYE,
  IB_RECEIVE,
};

// ib_part is where a request reads or writes.
typedef struct {
  uint64_t memory;  // 1 + its number among its rank's, or 0 for none of a caller's
  uint64_t size;    // of the memory, for messages
  uint64_t offset;  // likewise
  uint64_t place;   // among all memory of that rank, of which several memories may be the same
} ib_part;

// ib_entry describes a request, for its order with others and for messages.
typedef struct {
  ib_part there;  // the peer's
  ib_part here;   // of a write of memory and of a read, which may be in each other's way here too
  uint64_t n;     // bytes
  uint32_t doing;
  bool read;
  bool atomic;  // an addition
} ib_entry;

typedef struct {
  uint64_t depth;
  uint64_t posted;    // all below are posted
  uint64_t done;      // all below are done
  uint64_t signaled;  // all below are covered by a completion that was requested
  uint64_t wait_for;  // requests below must be done before an update is posted
  uint64_t wrote;     // all requests that change the peer's memory are below
  uint64_t atomics;   // all additions are below
  ib_entry* entries;

  uint64_t polls;  // in a row that found nothing, with a completion due
  int64_t since;   // when the first of them was, about
} ib_ledger;

// ib_room returns how many more requests fit in the queue.
static inline uint64_t ib_room(const ib_ledger* l) { return l->depth - (l->posted - l->done); }

// ib_add adds a request and returns its number, and sets its flags. It requests a completion
// if signal is set, and at least once in a quarter of the queue, so that there is room again
// long before the queue is full.
static inline uint64_t ib_add(ib_ledger* l, const ib_entry* e, bool signal, uint16_t* flags) {
  const uint64_t id = l->posted++;
  l->entries[id % l->depth] = *e;
  if (e->there.memory && !e->read) l->wrote = l->posted;
  if (e->atomic) l->atomics = l->posted;
  *flags = 0;
  if (signal || l->posted - l->signaled >= l->depth / 4) {
    l->signaled = l->posted;
    *flags = IBV_SEND_SIGNALED;
  }
  return id;
}

// ib_complete records a completion, and sets what was done. It reports false if the request
// is not under way.
static inline bool ib_complete(ib_ledger* l, uint64_t id, ib_entry* what) {
  *what = (ib_entry){.doing = IB_NOTHING};
  if (id < l->done || id >= l->posted) return false;
  l->done = id + 1;
  *what = l->entries[id % l->depth];
  return true;
}

// ib_silence counts a poll, and returns for how many nanoseconds polls have found nothing although
// a completion is due. Of requests at the end that ask for none there is never any. It reads the
// clock once in 64 polls.
static inline int64_t ib_silence(ib_ledger* l, bool found) {
  if (found || l->done >= l->signaled) {
    l->polls = 0;
    return 0;
  }
  if (++l->polls % 64 != 0) return 0;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  const int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
  if (l->polls == 64) l->since = now;
  return now - l->since;
}

// ib_overlap reports whether n bytes at one part share a byte with other_n at the other.
static inline bool ib_overlap(const ib_part* a, uint64_t n, const ib_part* b, uint64_t other_n) {
  return a->memory && b->memory && a->place < b->place + other_n && b->place < a->place + n;
}

// ib_conflict returns the number below which all requests must be done before one of a queue
// pair may be posted: of the same one, which does writes, and also reads, in their order,
// or of another, with which there is none.
static inline uint64_t ib_conflict(const ib_ledger* l, const ib_entry* next, bool same) {
  const uint64_t ordered = l->wait_for > l->atomics ? l->wait_for : l->atomics;
  if (same && !next->read && l->done >= ordered) return 0;  // all reads and additions are done
  uint64_t end = 0;
  for (uint64_t id = l->done; id < l->posted; id++) {
    const ib_entry* e = &l->entries[id % l->depth];
    bool there = ib_overlap(&e->there, e->n, &next->there, next->n) && !(e->read && next->read);
    bool here = ib_overlap(&e->here, e->n, &next->here, next->n) && (e->read || next->read);
    if (same) {
      // A write follows writes, a read all, but for what a write has yet to send, and an
      // addition all but reads.
      there = there && (e->read || (e->atomic && !next->read && !next->atomic));
      here = here && e->read != next->read;
    }
    if (there || here) end = id + 1;
  }
  return end;
}

#endif
