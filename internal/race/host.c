// host.c: what streams, hosts and proxies do, in the order of time of each.
//
// All goroutines of a process are one host. It knows what kernels have released to memory
// of the host, since it may have polled that, and what streams have done once it has
// waited for them. What it tells kernels by stores that are not seen here, they take as
// all that any host knows (sync.c).
#include "host.h"

#include <pthread.h>
#include <string.h>

#include "arena.h"
#include "word.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static race_line host;

void race_host_start(void) { host = race_new_line(); }

race_line race_new_line(void) {
  race_line l = {.stream = __atomic_fetch_add(&race->streams, 1, __ATOMIC_RELAXED)};
  if (l.stream >= RACE_STREAMS) race_lose(RACE_LOST_LAUNCHES);
  return l;
}

uint32_t race_both(uint32_t a, uint32_t b) { return clock_join(a, b); }

void race_learn(race_line* line, uint32_t clock) { line->known = clock_join(line->known, clock); }

race_launch race_begin(race_line* line, uint32_t name, uint32_t where, uint32_t device) {
  if (++line->launches >= RACE_LAUNCHES) race_lose(RACE_LOST_LAUNCHES);
  return (race_launch){.stream = line->stream % RACE_STREAMS,
                       .launch = line->launches % RACE_LAUNCHES,
                       .base = line->known,
                       .name = name,
                       .where = where,
                       .device = device};
}

void race_finish(race_line* line, const race_launch* launch) {
  line->known = clock_add(clock_join(line->known, launch->end), clock_stream(launch->stream), launch->launch);
}

static race_thread thread_of(const race_launch* l) {
  race_thread t;
  const mscclgo_emu_dim none = {0, 0, 0};
  race_block(&t, 1, l, 0, none, none);
  return t;
}

void race_touch(const race_launch* l, uint64_t at, uint64_t n, uint32_t flags, uint32_t place) {
  race_thread t = thread_of(l);
  shadow_access(&t, (void*)(uintptr_t)at, n, flags, place);
}

static race_cell* cell_of(uint64_t at) {
  int pinned;
  race_cell* c = shadow_cell((void*)(uintptr_t)at, &pinned);
  if (c) race_lock(&c->lock);
  return c;
}

void race_store(const race_launch* l, uint64_t at, uint64_t value) {
  race_thread t = thread_of(l);
  shadow_access(&t, (void*)(uintptr_t)at, sizeof(value), RACE_ATOMIC | RACE_SYSTEM | RACE_WRITE, l->name);
  race_cell* c = cell_of(at);
  if (!c) return;
  // Here too, so that a kernel sees the value together with what it releases.
  __atomic_store_n((uint64_t*)(uintptr_t)at, value, __ATOMIC_SEQ_CST);
  c->system = c->device = l->base;
  c->fenced[0] = c->fenced[1] = 0;
  c->owner = 0;
  c->value = race_digest(value);
  race_unlock(&c->lock);
}

int race_update(race_launch* l, uint32_t what, uint64_t at, uint64_t value, uint64_t* old) {
  race_thread t = thread_of(l);
  shadow_access(&t, (void*)(uintptr_t)at, sizeof(value), RACE_ATOMIC | RACE_SYSTEM | RACE_WRITE, l->name);
  race_cell* c = cell_of(at);
  if (!c) return 0;
  const mscclgo_emu_atomic w = {
      .at = (void*)(uintptr_t)at, .value = value, .what = what, .size = sizeof(value)};
  int writes;
  uint64_t wrote = 0;
  *old = race_operate(&w, &wrote, &writes);
  sync_refresh(c, *old);
  if (what == MSCCLGO_EMU_EXCHANGE) race_publish(&l->end, c->system);
  c->system = c->device = clock_join(c->system, l->base);  // a release sequence goes on
  c->owner = 0;
  c->value = race_digest(wrote);
  race_unlock(&c->lock);
  return 1;
}

void race_await(race_launch* l, uint64_t at, uint64_t value) {
  race_cell* c = cell_of(at);
  if (!c) return;
  race_publish(&l->end,
               c->value == race_digest(value) ? c->system : __atomic_load_n(&race->hosts, __ATOMIC_ACQUIRE));
  race_unlock(&c->lock);
}

uint32_t race_host_now(void) {
  pthread_mutex_lock(&mutex);
  host.known = clock_join(host.known, __atomic_load_n(&race_mailbox, __ATOMIC_ACQUIRE));
  const uint32_t clock = host.known;
  pthread_mutex_unlock(&mutex);
  return clock;
}

void race_host_learn(uint32_t clock) {
  pthread_mutex_lock(&mutex);
  host.known = clock_join(host.known, clock);
  race_publish(&race->hosts, host.known);
  pthread_mutex_unlock(&mutex);
}

void race_host_meet(void) { race_host_learn(__atomic_load_n(&race->hosts, __ATOMIC_ACQUIRE)); }

void race_host_touch(uint64_t at, uint64_t n, uint32_t flags, uint32_t name, uint32_t where, uint32_t place) {
  pthread_mutex_lock(&mutex);
  race_learn(&host, __atomic_load_n(&race_mailbox, __ATOMIC_ACQUIRE));
  const race_launch l = race_begin(&host, name, where, 0);
  race_touch(&l, at, n, flags, place);
  race_finish(&host, &l);
  race_publish(&race->hosts, host.known);
  pthread_mutex_unlock(&mutex);
}

// queued begins what a proxy's thread has a stream do: after the triggers that kernels have
// pushed, and what the host knows.
static race_launch queued(race_line* line) {
  race_learn(line, race_host_now());
  return race_begin(line, line->copy, line->by, 0);
}

void race_queue_copy(race_line* line, uint64_t dst, uint64_t src, uint64_t n) {
  const race_launch l = queued(line);
  race_thread t = thread_of(&l);
  shadow_access(&t, (void*)(uintptr_t)src, n, RACE_READ, line->copy);
  shadow_access(&t, (void*)(uintptr_t)dst, n, RACE_WRITE, line->copy);
  race_finish(line, &l);
  race_publish(&race->hosts, line->known);
}

void race_queue_store(race_line* line, uint64_t dst, uint64_t value) {
  const race_launch l = queued(line);
  race_store(&l, dst, value);
  race_finish(line, &l);
}
