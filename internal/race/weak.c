// weak.c: loads that get an older value than the newest.
//
// Memory always has the newest values, in the order of the run, which is the coherence order of
// each location. Of each 8 bytes that kernels write there is a history: what the last writes
// replaced. A load may get what a write replaced unless the thread knows of that write: it
// happened before (clock.c), or the thread, or one of whose reads it knows, has read it or a
// later one. So each thread has a view of memory that only moves forwards, as in operational
// models of release and acquire (Kang et al., "A Promising Semantics for Relaxed-Memory
// Concurrency", POPL 2017, without its promises); all that it allows, PTX does.
//
// Plain loads are made by the kernel itself: the old value is in memory from before it until the
// thread's next call. Nobody else runs in between.
#include "weak.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arena.h"
#include "word.h"

enum {
  CHANGES = 4,  // of a history, the last ones
  READERS = 4,  // of a change; with more, all count as such
  HISTORIES = 1 << 17,
  BUCKETS = 2 * HISTORIES,
  SWAPPED = 3,  // words that one load of up to LOAD_BYTES takes
  LOAD_BYTES = 16,
  DEVICES = 256,
  BLOCKS = 256,
  WEIGHED = 1 << 18,
};

typedef struct moment {
  uint32_t actor, time;
} moment;

// A change is one write to some of 8 bytes.
typedef struct change {
  uint64_t before;  // all 8 bytes
  race_cell cell;   // what had been released until then, for a write to one word
  moment writer, reader[READERS];
  race_place place;
  uint8_t mask, atomic, readers, known;  // known: to all
} change;

typedef struct history {
  uintptr_t key;
  uint64_t newest;  // if it is no longer in memory, there was a write that was not noted
  uint32_t count, last;
  change of[CHANGES];
} history;

// part is the part of an access in one word of 8 bytes.
typedef struct part {
  uintptr_t key;
  uint64_t* word;
  uint8_t mask;
} part;

static struct {
  pthread_mutex_t lock;
  history* pool;
  uint32_t* bucket;  // 1 + the number of a history
  uint32_t count;
  uint32_t steps;

  // What the next call puts back into memory.
  struct {
    uint64_t *word, newest, mask;
  } swap[SWAPPED];
  uint32_t swaps;

  // What is about to be written, and its cell if it is one word.
  uintptr_t written, written_end;
  const void* word;
  uint64_t size;
  race_cell* cell;

  // Clocks of sequentially consistent fences: of all, of a device's, and of a block's.
  uint32_t fences_of_all, fences[DEVICES], fences_of_block[BLOCKS];
} w = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t spread(uint8_t mask) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; i++)
    if (mask >> i & 1) bits |= (uint64_t)0xff << 8 * i;
  return bits;
}

// value_of returns the value of some bytes of a word.
static uint64_t value_of(uint64_t word, uint8_t mask) {
  return (word & spread(mask)) >> 8 * __builtin_ctz(mask);
}

// value_at returns the value of one word in memory, of 1 to 8 bytes.
static uint64_t value_at(const void* at, uint64_t size) {
  uint64_t value = 0;
  memcpy(&value, at, size);
  return value;
}

// next cuts the first part off an access, and reports whether there is one in memory of devices.
static int next(uintptr_t* from, uintptr_t end, part* p) {
  while (*from < end) {
    uintptr_t to = (*from | 7) + 1;
    if (to > end) to = end;
    p->word = (uint64_t*)(*from & ~(uintptr_t)7);
    p->mask = (uint8_t)(((1u << (to - *from)) - 1) << *from % 8);
    p->key = shadow_key((void*)*from);
    *from = p->key ? to : (*from / 4096 + 1) * 4096;
    if (p->key) return 1;
  }
  return 0;
}

static uint32_t bucket_of(uintptr_t key) {
  return (uint32_t)((key / 64 * 0x9e3779b97f4a7c15ull) >> 40) % BUCKETS;
}

static history* find(uintptr_t key) {
  for (uint32_t i = bucket_of(key); w.bucket[i]; i = (i + 1) % BUCKETS)
    if (w.pool[w.bucket[i] - 1].key == key) return &w.pool[w.bucket[i] - 1];
  return NULL;
}

