// sync.c: what orders accesses: atomics, fences, barriers, and the beginning and the end
// of threads.
#include <sched.h>
#include <string.h>

#include "arena.h"
#include "history.h"
#include "word.h"

uint32_t race_mailbox;

void race_publish(uint32_t* word, uint32_t clock) {
  uint32_t had = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  for (;;) {
    const uint32_t both = clock_join(had, clock);
    if (both == had) return;
    if (__atomic_compare_exchange_n(word, &had, both, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  }
}

void race_lock(uint8_t* lock) {
  for (uint32_t spins = 0; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); spins++) {
    if (spins > 1u << 20) return;  // its process was killed
    if (spins > 64) sched_yield();
  }
}

void race_unlock(uint8_t* lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

// synced notes a thread's last synchronisation.
static void synced(race_thread* t, const void* code, const char* what) {
  t->site = race_sync(race_place_of(t, code), what);
}

// now returns what the thread knows and has done, and begins a new time.
static race_fence now(race_thread* t) {
  return (race_fence){t->known, t->time++, t->block_clock, t->warp_clock, 0};
}

// released returns what the thread's last fence of a scope, or of a wider one, has released.
static uint32_t released(race_thread* t, uint32_t scope) {
  race_fence* f = &t->fence[scope];
  if (f->clock == 0) return t->base;
  if (!f->released) {
    const race_fence* wider = scope ? f - 1 : f;
    f->released = wider->clock == f->clock && wider->released ? wider->released : clock_of(t, f);
  }
  return f->released;
}

void sync_tell(race_cell* c, uint32_t clock) {
  for (int k = 0; k < 3; k++) {
    c->told[k] = clock;
    c->fenced[k] = 0;
  }
  c->owner = 0;
  c->block = 0;
}

void sync_refresh(race_cell* c, uint64_t value) {
  if (c->value == race_digest(value) || c->value == RACE_ANY) return;
  // By a host, of whom we know no more: it may have seen what kernels have told this process's.
  sync_tell(c, clock_join(__atomic_load_n(&race->hosts, __ATOMIC_ACQUIRE),
                          __atomic_load_n(&race_mailbox, __ATOMIC_ACQUIRE)));
  c->value = race_digest(value);
  history_unknown(c, value);
}

// within returns the narrowest scope that has both a thread and the last writer of a cell. Scopes have
// numbers from the widest on, and what is told at one is told at all narrower ones.
static uint32_t within(const race_thread* t, const race_cell* c) {
  if (c->block && c->block == t->actor >> 10) return MSCCLGO_EMU_BLOCK;
  return c->owner == (t->device & 0xff) ? MSCCLGO_EMU_DEVICE : MSCCLGO_EMU_SYSTEM;
}

// What reading a cell tells a thread.
void sync_observe(race_thread* t, const race_cell* c, const mscclgo_emu_atomic* w, const void* code) {
  const uint32_t both = within(t, c);
  uint32_t clock = both >= w->scope ? c->told[both] : 0;
  if (both >= w->scope) t->seen_fenced[both] = clock_join(t->seen_fenced[both], c->fenced[both]);
  // A load and an acquiring one of the same word acquire together (PTX: acquire patterns).
  if (t->loaded.at != w->at) t->loaded = (race_word){.at = w->at};
  if (w->order & MSCCLGO_EMU_ACQUIRE) {
    for (uint32_t k = w->scope; k < 3; k++) clock = clock_join(clock, t->loaded.told[k]);
    t->known = clock_join(t->known, clock);
    synced(t, code, "acquire");
    return;
  }
  t->loaded.told[both] = clock_join(t->loaded.told[both], clock);
  for (int i = 0; i < 4; i++)
    if (t->latest[i] == clock) return;
  t->latest[t->turn++ % 4] = clock;
  t->seen[both] = clock_join(t->seen[both], clock);
}

static const char* const released_at[] = {"release at system scope", "release at device scope",
                                          "release at block scope"};

// What writing a cell tells those who read it. A write of a scope tells nothing to those outside of it,
// whatever fence is before it (PTX: moral strength).
void sync_offer(race_thread* t, race_cell* c, const mscclgo_emu_atomic* w, int pinned, const void* code) {
  const int update = w->what != MSCCLGO_EMU_STORE;
  uint32_t told[3] = {t->base, t->base, t->base};
  if (w->order & MSCCLGO_EMU_RELEASE) {
    const race_fence f = now(t);
    const uint32_t clock = clock_of(t, &f);
    for (uint32_t k = w->scope; k < 3; k++) told[k] = clock;
    t->released = (race_word){.at = w->at, .told = {told[0], told[1], told[2]}};
    synced(t, code, released_at[w->scope]);
  } else {
    for (uint32_t k = w->scope; k < 3; k++) {
      told[k] = released(t, k);
      // A release pattern, by a store behind one that releases.
      if (t->released.at == w->at) told[k] = clock_join(told[k], t->released.told[k]);
    }
  }
  const uint32_t both = within(t, c);
  for (uint32_t k = 0; k < 3; k++) {
    const int inside = k >= w->scope;
    // With an update, a release sequence goes on.
    if (update && inside) told[k] = clock_join(c->told[k < both ? k : both], told[k]);
    c->fenced[k] = clock_join(update ? c->fenced[k] : 0, inside ? t->fenced[k] : 0);
  }
  memcpy(c->told, told, sizeof(told));
  c->owner = t->device & 0xff;
  c->block = t->actor >> 10;
  if (pinned) race_publish(&race_mailbox, told[0]);
}

// will_release returns what a write of the thread will tell everyone, apart from what the word's readers
// know already.
static uint32_t will_release(race_thread* t, const mscclgo_emu_atomic* w) {
  if (w->scope != MSCCLGO_EMU_SYSTEM) return t->base;
  if (!(w->order & MSCCLGO_EMU_RELEASE)) return released(t, MSCCLGO_EMU_SYSTEM);
  const race_fence f = {t->known, t->time, t->block_clock, t->warp_clock, 0};
  return clock_of(t, &f);
}

// settle ends the thread's volatile access, if it has told of one: it is made by now.
static void settle(race_thread* t) {
  if (!t->pending) return;
  const mscclgo_emu_atomic w = {.at = (void*)(uintptr_t)t->pending_at,
                                .what = MSCCLGO_EMU_LOAD,
                                .size = t->pending,
                                .scope = MSCCLGO_EMU_SYSTEM};
  t->pending = 0;
  int pinned, writes;
  uint64_t wrote;
  race_cell* c = shadow_cell(w.at, &pinned);
  if (!c) return;
  race_lock(&c->lock);
  const uint64_t value = race_operate(&w, &wrote, &writes);
  if (t->pending_how & MSCCLGO_EMU_WRITE) {
    if (c->value == RACE_ANY) c->value = race_digest(value);
  } else {
    sync_refresh(c, value);
    sync_observe(t, c, &w, NULL);
  }
  race_unlock(&c->lock);
}

// relaxed is a volatile access, which is as one that is relaxed at system scope (PTX ISA, "ld" and
// "st"). The compiler tells of it before it is made: so what a write is ordered after is offered
// before the value is there, and what a read has seen is looked up when the thread tells of something
// else, which may be more than it saw.
static void relaxed(race_thread* t, const void* at, uint64_t size, uint32_t how, const void* code) {
  const int writes = (how & MSCCLGO_EMU_WRITE) != 0;
  shadow_access(t, at, size, RACE_ATOMIC | RACE_SYSTEM | (writes ? RACE_WRITE : RACE_READ),
                race_place_of(t, code));
  t->pending = (uint8_t)size;
  t->pending_how = how;
  t->pending_at = at;
  int pinned;
  race_cell* c = writes ? shadow_cell(at, &pinned) : NULL;
  if (!c) return;
  const mscclgo_emu_atomic w = {
      .at = (void*)(uintptr_t)at, .what = MSCCLGO_EMU_STORE, .scope = MSCCLGO_EMU_SYSTEM};
  race_lock(&c->lock);
  sync_offer(t, c, &w, pinned, code);
  c->value = RACE_ANY;
  history_drop(c);
  race_unlock(&c->lock);
}

void race_access(race_thread* t, const void* at, uint64_t size, uint32_t how, const void* code) {
  settle(t);
  const int word = size <= 8 && !(size & (size - 1)) && (uintptr_t)at % size == 0;
  if ((how & MSCCLGO_EMU_VOLATILE) && word) {
    relaxed(t, at, size, how, code);
  } else {
    const uint32_t reads = how & MSCCLGO_EMU_CONSTANT ? RACE_CONSTANT : RACE_READ;
    shadow_access(t, at, size, how & MSCCLGO_EMU_WRITE ? RACE_WRITE : reads, race_place_of(t, code));
  }
}

uint64_t race_atomic(race_thread* t, const mscclgo_emu_atomic* w, const void* code) {
  settle(t);
  int pinned = 0, writes;
  uint64_t wrote = 0;
  race_cell* c = shadow_cell(w->at, &pinned);
  if (!c) return race_operate(w, &wrote, &writes);
  static const uint32_t scopes[] = {RACE_SYSTEM, 0, RACE_BLOCK};
  const uint32_t may_write = w->what != MSCCLGO_EMU_LOAD ? RACE_WRITE : RACE_READ;
  shadow_access(t, w->at, w->size, RACE_ATOMIC | scopes[w->scope] | may_write, race_place_of(t, code));
  if (pinned && w->what == MSCCLGO_EMU_STORE)
    race_pushed(w->at, race_place_of(t, code));  // before it is seen
  return sync_atomic(t, c, w, pinned, code);
}

uint64_t sync_atomic(race_thread* t, race_cell* c, const mscclgo_emu_atomic* w, int pinned,
                     const void* code) {
  int writes;
  uint64_t wrote = 0;
  const uint32_t time = t->time;
  race_lock(&c->lock);
  if (w->order & MSCCLGO_EMU_RELEASE) history_make(c);
  if (c->history && w->what == MSCCLGO_EMU_STORE) sync_refresh(c, race_word_at(w->at, w->size));
  // A host that polls sees the value as soon as it is there, whoever holds the lock: so it is told first. A
  // comparison that then writes nothing has told it too much: a miss, no false report.
  if (pinned && w->what != MSCCLGO_EMU_LOAD) race_publish(&race_mailbox, will_release(t, w));
  const uint64_t old = race_operate(w, &wrote, &writes);
  if (w->what != MSCCLGO_EMU_STORE) {
    sync_refresh(c, old);
    const int awaits = w->what == MSCCLGO_EMU_LOAD && w->expected;
    const race_cell* of = awaits ? history_await(t, c, w->size, old, w->expected) : c;
    if (of) sync_observe(t, of, w, code);
  }
  if (writes) {
    sync_offer(t, c, w, pinned, code);
    c->value = race_digest(wrote);
    history_write(c, w->size, wrote, t->actor, time);
  }
  race_unlock(&c->lock);
  return old;
}

// race_fences is a fence. One of both orders is sequentially consistent: one that is made behind a
// load which has seen a store behind another such fence comes after that in their order, and so
// after all that was known there (PTX: Fence-SC order), whichever thread of the block made the store.
void race_fences(race_thread* t, uint32_t order, uint32_t scope, const void* code) {
  settle(t);
  static const char* const fence_at[] = {"fence at system scope", "fence at device scope",
                                         "fence at block scope"};
  const int consistent = (order & MSCCLGO_EMU_ACQUIRE) && (order & MSCCLGO_EMU_RELEASE);
  for (uint32_t k = scope; k < 3; k++) {
    if (order & MSCCLGO_EMU_ACQUIRE) t->known = clock_join(t->known, t->seen[k]);
    if (consistent) t->known = clock_join(t->known, t->seen_fenced[k]);
  }
  if (order & MSCCLGO_EMU_RELEASE) {
    const race_fence f = now(t);
    for (uint32_t k = scope; k < 3; k++) t->fence[k] = f;
  }
  for (uint32_t k = scope; consistent && k < 3; k++) t->fenced[k] = clock_join(t->fenced[k], released(t, k));
  if (order) synced(t, code, fence_at[scope]);
}

// meet joins what the threads of a mask know. Threads that have ended do not take part: nothing orders what
// they did before the end.
static void meet(race_thread* threads, uint32_t count, uint32_t mask, int warp, uint16_t site) {
  race_thread all = {.time = 0};
  for (uint32_t i = 0; i < count; i++) settle(&threads[i]);
  // What lanes outside of a mask did before is taken for known too: a miss, no false report.
  for (uint32_t i = 0; i < count; i++) {
    const race_thread* t = &threads[i];
    if (!(mask >> i % 32 & 1) || t->ended) continue;
    if (t->time > all.time) all.time = t->time;
    if (t->block_clock > all.block_clock) all.block_clock = t->block_clock;
    if (t->known != all.known) all.known = clock_join(all.known, t->known);
    for (int k = 0; k < 3; k++) {
      if (t->seen[k] != all.seen[k]) all.seen[k] = clock_join(all.seen[k], t->seen[k]);
      if (t->fenced[k] != all.fenced[k]) all.fenced[k] = clock_join(all.fenced[k], t->fenced[k]);
      if (t->seen_fenced[k] != all.seen_fenced[k])
        all.seen_fenced[k] = clock_join(all.seen_fenced[k], t->seen_fenced[k]);
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    race_thread* t = &threads[i];
    if (!(mask >> i % 32 & 1) || t->ended) continue;
    t->known = all.known;
    memcpy(t->seen, all.seen, sizeof(t->seen));
    memcpy(t->fenced, all.fenced, sizeof(t->fenced));
    memcpy(t->seen_fenced, all.seen_fenced, sizeof(t->seen_fenced));
    *(warp ? &t->warp_clock : &t->block_clock) = all.time;
    if (warp) t->block_clock = all.block_clock;
    t->time = all.time + 1;
    t->site = site;
  }
}

void race_barrier(race_thread* threads, uint32_t count, const void* code) {
  meet(threads, count, ~0u, 0, race_sync(race_place_of(threads, code), "__syncthreads"));
}

void race_warp(race_thread* lanes, uint32_t mask, const void* code) {
  meet(lanes, 32, mask, 1, race_sync(race_place_of(lanes, code), "__syncwarp or a warp function"));
}

void race_previous(race_thread* t, uint32_t clock, const void* code) {
  settle(t);
  t->known = clock_join(t->known, clock);
  synced(t, code, "awaitPrevious");
}

void race_block(race_thread* threads, uint32_t count, const race_launch* l, uint32_t block,
                mscclgo_emu_dim grid, mscclgo_emu_dim shape) {
  const race_instance i = {
      l->stream, l->launch, block, l->name, l->where, {grid.x, grid.y, grid.z}, {shape.x, shape.y, shape.z}};
  const uint32_t instance = race_new_instance(&i);
  for (uint32_t k = 0; k < count; k++) {
    threads[k] = (race_thread){
        .actor = instance << 10 | k,
        .time = 1,
        .known = l->base,
        .base = l->base,
        .device = l->device,
        .module = l->module,
        .code = l->code,
        .key = clock_key(l->stream, l->launch, block),
    };
  }
}

void race_ended(race_thread* t, race_launch* l) {
  settle(t);
  t->ended = 1;
  if (t->known != l->base) race_publish(&l->end, t->known);
  for (int k = 0; k < 3; k++)
    if (t->seen[k]) race_publish(&l->end, t->seen[k]);
}
