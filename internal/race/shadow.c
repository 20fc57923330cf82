// shadow.c: who accessed which bytes, and whether that is ordered before the next access.
//
// Every 8 bytes have four slots, as in ThreadSanitizer: an access takes the place of one
// that is ordered before it and that it stands for, and otherwise of any, so that some
// races are missed and none is invented.
#include <sched.h>
#include <stdio.h>

#include "arena.h"
#include "memo.h"
#include "weak.h"

enum { PAGE = RACE_PAGE, PRIVATE = 1, PINNED = 2, WEIGHED = 1 << 18 };

// Entries of the engine's table are the address of a page's shadow with these flags. Above the address is
// where the memory ends in the page, if it does.

static uint64_t shadow_of(const void* at) { return race_functions.table[(uintptr_t)at / PAGE]; }

race_cell* shadow_cell(const void* at, int* pinned) {
  const uint64_t e = shadow_of(at);
  if (!e) return NULL;
  *pinned = (e & PINNED) != 0;
  const uintptr_t byte = (uintptr_t)at % PAGE;
  return (race_cell*)(race_page(e) + RACE_SLOT_BYTES) + byte % 4 * (PAGE / 4) + byte / 4;
}

uintptr_t shadow_key(const void* at) {
  const uint64_t e = shadow_of(at);
  if (!e || (e & PINNED)) return 0;
  return (uintptr_t)((race_slot*)race_page(e) + (uintptr_t)at % PAGE / 8 * RACE_SLOTS);
}

int shadow_ordered(const race_thread* t, uint32_t actor, uint32_t time) {
  if (actor == t->actor) return 1;
  if (actor >> 10 == t->actor >> 10) {
    const uint32_t mine = t->actor & 1023, theirs = actor & 1023;
    const race_thread* other = t - mine + theirs;
    // One that has ended came to no barrier since its last one, which a lane of its warp may have passed on.
    const uint32_t last = other->warp_clock > other->block_clock ? other->warp_clock : other->block_clock;
    if (other->ended && time > last) return clock_has(t->known, actor, time);
    if (time <= t->block_clock) return 1;
    if (theirs / MSCCLGO_EMU_WARP == mine / MSCCLGO_EMU_WARP && time <= t->warp_clock) return 1;
  }
  return clock_has(t->known, actor, time);
}

// ordered is shadow_ordered for a slot's access. What relaxed loads have seen orders later
// writes: no write is made before its condition is known.
static int ordered(const race_thread* t, const race_slot* s, uint32_t flags) {
  if (shadow_ordered(t, s->actor, s->clock)) return 1;
  return (flags & RACE_WRITE) &&
         (clock_has(t->seen[0], s->actor, s->clock) || clock_has(t->seen[1], s->actor, s->clock) ||
          clock_has(t->seen[2], s->actor, s->clock));
}

// constant is ordered for a read of what has to be constant for its launch and a write. A peer's write is
// before the launch, or not at all: a signal does not order the cache.
static int constant(const race_thread* t, const race_slot* s, uint32_t flags) {
  const race_instance *mine = &race->instance[t->actor >> 10], *theirs = &race->instance[s->actor >> 10];
  if (mine->stream == theirs->stream && mine->launch == theirs->launch) return 0;
  if ((flags & RACE_CONSTANT) && mine->where != theirs->where) return clock_has(t->base, s->actor, s->clock);
  return ordered(t, s, flags);
}

// atomically reports whether two accesses are atomic for each other: of the same bytes (PTX: moral strength).
static int atomically(const race_thread* t, uint8_t mask, uint32_t flags, const race_slot* s,
                      uint32_t theirs) {
  if (!(flags & theirs & RACE_ATOMIC) || mask != s->mask) return 0;
  if ((flags | theirs) & RACE_BLOCK) return t->actor >> 10 == s->actor >> 10;
  return (flags & theirs & RACE_SYSTEM) ||
         race->instance[t->actor >> 10].where == race->instance[s->actor >> 10].where;
}