static void forget_all(void) {
  memset(w.bucket, 0, BUCKETS * sizeof(*w.bucket));
  w.count = 0;
}

static history* find_or_make(uintptr_t key) {
  history* h = find(key);
  if (h) return h;
  if (w.count == HISTORIES) forget_all();  // all that is left is the newest
  uint32_t i = bucket_of(key);
  while (w.bucket[i]) i = (i + 1) % BUCKETS;
  h = &w.pool[w.count++];
  w.bucket[i] = w.count;
  h->key = key;
  h->count = 0;
  return h;
}

// nth returns a change of a history, the last one first.
static change* nth(history* h, uint32_t n) { return &h->of[(h->last + CHANGES - n) % CHANGES]; }

static int knows(const race_thread* t, const change* c) {
  if (c->known || shadow_ordered(t, c->writer.actor, c->writer.time)) return 1;
  for (uint32_t i = 0; i < c->readers; i++)
    if (shadow_ordered(t, c->reader[i].actor, c->reader[i].time)) return 1;
  return 0;
}

// nth_of returns the n-th last change to some bytes, or NULL.
static change* nth_of(history* h, uint8_t mask, uint32_t n) {
  for (uint32_t i = 0; i < h->count; i++)
    if ((nth(h, i)->mask & mask) && n-- == 0) return nth(h, i);
  return NULL;
}

// valid drops a history that does not end with what is in memory.
static history* valid(history* h, const part* p) {
  if (h && h->newest != __atomic_load_n(p->word, __ATOMIC_RELAXED)) h->count = 0;
  return h && h->count ? h : NULL;
}

// allowed returns how many older values of some bytes a thread may read. An atomic load may read
// only what atomic operations on the same word replaced.
static uint32_t allowed(const race_thread* t, history* h, uint8_t mask, int atomic) {
  for (uint32_t n = 0;; n++) {
    const change* c = nth_of(h, mask, n);
    if (!c || knows(t, c) || (atomic && !(c->atomic && c->mask == mask))) return n;
  }
}

// seen notes that a thread reads what it gets with so many changes undone: of each byte the last
// of the others.
static void seen(const race_thread* t, history* h, uint8_t mask, uint32_t undone) {
  change* c;
  for (uint8_t left = mask; left && (c = nth_of(h, mask, undone)); undone++) {
    const uint8_t these = c->mask & left;
    left &= (uint8_t)~c->mask;
    if (!these || knows(t, c)) continue;
    if (c->readers == READERS) {
      c->known = 1;
    } else {
      c->reader[c->readers++] = (moment){t->actor, t->time};
    }
  }
}

// settle puts back what a load has replaced, and sees what was written.
static void settle(void) {
  for (; w.swaps; w.swaps--) {
    uint64_t* word = w.swap[w.swaps - 1].word;
    *word = (*word & ~w.swap[w.swaps - 1].mask) | (w.swap[w.swaps - 1].newest & w.swap[w.swaps - 1].mask);
  }
  part p;
  while (next(&w.written, w.written_end, &p)) {
    history* h = find(p.key);
    if (h) h->newest = *p.word;
  }
  if (w.cell) w.cell->value = race_digest(value_at(w.word, w.size));
  w.cell = NULL;
}

static void weak_settle(void) {
  if (!w.swaps && !w.cell && w.written >= w.written_end) return;
  pthread_mutex_lock(&w.lock);
  settle();
  pthread_mutex_unlock(&w.lock);
}

static uint32_t weak_older(const race_thread* t, const void* at, uint64_t size, int atomic, race_old* of) {
  if (size > LOAD_BYTES) return 0;
  if (++w.steps % WEIGHED == 0) race_weigh();
  if (race->full || (race->lost & RACE_LOST_LAUNCHES)) return 0;  // not all orders are known
  pthread_mutex_lock(&w.lock);
  uint32_t most = 0;
  uintptr_t from = (uintptr_t)at;
  part p;
  while (next(&from, (uintptr_t)at + size, &p)) {
    history* h = valid(find(p.key), &p);
    const uint32_t n = h ? allowed(t, h, p.mask, atomic) : 0;
    if (n <= most) continue;
    most = n;
    const change* c = nth_of(h, p.mask, 0);
    *of = (race_old){t->actor, c->writer.actor, c->place};
  }
  pthread_mutex_unlock(&w.lock);
  return most;
}

