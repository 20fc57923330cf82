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
#include "history.h"
#include "word.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static race_sequence host;

race_sequence race_new_sequence(void) {
  race_sequence l = {.stream = __atomic_fetch_add(&race->streams, 1, __ATOMIC_RELAXED)};
  if (l.stream >= RACE_STREAMS) race_lose(RACE_LOST_LAUNCHES);
  return l;
}

uint32_t race_both(uint32_t a, uint32_t b) { return clock_join(a, b); }

void race_learn(race_sequence* sequence, uint32_t clock) {
  sequence->known = clock_join(sequence->known, clock);
}

race_launch race_begin(race_sequence* sequence, uint32_t name, uint32_t where, uint32_t device) {
  if (++sequence->launches >= RACE_LAUNCHES) race_lose(RACE_LOST_LAUNCHES);
  return (race_launch){.stream = sequence->stream % RACE_STREAMS,
                       .launch = sequence->launches % RACE_LAUNCHES,
                       .base = sequence->known,
                       .name = name,
                       .where = where,
                       .device = device};
}

void race_finish(race_sequence* sequence, const race_launch* launch) {
  sequence->known =
      clock_add(clock_join(sequence->known, launch->end), clock_stream(launch->stream), launch->launch);
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

// cell_for is cell_of for a write that releases a clock. A host that polls sees the value as soon as it
// is there, whoever holds the lock: so the host is told first.
static race_cell* cell_for(uint64_t at, uint32_t released) {
  int pinned;
  if (!shadow_cell((void*)(uintptr_t)at, &pinned)) return NULL;
  if (pinned) race_publish(&race_mailbox, released);
  race_cell* c = cell_of(at);
  history_make(c);
  return c;
}

void race_store(const race_launch* l, uint64_t at, uint64_t value, uint32_t place) {
  race_thread t = thread_of(l);
  shadow_access(&t, (void*)(uintptr_t)at, sizeof(value), RACE_ATOMIC | RACE_SYSTEM | RACE_WRITE, place);
  race_cell* c = cell_for(at, l->base);
  if (!c) return;
  sync_refresh(c, race_word_at((void*)(uintptr_t)at, sizeof(value)));
  // Here too, so that a kernel sees the value together with what it releases.
  __atomic_store_n((uint64_t*)(uintptr_t)at, value, __ATOMIC_SEQ_CST);
  sync_tell(c, l->base);
  c->value = race_digest(value);
  history_write(c, sizeof(value), value, t.actor, t.time);
  race_unlock(&c->lock);
}

int race_update(race_launch* l, uint32_t what, uint64_t at, uint64_t value, uint64_t* old) {
  race_thread t = thread_of(l);
  shadow_access(&t, (void*)(uintptr_t)at, sizeof(value), RACE_ATOMIC | RACE_SYSTEM | RACE_WRITE, l->name);
  race_cell* c = cell_for(at, l->base);
  if (!c) return 0;
  const mscclgo_emu_atomic w = {
      .at = (void*)(uintptr_t)at, .value = value, .what = what, .size = sizeof(value)};
  int writes;
  uint64_t wrote = 0;
  *old = race_operate(&w, &wrote, &writes);
  sync_refresh(c, *old);
  if (what == MSCCLGO_EMU_EXCHANGE) race_publish(&l->end, c->told[0]);
  sync_tell(c, clock_join(c->told[0], l->base));  // a release sequence goes on
  c->value = race_digest(wrote);
  history_write(c, sizeof(value), wrote, t.actor, t.time);
  race_unlock(&c->lock);
  return 1;
}

static uint64_t now_at(race_cell* c, uint64_t at) {
  const uint64_t now = race_word_at((void*)(uintptr_t)at, sizeof(now));
  sync_refresh(c, now);
  return now;
}

void race_expect(uint64_t at) {
  race_cell* c = cell_of(at);
  if (!c) return;
  history_expect(c, sizeof(uint64_t), now_at(c, at));
  race_unlock(&c->lock);
}

void race_await(race_launch* l, uint64_t at, uint64_t value, int equal) {
  race_cell* c = cell_of(at);
  if (!c) return;
  const race_thread t = {.actor = ~0u, .known = l->base};
  history_expect(c, sizeof(value), now_at(c, at));
  const race_cell* found = history_found(&t, c, value, equal);
  race_publish(&l->end, (found ? found : c)->told[0]);
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

// Pushed has, by an entry's number, a part of that and the place of the store that wrote it last.
enum { PUSHED = 1 << 14, ENTRY_WORDS = 4 };
static uint64_t pushed[PUSHED];

static uint64_t* pushed_at(const void* at, uint32_t* number) {
  const uint64_t entry = (uint64_t)(uintptr_t)at / (ENTRY_WORDS * sizeof(uint64_t));
  *number = (uint32_t)(entry / PUSHED);
  return &pushed[entry % PUSHED];
}

void race_pushed(const void* at, race_place place) {
  uint32_t number;
  uint64_t* p = pushed_at(at, &number);
  __atomic_store_n(p, (uint64_t)number << 32 | place, __ATOMIC_RELAXED);
}

// A thread that finds a trigger has seen the last word of its entry. The store of that word, and what it
// releases, are under its cell's lock (sync_atomic), and its place is noted before; so both are here.
race_asked race_who_asks(const void* entry) {
  uint32_t number;
  const uint64_t found = __atomic_load_n(pushed_at(entry, &number), __ATOMIC_RELAXED);
  const uint64_t* last = (const uint64_t*)entry + ENTRY_WORDS - 1;
  race_cell* c = cell_of((uint64_t)(uintptr_t)last);
  if (!c) return (race_asked){0, 0};
  const uint64_t value = __atomic_load_n(last, __ATOMIC_SEQ_CST);
  const int known = c->value == race_digest(value) && found >> 32 == number;
  const race_asked asked = {known ? (race_place)found : 0, c->told[0]};
  race_unlock(&c->lock);
  return asked;
}

// What the hosts of this process knew when handlers of triggers had returned: what is served later, comes
// later.
static uint32_t handled;

void race_host_handled(void) { race_publish(&handled, race_host_now()); }

// Clocks and places are those of one arena.
void race_host_start(void) {
  host = race_new_sequence();
  handled = 0;
  memset(pushed, 0, sizeof(pushed));
}

// queued begins what a proxy has a transport do: after what the trigger's thread released with it, after
// handlers, and after what the sequence does already; or if nobody knows who asked, after all that kernels
// have told the host.
static race_launch queued(race_sequence* sequence, const race_asked* asked) {
  race_learn(sequence, asked->place ? asked->known : race_host_now());
  race_learn(sequence, __atomic_load_n(&handled, __ATOMIC_ACQUIRE));
  return race_begin(sequence, sequence->copy, sequence->by, 0);
}

static void finish_queued(race_sequence* sequence, const race_launch* l) {
  race_finish(sequence, l);
  race_publish(&race->hosts, sequence->known);  // what learns of it from a host comes after it
}

void race_queue_copy(race_sequence* sequence, const void* trigger, uint64_t dst, uint64_t src, uint64_t n) {
  const race_asked asked = race_who_asks(trigger);
  const race_launch l = queued(sequence, &asked);
  race_thread t = thread_of(&l);
  const race_place place = asked.place ? asked.place : sequence->copy;
  shadow_access(&t, (void*)(uintptr_t)src, n, RACE_READ, place);
  shadow_access(&t, (void*)(uintptr_t)dst, n, RACE_WRITE, place);
  finish_queued(sequence, &l);
}

void race_queue_store(race_sequence* sequence, const void* trigger, uint64_t dst, uint64_t value) {
  const race_asked asked = race_who_asks(trigger);
  const race_launch l = queued(sequence, &asked);
  race_store(&l, dst, value, asked.place ? asked.place : sequence->copy);
  race_finish(sequence, &l);
}

// Goroutines may have had the stream work too, of which hosts do not know yet.
void race_queue_mark(race_sequence* sequence) { race_publish(&race->hosts, sequence->known); }

void race_queued(race_sequence* sequence, race_asked asked, uint64_t at, uint64_t n, uint32_t flags) {
  const race_launch l = queued(sequence, &asked);
  race_touch(&l, at, n, flags, asked.place);
  finish_queued(sequence, &l);
  race_host_learn(sequence->known);  // at once, though only a flush tells it: nobody sees those of hosts
}

static uint64_t* sent_at(race_route w, uint32_t* part) {
  uint64_t h = ((uint64_t)w.from << 32 | w.to) * 0x9e3779b97f4a7c15ull;
  h = (h ^ h >> 29 ^ w.memory) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 32 ^ w.offset) * 0x94d049bb133111ebull;
  h ^= h >> 31;
  *part = (uint32_t)(h >> 32);
  return &race->sent[h % RACE_SENT];
}

void race_sent(race_route w, race_place place) {
  uint32_t part;
  uint64_t* s = sent_at(w, &part);
  __atomic_store_n(s, (uint64_t)part << 32 | place, __ATOMIC_RELEASE);
}

race_place race_arrived(race_route w) {
  uint32_t part;
  uint64_t* at = sent_at(w, &part);
  uint64_t s = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  // It counts once: what comes here later may be of another sequence.
  const int found =
      s && s >> 32 == part && __atomic_compare_exchange_n(at, &s, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  return found ? (race_place)s : 0;
}