static void describe(race_side* side, const race_slot* s) {
  side->instance = race->instance[s->actor >> 10];
  side->thread = s->actor & 1023;
  side->place = s->place;
  side->sync = race->site[s->site];
  side->flags = s->flags;
  side->mask = s->mask;
}

// locate finds the region of a page's shadow.
static uint32_t locate(uint64_t entry, uint64_t* page) {
  const uint64_t shadow = (uint64_t)(race_page(entry) - (char*)race);
  const uint32_t count = __atomic_load_n(&race->regions, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; i < count; i++) {
    const race_region* r = &race->region[i];
    if (shadow < r->shadow || shadow >= r->shadow + r->size / PAGE * RACE_PAGE_SHADOW) continue;
    *page = (shadow - r->shadow) / RACE_PAGE_SHADOW;
    return i;
  }
  return RACE_REGIONS;
}

int race_beyond(const void* at, uint64_t size, const char* kind, char* text, uint64_t room) {
  const uintptr_t last = (uintptr_t)at + size - 1;
  const uint64_t entry = shadow_of((void*)last), end = entry >> RACE_END_SHIFT;
  if (!end || last % PAGE < end) return 0;
  uint64_t page;
  const uint32_t region = locate(entry, &page);
  if (region == RACE_REGIONS) return 0;
  const race_region* r = &race->region[region];
  const int64_t behind = (int64_t)((uintptr_t)at - (last / PAGE * PAGE + end));
  if (behind >= 0) {
    snprintf(text, room, "a %s %lld bytes behind the %llu bytes of %s", kind, (long long)behind,
             (unsigned long long)r->bytes, race->texts + r->name);
  } else {
    snprintf(text, room, "a %s of %llu bytes across the end of the %llu bytes of %s", kind,
             (unsigned long long)size, (unsigned long long)r->bytes, race->texts + r->name);
  }
  return 1;
}

uint32_t race_about(uint64_t base, uint64_t* bytes) {
  uint64_t page;
  const uint32_t region = locate(shadow_of((void*)(uintptr_t)base), &page);
  if (region == RACE_REGIONS) return 0;
  *bytes = race->region[region].bytes;
  return race->region[region].name;
}