// A plain access to a word orders as a relaxed one does, for it may be volatile.
static mscclgo_emu_atomic relaxed(uint32_t what) {
  return (mscclgo_emu_atomic){.what = what, .scope = MSCCLGO_EMU_SYSTEM};
}

// cell_of returns the cell of an access to one word, also of the host's memory, or NULL.
static race_cell* cell_of(const void* at, uint64_t size, int* pinned) {
  const int is_word = size == 1 || size == 2 || size == 4 || size == 8;
  return is_word && (uintptr_t)at % size == 0 ? shadow_cell(at, pinned) : NULL;
}

static void weak_read(race_thread* t, const void* at, uint64_t size, uint32_t age) {
  pthread_mutex_lock(&w.lock);
  const mscclgo_emu_atomic load = relaxed(MSCCLGO_EMU_LOAD);
  int pinned;
  race_cell* c = cell_of(at, size, &pinned);
  if (c) sync_refresh(c, value_at(at, size));
  const race_cell* of = c;
  uintptr_t from = (uintptr_t)at;
  part p;
  while (next(&from, (uintptr_t)at + size, &p)) {
    history* h = valid(find(p.key), &p);
    const uint32_t most = h && age ? allowed(t, h, p.mask, 0) : 0;
    const uint32_t undone = age < most ? age : most;
    if (undone && c) of = &nth_of(h, p.mask, undone - 1)->cell;
    if (undone && w.swaps < SWAPPED) {
      const uint64_t bits = spread(p.mask), old = nth_of(h, p.mask, undone - 1)->before;
      w.swap[w.swaps].word = p.word;
      w.swap[w.swaps].newest = *p.word;
      w.swap[w.swaps++].mask = bits;
      seen(t, h, p.mask, undone);
      *p.word = (*p.word & ~bits) | (old & bits);
    } else if (h) {
      seen(t, h, p.mask, 0);
    }
  }
  if (c) sync_observe(t, of, &load, NULL);
  pthread_mutex_unlock(&w.lock);
}

// changes begins the history of a write, which comes next.
static change* changes(const race_thread* t, const part* p, race_place place) {
  history* h = find_or_make(p->key);
  valid(h, p);
  h->last = h->count ? (h->last + 1) % CHANGES : 0;
  if (h->count < CHANGES) h->count++;
  h->newest = *p->word;
  change* c = nth(h, 0);
  *c = (change){.before = *p->word, .writer = {t->actor, t->time}, .place = place, .mask = p->mask};
  return c;
}

static void weak_write(race_thread* t, const void* at, uint64_t size, const void* code) {
  pthread_mutex_lock(&w.lock);
  settle();
  w.written = (uintptr_t)at;
  w.written_end = w.written + size;
  uintptr_t from = w.written;
  part p;
  int pinned = 0;
  race_cell* c = cell_of(at, size, &pinned);
  if (c) sync_refresh(c, value_at(at, size));
  while (next(&from, w.written_end, &p)) {
    change* made = changes(t, &p, race_place_of(t, code));
    if (c) made->cell = *c;
  }
  if (c) {
    const mscclgo_emu_atomic store = relaxed(MSCCLGO_EMU_STORE);
    sync_offer(t, c, &store, pinned, code);
    w.cell = c;
    w.word = at;
    w.size = size;
  }
  pthread_mutex_unlock(&w.lock);
}

// consistent has a thread know what all before it did that met with such a fence or operation.
static void consistent(race_thread* t, uint32_t scope) {
  uint32_t* const of[] = {&w.fences_of_all, &w.fences[t->device % DEVICES],
                          &w.fences_of_block[(t->actor >> 10) % BLOCKS]};
  for (uint32_t k = scope; k < 3; k++) t->known = clock_join(t->known, *of[k]);
  const race_fence f = {t->known, t->time++, t->block_clock, t->warp_clock, 0};
  const uint32_t now = clock_of(t, &f);
  for (uint32_t k = scope; k < 3; k++) *of[k] = clock_join(*of[k], now);
}

