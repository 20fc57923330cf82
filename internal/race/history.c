// history.c: what the last writes to a count have released.
//
// A wait for at least n may see n+1, whose write carries more than the write of n. What only that orders is
// ordered in this run and not by the program: had the wait looked earlier, it would have seen n. So a wait
// that says what it awaits learns what the first write that is enough has released. It might have seen any
// write that is enough, apart from those before a write that it knows of. Where the first ones are
// forgotten, the oldest that is left stands for them: a race may be missed, and none is invented.
#include "history.h"

// ahead returns how far a value is ahead of another, for counts that wrap around.
static int64_t ahead(uint64_t value, uint64_t of, uint32_t size) {
  return size == 4 ? (int32_t)((uint32_t)value - (uint32_t)of) : (int64_t)(value - of);
}

static race_history* history_of(const race_cell* c) { return c->history ? &race->history[c->history] : NULL; }

static void add(race_history* h, const race_cell* c, uint32_t size, uint64_t value, uint32_t actor,
                uint32_t time) {
  if (h->size != size) h->begin = h->end;
  h->size = size;
  h->writes[h->end++ % RACE_WRITES] = (race_past){value, actor, time, *c};
  if (h->end - h->begin > RACE_WRITES) h->begin = h->end - RACE_WRITES;
}

void history_make(race_cell* c) {
  if (c->history || __atomic_load_n(&race->histories, __ATOMIC_RELAXED) >= RACE_HISTORIES) return;
  const uint32_t number = __atomic_fetch_add(&race->histories, 1, __ATOMIC_RELAXED);
  if (number < RACE_HISTORIES) c->history = (uint16_t)number;
}

void history_write(race_cell* c, uint32_t size, uint64_t value, uint32_t actor, uint32_t time) {
  if (c->history) add(history_of(c), c, size, value, actor, time);
}

void history_unknown(race_cell* c, uint64_t value) {
  race_history* h = history_of(c);
  if (h && h->size) add(h, c, h->size, value, 0, 0);
}

void history_drop(race_cell* c) {
  race_history* h = history_of(c);
  if (h) h->begin = h->end;
}

void history_expect(race_cell* c, uint32_t size, uint64_t value) {
  history_make(c);
  race_history* h = history_of(c);
  if (!h) return;
  const int noted = h->end != h->begin && h->writes[(h->end - 1) % RACE_WRITES].value == value;
  if (!noted || h->size != size) add(h, c, size, value, 0, 0);
}

const race_cell* history_found(const race_thread* t, const race_cell* c, uint64_t awaited, int equal) {
  const race_history* h = history_of(c);
  const race_past* found = NULL;
  for (uint32_t i = h ? h->end : 0; h && i != h->begin; i--) {
    const race_past* p = &h->writes[(i - 1) % RACE_WRITES];
    const int enough = equal ? p->value == awaited : ahead(p->value, awaited, h->size) >= 0;
    if (found && (!enough || ahead(p->value, found->value, h->size) >= 0)) break;
    if (!enough) continue;
    found = p;
    if (equal || (p->time && shadow_ordered(t, p->actor, p->time))) break;
  }
  return found ? &found->cell : NULL;
}

const race_cell* history_await(const race_thread* t, race_cell* c, uint32_t size, uint64_t value,
                               uint64_t least) {
  history_expect(c, size, value);
  if (ahead(value, least, size) < 0) return NULL;
  const race_cell* found = history_found(t, c, least, 0);
  return found ? found : c;
}