static void report(const race_slot* first, const race_slot* second, const void* at, uint32_t size) {
  const uint64_t low = first->place < second->place ? first->place : second->place;
  const uint64_t pair = low << 32 | (first->place ^ second->place ^ (uint32_t)low);
  uint32_t i = (uint32_t)((pair * 0x9e3779b97f4a7c15ull) >> 40) % (2 * RACE_REPORTS);
  for (uint32_t tries = 0;; i = (i + 1) % (2 * RACE_REPORTS)) {
    uint64_t had = 0;
    if (tries++ > RACE_REPORTS) return;
    if (__atomic_compare_exchange_n(&race->pairs[i], &had, pair, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      break;
    if (had == pair) return;
  }
  const uint32_t number = __atomic_fetch_add(&race->reports, 1, __ATOMIC_ACQ_REL);
  if (number >= RACE_REPORTS) {
    race_lose(RACE_LOST_REPORTS);
    return;
  }
  race_report* r = &race->report[number];
  describe(&r->first, first);
  describe(&r->second, second);
  const uint64_t entry = shadow_of(at);
  uint64_t page = 0;
  const uint32_t region = entry & PRIVATE ? RACE_REGIONS : locate(entry, &page);
  r->offset = page * PAGE + (uintptr_t)at % PAGE;
  r->size = size;
  if (region < RACE_REGIONS) {  // which may be other memory's later
    r->memory = race->region[region].name;
    r->module = race->region[region].module;
    r->offset += race->region[region].start;
  }
  __atomic_store_n(&r->ready, 1, __ATOMIC_RELEASE);
}

// lock takes a granule's slots, and returns the flags of the first.
static uint8_t lock(race_slot* slots) {
  for (uint32_t spins = 0;; spins++) {
    const uint8_t flags = __atomic_exchange_n(&slots[0].flags, RACE_LOCKED, __ATOMIC_ACQUIRE);
    if (flags != RACE_LOCKED) return flags;
    if (spins > 1u << 20) return 0;  // its process was killed
    if (spins > 64) sched_yield();
  }
}

static void granule(race_thread* t, race_slot* slots, const void* at, int private, uint8_t mask,
                    uint32_t flags, race_place place, uint32_t size) {
  const race_slot mine = {t->actor, t->time, place, t->site, mask, (uint8_t)flags};
  race_slot races[RACE_SLOTS];
  int racing = 0, free = -1, superseded = -1, kept = 0;
  // What this thread has done already needs no look at the others.
  for (int i = 0; i < RACE_SLOTS; i++) {
    const race_slot* s = &slots[i];
    if (s->actor == t->actor && s->clock == t->time && (mask & ~s->mask) == 0 && s->flags != RACE_LOCKED &&
        (flags == s->flags || (flags == RACE_READ && s->flags == RACE_WRITE)))
      return;
  }
  const uint8_t zero = lock(slots);
  for (int i = 0; i < RACE_SLOTS; i++) {
    race_slot* s = &slots[i];
    if (s->clock == 0 || (private && s->actor >> 10 != t->actor >> 10)) {
      s->clock = 0;
      if (free < 0) free = i;
      continue;
    }
    if (!(s->mask & mask)) continue;
    const uint8_t theirs = i == 0 ? zero : s->flags;
    const int atomic = atomically(t, mask, flags, s, theirs);
    const int conflict = ((theirs | flags) & RACE_WRITE) && !atomic;
    const int before = (flags | theirs) & RACE_CONSTANT ? constant(t, s, flags) : ordered(t, s, flags);
    if (conflict && !before) {
      races[racing] = *s;
      races[racing++].flags = theirs;
    }
    // An atomic operation comes behind the earlier ones on its word in the order of that word, and so
    // does what is ordered behind it.
    if ((s->mask & ~mask) == 0 && (before || atomic || s->actor == t->actor) &&
        ((flags & RACE_WRITE) || !(theirs & RACE_WRITE))) {
      if (superseded < 0) {
        superseded = i;
      } else {
        s->clock = 0;
      }
    }
  }
  if (superseded >= 0) {
    kept = superseded;
  } else if (free >= 0) {
    kept = free;
  } else {
    kept = (int)((t->actor ^ t->time ^ ((uintptr_t)at >> 3)) % RACE_SLOTS);
  }
  const uint8_t last = kept == 0 ? mine.flags : zero;
  if (kept == 0) {
    race_slot held = mine;
    held.flags = RACE_LOCKED;
    slots[0] = held;
  } else {
    slots[kept] = mine;
  }
  __atomic_store_n(&slots[0].flags, last, __ATOMIC_RELEASE);
  for (int i = 0; i < racing; i++) report(&races[i], &mine, at, size);
}

void shadow_access(race_thread* t, const void* at, uint64_t size, uint32_t flags, race_place place) {
  if (race_functions.weak) {
    if (flags & RACE_WRITE) weak_drop(at, size);
    return;
  }
  race_memo* memo = race_remember();
  uintptr_t from = (uintptr_t)at;
  const uintptr_t end = from + size;
  while (from < end && !race->full) {
    if (memo && ++memo->steps % WEIGHED == 0) race_weigh();
    const uint64_t e = shadow_of((void*)from);
    if (!e) {
      from = (from / PAGE + 1) * PAGE;
      continue;
    }
    uintptr_t to = (from | 7) + 1;
    if (to > end) to = end;
    const uint8_t mask = (uint8_t)(((1u << (to - from)) - 1) << from % 8);
    race_slot* slots = (race_slot*)race_page(e) + from % PAGE / 8 * RACE_SLOTS;
    granule(t, slots, (void*)from, (e & PRIVATE) != 0, mask, flags, place, size > 64 ? 64 : (uint32_t)size);
    from = to;
  }
}