static int is_consistent(uint32_t order) {
  return (order & MSCCLGO_EMU_ACQUIRE) && (order & MSCCLGO_EMU_RELEASE);
}

// A fence of both orders is sequentially consistent, as those of CUDA are.
static void weak_fence(race_thread* t, uint32_t order, uint32_t scope, const void* code) {
  race_fences(t, order & MSCCLGO_EMU_ACQUIRE, scope, code);
  if (is_consistent(order)) consistent(t, scope);
  race_fences(t, order & MSCCLGO_EMU_RELEASE, scope, code);
}

static uint64_t weak_atomic(race_thread* t, const mscclgo_emu_atomic* a, uint32_t age, const void* code) {
  if (is_consistent(a->order)) weak_fence(t, a->order, a->scope, code);
  pthread_mutex_lock(&w.lock);
  settle();
  int writes, pinned = 0;
  uint64_t wrote = 0, old = 0;
  race_cell* c = shadow_cell(a->at, &pinned);
  uintptr_t from = (uintptr_t)a->at;
  part p;
  if (!next(&from, from + a->size, &p)) {
    old = c ? sync_atomic(t, c, a, pinned, code) : race_operate(a, &wrote, &writes);
    pthread_mutex_unlock(&w.lock);
    return old;
  }
  history* h = valid(find(p.key), &p);
  const uint64_t newest = value_of(*p.word, p.mask);
  const uint32_t most = h && age ? allowed(t, h, p.mask, 1) : 0;
  if (most) {
    const uint32_t undone = age < most ? age : most;
    const change* of = nth_of(h, p.mask, undone - 1);
    old = value_of(of->before, p.mask);
    sync_observe(t, &of->cell, a, code);
    seen(t, h, p.mask, undone);
  } else {
    if (a->what == MSCCLGO_EMU_LOAD ||
        (a->what == MSCCLGO_EMU_COMPARE &&
         newest != value_of(a->expected << 8 * __builtin_ctz(p.mask), p.mask))) {
      if (h) seen(t, h, p.mask, 0);
    } else {
      change* made = changes(t, &p, race_place_of(t, code));
      made->atomic = 1;
      made->cell = *c;
      sync_refresh(&made->cell, newest);
    }
    old = sync_atomic(t, c, a, pinned, code);
    if ((h = find(p.key))) h->newest = *p.word;
  }
  pthread_mutex_unlock(&w.lock);
  return old;
}

void weak_drop(const void* at, uint64_t size) {
  pthread_mutex_lock(&w.lock);
  uintptr_t from = (uintptr_t)at;
  part p;
  if (size / 8 < w.count || size <= 2 * MSCCLGO_EMU_SHARED_BYTES) {
    while (next(&from, (uintptr_t)at + size, &p)) {
      history* h = find(p.key);
      if (h) h->count = 0;
    }
  } else if (w.count && next(&from, (uintptr_t)at + size, &p)) {
    // The shadow of one mapping is in one piece, unlike the shadow of a block's memory.
    const uintptr_t first = p.key, last = shadow_key((char*)at + size - 1);
    for (uint32_t i = 0; i < w.count; i++)
      if (w.pool[i].key >= first && (w.pool[i].key <= last || !last)) w.pool[i].count = 0;
  }
  pthread_mutex_unlock(&w.lock);
}

const race_weak weak_functions = {weak_settle, weak_older, weak_read, weak_write, weak_atomic, weak_fence};

int weak_start(void) {
  w.bucket = calloc(BUCKETS, sizeof(*w.bucket));
  w.pool = mmap(NULL, HISTORIES * sizeof(*w.pool), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (w.pool == MAP_FAILED) w.pool = NULL;
  if (w.bucket && w.pool) return 1;
  weak_stop();
  return 0;
}

void weak_stop(void) {
  free(w.bucket);
  if (w.pool) munmap(w.pool, HISTORIES * sizeof(*w.pool));
  w.bucket = NULL;
  w.pool = NULL;
  w.count = w.swaps = 0;
  w.written = w.written_end = 0;
  w.cell = NULL;
  memset(w.fences, 0, sizeof(w.fences));
  memset(w.fences_of_block, 0, sizeof(w.fences_of_block));
  w.fences_of_all = 0;
}
