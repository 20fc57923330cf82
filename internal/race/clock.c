// clock.c: what a thread knows of all others, as vector clocks that never change.
//
// A clock is a sorted list of (key, time). Keys have four levels: all launches of a stream
// up to one, a block of a launch, a warp and a thread of it, each of which stands for what
// is below. So the clock of a barrier has one entry for a block and not one for each of
// its threads (as in BARRACUDA, PLDI 2017), and what a stream has finished is one entry.
#include "arena.h"
#include "memo.h"

typedef struct {
  uint64_t key;
  uint32_t time, unused;
} entry;

typedef struct {
  uint32_t count, unused[3];
  entry entries[];
} list;

enum { UNIT_BITS = 12, BLOCK_BITS = 16, LAUNCH_BITS = 22, WARP_UNIT = 1, THREAD_UNIT = 64 };

static const list* list_of(uint32_t clock) { return race_at(RACE_CLOCK_START + (uint64_t)clock * 16); }

uint64_t clock_key(uint32_t stream, uint32_t launch, uint32_t block) {
  return ((uint64_t)stream << LAUNCH_BITS | launch) << (BLOCK_BITS + UNIT_BITS) | (uint64_t)block
                                                                                      << UNIT_BITS;
}
uint64_t clock_warp(uint64_t block, uint32_t warp) { return block | (WARP_UNIT + warp); }
uint64_t clock_thread(uint64_t block, uint32_t thread) { return block | (THREAD_UNIT + thread); }
uint64_t clock_stream(uint32_t stream) { return clock_key(stream, 0, 0); }

static uint64_t stream_of(uint64_t key) { return key >> (LAUNCH_BITS + BLOCK_BITS + UNIT_BITS); }
static uint32_t launch_of(uint64_t key) {
  return (uint32_t)(key >> (BLOCK_BITS + UNIT_BITS)) & ((1u << LAUNCH_BITS) - 1);
}
static uint64_t block_of(uint64_t key) { return key >> UNIT_BITS << UNIT_BITS; }

// make returns a new clock of so many entries, or 0.
static uint32_t make(uint32_t count, list** made) {
  const uint64_t at = __atomic_fetch_add(&race->clock, 1 + (uint64_t)count, __ATOMIC_RELAXED);
  if ((at + 1 + count) * 16 > RACE_CLOCK_BYTES) {
    race_lose(RACE_LOST_CLOCKS);
    __atomic_store_n(&race->full, 1, __ATOMIC_RELAXED);
    return 0;
  }
  *made = race_at(RACE_CLOCK_START + at * 16);
  return (uint32_t)at;
}

// A merge of two lists, in order, without what an entry of a higher level stands for.
typedef struct {
  const entry *a, *a_end, *b, *b_end;
  uint64_t stream, block;  // of the last such entries
  uint32_t launches, block_time;
} merge;

static int next(merge* m, entry* e) {
  for (;;) {
    if (m->a == m->a_end && m->b == m->b_end) return 0;
    if (m->b == m->b_end || (m->a != m->a_end && m->a->key < m->b->key)) {
      *e = *m->a++;
    } else if (m->a == m->a_end || m->b->key < m->a->key) {
      *e = *m->b++;
    } else {
      *e = m->a->time >= m->b->time ? *m->a : *m->b;
      m->a++, m->b++;
    }
    const uint32_t launch = launch_of(e->key);
    if (launch == 0) {
      m->stream = stream_of(e->key);
      m->launches = e->time;
      return 1;
    }
    if (stream_of(e->key) == m->stream && launch <= m->launches) continue;
    if (e->key == block_of(e->key)) {
      m->block = e->key;
      m->block_time = e->time;
      return 1;
    }
    if (block_of(e->key) == m->block && e->time <= m->block_time) continue;
    return 1;
  }
}

static merge merged(const list* a, const list* b) {
  return (merge){a->entries, a->entries + a->count, b->entries, b->entries + b->count, ~0ull, ~0ull, 0, 0};
}

static int same(const list* l, const entry* e, uint32_t i) {
  return i < l->count && l->entries[i].key == e->key && l->entries[i].time == e->time;
}

static uint32_t join(uint32_t a, const list* la, uint32_t b, const list* lb) {
  merge m = merged(la, lb);
  entry e;
  uint32_t count = 0;
  int is_a = 1, is_b = 1;
  while (next(&m, &e)) {
    is_a &= same(la, &e, count);
    is_b &= same(lb, &e, count);
    count++;
  }
  if (is_a && count == la->count) return a;
  if (is_b && count == lb->count && b) return b;
  list* made;
  const uint32_t clock = make(count, &made);
  if (!clock) return a;
  made->count = count;
  m = merged(la, lb);
  for (uint32_t i = 0; i < count; i++) next(&m, &made->entries[i]);
  return clock;
}

uint32_t clock_join(uint32_t a, uint32_t b) {
  if (a == b || !b) return a;
  if (!a) return b;
  return join(a, list_of(a), b, list_of(b));
}

// few is a list of up to three entries.
typedef union {
  list head;
  struct {
    list unused;
    entry entries[3];
  };
} few;

static void put(few* f, uint64_t key, uint32_t time) {
  if (time) f->entries[f->head.count++] = (entry){key, time, 0};
}

uint32_t clock_add(uint32_t clock, uint64_t key, uint32_t time) {
  few f = {.head = {.count = 0}};
  put(&f, key, time);
  return join(clock, list_of(clock), 0, &f.head);
}

uint32_t clock_of(const race_thread* t, const race_fence* at) {
  const uint32_t thread = t->actor & 1023;
  few f = {.head = {.count = 0}};
  put(&f, t->key, at->block_clock);
  put(&f, clock_warp(t->key, thread / MSCCLGO_EMU_WARP), at->warp_clock);
  put(&f, clock_thread(t->key, thread), at->clock);
  return join(at->known, list_of(at->known), 0, &f.head);
}

// find returns the time of a key, or 0.
static uint32_t find(const list* l, uint64_t key) {
  uint32_t low = 0, high = l->count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (l->entries[middle].key < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < l->count && l->entries[low].key == key ? l->entries[low].time : 0;
}

static void ask(race_answer* to, uint32_t clock, uint32_t instance) {
  const race_instance* i = &race->instance[instance];
  const list* l = list_of(clock);
  to->clock = clock;
  to->instance = instance;
  to->other = 0;
  if (find(l, clock_stream(i->stream)) >= i->launch) {
    to->time = ~0u;
    return;
  }
  to->time = find(l, clock_key(i->stream, i->launch, i->block));
  to->other = 1;
}

int clock_has(uint32_t clock, uint32_t actor, uint32_t time) {
  if (!clock) return 0;
  const uint32_t instance = actor >> 10, thread = actor & 1023;
  race_memo* memo = race_remember();
  race_answer unknown = {0};
  race_answer* a = memo ? &memo->answers[(clock * 31 + instance) % RACE_ANSWERS] : &unknown;
  if (a->clock != clock || a->instance != instance) ask(a, clock, instance);
  if (time <= a->time) return 1;
  if (!a->other) return 0;
  const race_instance* i = &race->instance[instance];
  const uint64_t key = clock_key(i->stream, i->launch, i->block);
  const list* l = list_of(clock);
  return time <= find(l, clock_warp(key, thread / MSCCLGO_EMU_WARP)) ||
         time <= find(l, clock_thread(key, thread));
}
