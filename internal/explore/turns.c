// turns.c: who has the turn.
//
// Only whoever has the turn changes anything here, but for what ends the exploration, so that
// nothing is locked: the semaphore on which a party waits for its turn orders memory.
#define _GNU_SOURCE
#include "turns.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

enum {
  STEP_TIME = 100,         // nanoseconds of the clock
  READS_OF_A_POLL = 512,   // after so many without a write a thread is taken to poll
  POLLS_IN_VAIN = 100000,  // by all that can, before the run is given up
  POLLS_TO_LOOK = 1024,    // after so many all look again: a host that polls may have written
  SHORT_WAITS = 100,       // for what has no turn, until they get longer
  SHORT_WAIT = 100,        // microseconds
  LONG_WAIT = 10000,       //
  LONGEST_WAIT = 60,       // seconds in all, more than a wait in a kernel may take
  MOST_CHANGES = 4,        // of priorities
};

static struct {
  explore_plan plan;
  explore_outcome out;
  uint64_t random;

  explore_party** active;  // that may have a turn
  uint32_t active_count, active_room;
  explore_party* all;  // for the lock, and to free
  explore_launch* launches;
  pthread_mutex_t lock;  // guards all, and what over does

  _Atomic int over, nobody;
  _Atomic int outside;  // something without a turn writes
  int started;
  uint64_t time, writes, events;
  uint64_t polls;          // in vain, by parties that may go on
  uint64_t polled_writes;  // when they began
  explore_who polled;
  // Waits for what has no turn, and their microseconds, since so many writes.
  uint64_t waits, waited, waited_writes;

  uint64_t ages;  // random numbers of their own, so that the schedule is that without old values
  uint32_t aged;  // how many of 256 loads that may get an old value do
  uint32_t stay;  // EXPLORE_RANDOM: of 256, how often the turn stays
  uint64_t change[MOST_CHANGES];
  uint32_t changes, changed;
  uint32_t quantum, left;

  explore_step* trace;
  explore_switch* switches;
} x;

// Random numbers (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static uint64_t draw_from(uint64_t* state) { return mix(*state += 0x9e3779b97f4a7c15u); }
static uint64_t draw(void) { return draw_from(&x.random); }

// Threads and where they are kept.

static explore_who who_of(const explore_party* p, uint32_t thread) { return p->who | thread; }

static void set_ready(explore_party* p, uint32_t thread) {
  p->thread[thread].state = THREAD_READY;
  p->ready[p->ready_count++] = (uint16_t)thread;
}

static void take_ready(explore_party* p, uint32_t index) {
  p->thread[p->ready[index]].state = THREAD_HELD;
  p->ready[index] = p->ready[--p->ready_count];
}

static uint64_t now_of(const explore_thread* t) { return t->state == THREAD_EVENT ? x.events : x.writes; }

// A look is not one step: what was written during it may have come too late for its first part.
static void set_spinning(explore_party* p, uint32_t thread, explore_state state) {
  explore_thread* t = &p->thread[thread];
  t->state = (uint8_t)state;
  t->looks = 1;
  t->seen = state == THREAD_LOOKS && p->launch ? t->resumed : now_of(t);
  p->spin[(p->spin_head + p->spin_count++) % p->threads] = (uint16_t)thread;
  p->woken = 0;
  if (t->old) x.writes++;  // what it has not seen yet comes to it, as if it were written now
  t->old = 0;
}

// unspin has the thread that has waited for longest go on.
static void unspin(explore_party* p) {
  const uint32_t thread = p->spin[p->spin_head];
  p->spin_head = (p->spin_head + 1) % p->threads;
  p->spin_count--;
  set_ready(p, thread);
}

// wake has threads look again for which something has changed, and reports whether any thread
// of the party can go on.
static int wake(explore_party* p) {
  if (p->spin_count && p->woken != x.writes + x.events) {
    p->woken = x.writes + x.events;
    for (uint32_t n = p->spin_count; n; n--) {
      const uint32_t thread = p->spin[p->spin_head];
      const explore_thread* t = &p->thread[thread];
      if (t->seen != now_of(t)) {
        unspin(p);
        continue;
      }
      p->spin_head = (p->spin_head + 1) % p->threads;
      p->spin[(p->spin_head + p->spin_count - 1) % p->threads] = (uint16_t)thread;
    }
  }
  return p->ready_count > 0;
}

// Parties.

static explore_party* party_new(explore_who who, const char* name) {
  explore_party* p = calloc(1, sizeof(*p));
  if (!p) return NULL;
  p->who = who;
  p->name = name;
  sem_init(&p->turn, 0, 0);
  pthread_mutex_lock(&x.lock);
  p->next = x.all;
  x.all = p;
  pthread_mutex_unlock(&x.lock);
  return p;
}

static int party_room(explore_party* p, uint32_t threads) {
  p->threads = p->live = threads;
  p->thread = calloc(threads, sizeof(*p->thread) + 2 * sizeof(*p->ready));
  if (!p->thread) return 0;
  p->ready = (uint16_t*)(p->thread + threads);
  p->spin = p->ready + threads;
  p->priority = mix(x.plan.seed ^ mix(p->who)) | (uint64_t)1 << 63;
  for (uint32_t i = 0; i < threads; i++)
    p->thread[i].priority = mix(x.plan.seed ^ mix(who_of(p, i) + 1)) | (uint64_t)1 << 63;
  return 1;
}

static int activate(explore_party* p) {
  if (x.active_count == x.active_room) {
    const uint32_t room = x.active_room ? 2 * x.active_room : 64;
    explore_party** more = realloc(x.active, room * sizeof(*more));
    if (!more) return 0;
    x.active = more;
    x.active_room = room;
  }
  p->at = x.active_count;
  x.active[x.active_count++] = p;
  return 1;
}

static void deactivate(explore_party* p) {
  x.active[p->at] = x.active[--x.active_count];
  x.active[p->at]->at = p->at;
}

// The end.

static void end(const char* text) {
  pthread_mutex_lock(&x.lock);
  if (!x.over) {
    snprintf(x.out.text, sizeof(x.out.text), "%s", text);
    x.over = 1;
    for (explore_party* p = x.all; p; p = p->next) sem_post(&p->turn);
  }
  pthread_mutex_unlock(&x.lock);
}

void explore_over(const char* text) { end(text); }
int explore_is_over(void) { return x.over; }
int explore_idle(void) { return x.nobody; }

static void give_up(const char* why) {
  char text[EXPLORE_TEXT];
  explore_report(text, sizeof(text), why, x.active, x.active_count);
  end(text);
}

// Choices.

typedef struct choice {
  explore_party* party;
  uint32_t index;  // in its list of ready threads
} choice;

static explore_who chosen(choice c) { return c.party ? who_of(c.party, c.party->ready[c.index]) : 0; }

// after returns the thread of a party that comes next behind a number, in a circle.
static choice after(explore_party* p, uint32_t thread) {
  uint32_t best = 0, least = ~0u;
  for (uint32_t i = 0; i < p->ready_count; i++) {
    const uint32_t distance = (p->ready[i] + p->threads - thread - 1) % p->threads;
    if (distance < least) least = distance, best = i;
  }
  return (choice){p, best};
}

// following returns the party behind another, in a circle, of which a thread can go on.
static explore_party* following(explore_who who) {
  explore_party* best = NULL;
  uint64_t least = ~(uint64_t)0;
  for (uint32_t i = 0; i < x.active_count; i++) {
    explore_party* p = x.active[i];
    const uint64_t distance = p->who - who - 1;
    if (distance <= least && wake(p)) least = distance, best = p;
  }
  return best;
}

// own is the thread that has the turn. point has put it among the parties that can go on.
static choice own(explore_party* p) {
  uint32_t i = p->ready_count - 1;
  while (p->ready[i] != p->current) i--;
  return (choice){p, i};
}

// usual is what EXPLORE_FIXED does: the thread goes on, or another of its block, or of the next
// party.
static choice usual(explore_party* p, int stays) {
  if (stays) return own(p);
  if (p && wake(p)) return after(p, p->current);
  explore_party* other = following(p ? p->who : 0);
  return other ? after(other, other->current) : (choice){NULL, 0};
}

static choice at_random(explore_party* p, int stays) {
  if (stays && (draw() & 0xff) < x.stay) return own(p);
  uint32_t able = 0;
  for (uint32_t i = 0; i < x.active_count; i++) able += wake(x.active[i]) != 0;
  if (able == 0) return (choice){NULL, 0};
  uint32_t n = (uint32_t)(draw() % able);
  for (uint32_t i = 0;; i++) {
    explore_party* q = x.active[i];
    if (q->ready_count && n-- == 0) return (choice){q, (uint32_t)(draw() % q->ready_count)};
  }
}

static choice by_priority(explore_party* p) {
  while (p && p->thread && x.changed < x.changes && x.out.steps >= x.change[x.changed]) {
    const uint64_t low = x.changes - x.changed++;  // below all at first, each below the last
    if (draw() & 1) {
      p->priority = low;
    } else {
      p->thread[p->current].priority = low;
    }
  }
  explore_party* best = NULL;
  for (uint32_t i = 0; i < x.active_count; i++) {
    explore_party* q = x.active[i];
    if (wake(q) && (!best || q->priority > best->priority)) best = q;
  }
  choice c = {best, 0};
  for (uint32_t i = 1; best && i < best->ready_count; i++) {
    if (best->thread[best->ready[i]].priority > best->thread[best->ready[c.index]].priority) c.index = i;
  }
  return c;
}

static choice in_turn(explore_party* p, int stays) {
  if (stays && x.left > 0) {
    x.left--;
    return own(p);
  }
  x.left = x.quantum;
  explore_party* other = following(p ? p->who : 0);
  return other ? after(other, other->current) : (choice){NULL, 0};
}

// count_of returns how many points the thread that has the turn has had; a block that has left
// has none.
static uint64_t count_of(const explore_party* p) { return p && p->thread ? p->thread[p->current].count : 0; }

// told returns the plan's switch of a thread, or its load of an old value, after so many points,
// or NULL.
static const explore_switch* told(explore_who from, uint64_t count, int old) {
  uint64_t low = 0, high = x.plan.switch_count;
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    const explore_switch* s = &x.plan.switches[middle];
    if (s->from < from || (s->from == from && s->count < count)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < x.plan.switch_count; low++) {
    const explore_switch* s = &x.plan.switches[low];
    if (s->from != from || s->count != count) break;
    if ((s->age != 0) == old) return s;
  }
  return NULL;
}

// as_told looks for a switch away from a thread.
static choice as_told(explore_party* p, int stays) {
  const explore_switch* s = told(p ? who_of(p, p->current) : 0, count_of(p), 0);
  if (!s) return usual(p, stays);
  for (uint32_t i = 0; i < x.active_count; i++) {
    explore_party* q = x.active[i];
    if ((s->to & ~(uint64_t)WHO_THREAD_MASK) != q->who || !wake(q)) continue;
    for (uint32_t j = 0; j < q->ready_count; j++) {
      if (q->ready[j] == (s->to & WHO_THREAD_MASK)) return (choice){q, j};
    }
  }
  return usual(p, stays);
}

// polling returns a thread that polls, perhaps for something else than memory, as nobody else
// can go on.
static choice polling(void) {
  if (x.polled_writes != x.writes) x.polls = 0;
  x.polled_writes = x.writes;
  if (++x.polls > POLLS_IN_VAIN) return (choice){NULL, 0};
  if (x.polls % POLLS_TO_LOOK == 0) x.polled_writes = ++x.writes;
  explore_party* best = NULL;
  uint64_t least = ~(uint64_t)0;
  for (uint32_t i = 0; i < x.active_count; i++) {
    explore_party* p = x.active[i];
    const uint64_t distance = p->who - x.polled - 1;
    if (distance > least) continue;
    for (uint32_t j = 0; j < p->spin_count; j++) {
      if (p->thread[p->spin[(p->spin_head + j) % p->threads]].state != THREAD_POLLS) continue;
      least = distance, best = p;
      break;
    }
  }
  if (!best) return (choice){NULL, 0};
  x.polled = best->who;
  x.time += (uint64_t)1000 << (x.polls / 64 < 10 ? x.polls / 64 : 10);
  // Threads before it look once more in vain.
  while (best->thread[best->spin[best->spin_head]].state != THREAD_POLLS) unspin(best);
  unspin(best);
  return (choice){best, best->ready_count - 1};
}

static choice choose(explore_party* p, int stays) {
  switch (x.plan.scheduler) {
    case EXPLORE_RANDOM:
      return at_random(p, stays);
    case EXPLORE_PCT:
      return by_priority(p);
    case EXPLORE_ROUND_ROBIN:
      return in_turn(p, stays);
    default:
      return as_told(p, stays);
  }
}

// noted keeps a choice that is not the usual one.
static void noted(explore_who from, uint64_t count, choice c, uint32_t point, const void* code) {
  if (x.out.switch_count == EXPLORE_SWITCHES) return;
  x.switches[x.out.switch_count++] =
      (explore_switch){.from = from, .to = chosen(c), .count = count, .code = code, .point = point};
}

// waiting has all look again after some time, in which something without a turn may have
// written.
static choice waiting(explore_party* p) {
  if (x.waited_writes != x.writes) x.waits = x.waited = 0;
  if (x.waited > LONGEST_WAIT * (uint64_t)1000000) return (choice){NULL, 0};
  const uint32_t wait = x.waits++ < SHORT_WAITS ? SHORT_WAIT : LONG_WAIT;
  usleep(wait);
  x.waited += wait;
  x.time += wait * (uint64_t)1000;
  x.events++;
  x.waited_writes = ++x.writes;
  return choose(p, 0);
}

// only_serve reports whether nobody is left but proxies, which have nothing to do.
static int only_serve(void) {
  for (uint32_t i = 0; i < x.active_count; i++)
    if (!x.active[i]->serves) return 0;
  return 1;
}

// step keeps what a thread is about to do.
static void step(explore_party* p, uint32_t point, const void* code) {
  const uintptr_t base = code && p->launch ? (uintptr_t)p->base : 0;
  const uint32_t place = (uint32_t)((uintptr_t)code - base);
  const explore_step s = {who_of(p, p->current), place, point};
  const uint64_t n = x.out.steps++;
  x.time += STEP_TIME;
  if (x.out.kept < EXPLORE_STEPS) x.trace[x.out.kept++] = s;
  x.out.digest = mix(x.out.digest ^ s.who) + mix((uint64_t)place << 8 | point);
  if (x.plan.expected && n < EXPLORE_STEPS && !x.out.diverged) {
    explore_step e = {0};
    if (n < x.plan.expected_count) e = x.plan.expected[n];
    if (e.who != s.who || e.place != s.place || e.point != s.point) {
      x.out.diverged = 1;
      x.out.at = n;
      x.out.expected = e;
      x.out.did = s;
      x.out.code = code;
      end("the run differs from the one before");
    }
  }
  if (x.out.steps == x.plan.most) give_up("the run has not ended");
}

static int wait_turn(explore_party* p) {
  if (!x.over)
    while (sem_wait(&p->turn) && errno == EINTR) {
    }
  return x.over ? -1 : (int)p->current;
}

// pass has another thread go on, or the same. waits says whether the caller wants the turn
// again.
static int pass(explore_party* p, uint32_t point, const void* code, int stays, int waits) {
  if (x.over) return -1;
  explore_who from = 0;
  uint64_t count = 0;
  if (p) {
    from = who_of(p, p->current);
    count = count_of(p);
  }
  choice c = choose(p, stays);
  if (c.party) {
    if (x.plan.scheduler == EXPLORE_FIXED || chosen(c) != from || !stays) {
      const choice u = usual(p, stays);
      if (chosen(u) != chosen(c)) noted(from, count, c, point, code);
    }
  } else if (only_serve()) {
    x.nobody = 1;
    end("");
    return -1;
  } else {
    c = x.outside ? waiting(p) : polling();
    if (x.over) return -1;
  }
  if (!c.party) {
    if (x.polls > POLLS_IN_VAIN) {
      give_up("nothing has been written any more, and threads poll in vain");
    } else {
      give_up("deadlock, nothing can go on");
    }
    return -1;
  }
  explore_party* q = c.party;
  const uint32_t thread = q->ready[c.index];
  take_ready(q, c.index);
  q->current = thread;
  if (q->thread[thread].looks) {
    q->thread[thread].looks = 0;
    q->thread[thread].resumed = x.writes;
  }
  if (q == p && waits) return (int)thread;
  sem_post(&q->turn);
  return waits ? wait_turn(p) : -1;
}

void explore_start(void) {
  x.started = 1;
  pass(NULL, EXPLORE_BEGIN, NULL, 0, 0);
}

// Hosts and streams.

static explore_party* join(explore_who who, const char* name, int rests) {
  explore_party* p = party_new(who, name);
  if (!p || !party_room(p, 1) || (!rests && !activate(p))) {
    end("out of memory");
    return NULL;
  }
  if (!rests) set_ready(p, 0);
  return p;
}

explore_party* explore_join_host(uint32_t rank) {
  return join((uint64_t)WHO_IS_HOST << WHO_KIND | (uint64_t)rank << WHO_RANK, "the host", 0);
}

static explore_who who_of_number(uint64_t kind, uint32_t rank, uint32_t number) {
  return kind << WHO_KIND | (uint64_t)rank << WHO_RANK | (uint64_t)(number & 1023) << WHO_STREAM;
}

explore_party* explore_join_stream(uint32_t rank, uint32_t number) {
  return join(who_of_number(WHO_IS_STREAM, rank, number), "a stream", 1);
}

explore_party* explore_join_proxy(uint32_t rank, uint32_t number) {
  explore_party* p = join(who_of_number(WHO_IS_PROXY, rank, number), "a proxy", 0);
  if (p) p->serves = 1;
  return p;
}

void explore_await(explore_party* p) { wait_turn(p); }

void explore_step_of(explore_party* p, explore_point point, uint32_t place) {
  if (x.over) return;
  x.writes++;
  x.events++;
  step(p, point, (void*)(uintptr_t)place);
  p->thread[0].count++;
  set_ready(p, 0);
  pass(p, point, (void*)(uintptr_t)place, 1, 1);
}

void explore_waits(explore_party* p, uint32_t place, int memory) {
  if (x.over) return;
  step(p, EXPLORE_WAIT, (void*)(uintptr_t)place);
  p->thread[0].count++;
  set_spinning(p, 0, memory == 2 ? THREAD_POLLS : memory ? THREAD_LOOKS : THREAD_EVENT);
  pass(p, EXPLORE_WAIT, (void*)(uintptr_t)place, 0, 1);
}

void explore_event(void) {
  if (x.over) return;
  x.events++;
  x.writes++;
}

void explore_rest(explore_party* p) {
  if (x.over) return;
  x.events++;
  x.writes++;
  p->thread[0].count++;
  deactivate(p);
  pass(p, EXPLORE_END, NULL, 0, 0);
}

void explore_wake(explore_party* p) {
  if (x.over) return;
  if (!activate(p)) {
    end("out of memory");
    return;
  }
  set_ready(p, 0);
}

void explore_outside(void) { x.outside = 1; }

// Kernels.

// admit has blocks of a device take part for which it has room, the oldest launch's first.
static void admit(const void* device) {
  for (explore_launch* l = x.launches; l; l = l->next) {
    if (l->device != device) continue;
    while (l->begun < l->blocks && *l->resident < l->room) {
      explore_party* p = l->party[l->begun];
      if (!party_room(p, l->threads) || !activate(p)) {
        end("out of memory");
        return;
      }
      for (uint32_t i = 0; i < l->threads; i++) set_ready(p, i);
      p->current = l->threads - 1;  // so that its first thread comes next
      l->begun++;
      ++*l->resident;
    }
    if (l->begun < l->blocks) return;
  }
}

static explore_launch* launch(explore_party* stream, const void* device, uint32_t room, const char* kernel,
                              const void* code, uint64_t blocks, uint32_t threads) {
  if (x.over) return NULL;
  explore_launch* l = calloc(1, sizeof(*l) + blocks * sizeof(*l->party));
  if (!l) {
    end("out of memory");
    return NULL;
  }
  snprintf(l->kernel, sizeof(l->kernel), "%s", kernel);
  l->device = device;
  l->room = room;
  l->blocks = l->left = blocks;
  l->threads = threads;
  l->resident = &l->own;
  const uint64_t number = stream->launches++ & 0xffff;
  const explore_who who =
      (stream->who ^ (uint64_t)(WHO_IS_STREAM ^ WHO_IS_BLOCK) << WHO_KIND) | number << WHO_LAUNCH;
  for (uint64_t i = 0; i < blocks; i++) {
    if (!(l->party[i] = party_new(who | (i & 0xffff) << WHO_BLOCK, l->kernel))) {
      end("out of memory");
      free(l);
      return NULL;
    }
    l->party[i]->launch = l;
    l->party[i]->base = code;
  }
  explore_launch** last = &x.launches;
  for (; *last; last = &(*last)->next) {
    if ((*last)->device == device) l->resident = (*last)->resident;
  }
  *last = l;
  admit(device);
  return l;
}

static void finish(explore_party* stream, explore_launch* l) {
  while (l->left && !x.over) explore_waits(stream, 0, 0);
}

static int running(const explore_launch* l) { return l->left > 0 && !x.over; }

static explore_party* block_of(explore_launch* l, uint64_t number) { return l->party[number]; }

static int enter(explore_party* p) { return wait_turn(p); }

static void ready(explore_party* p, uint32_t thread) { set_ready(p, thread); }

static void ended(explore_party* p) { p->live--; }

// Lanes that look for packets together vote on what they have seen. So what a lane that looks waits
// for is not memory alone: one that has seen less, or more, waits for its vote.

// call_lanes has the lanes look again that the current thread's warp function may wait for.
static void call_lanes(explore_party* p) {
  p->calls++;
  for (uint32_t n = p->spin_count; n; n--) {
    const uint32_t thread = p->spin[p->spin_head];
    if (thread / MSCCLGO_EMU_WARP == p->current / MSCCLGO_EMU_WARP) {
      unspin(p);
      continue;
    }
    p->spin_head = (p->spin_head + 1) % p->threads;
    p->spin[(p->spin_head + p->spin_count - 1) % p->threads] = (uint16_t)thread;
  }
}

// called reports whether a lane waits in a warp function for the current thread, which has looked
// in vain, since that looked there last.
static int called(explore_party* p) {
  explore_thread* t = &p->thread[p->current];
  if (t->calls == p->calls) return 0;
  t->calls = p->calls;
  const uint32_t first = p->current / MSCCLGO_EMU_WARP * MSCCLGO_EMU_WARP;
  for (uint32_t i = first; i < first + MSCCLGO_EMU_WARP && i < p->threads; i++) {
    const explore_thread* lane = &p->thread[i];
    if (i != p->current && lane->state == THREAD_HELD && lane->point == EXPLORE_WARP) return 1;
  }
  return 0;
}

static int next(explore_party* p, explore_point point, const void* code) {
  if (x.over) return -1;
  step(p, point, code);
  explore_thread* t = &p->thread[p->current];
  t->count++;
  t->point = (uint8_t)point;
  if (p->live == 0) return -1;
  if (point == EXPLORE_WARP) call_lanes(p);
  return pass(p, point, code, 0, 1);
}

static int point(explore_party* p, explore_point what, const void* code) {
  if (x.over) return -1;
  step(p, what, code);
  explore_thread* t = &p->thread[p->current];
  t->count++;
  if (what == EXPLORE_WRITE || what == EXPLORE_UPDATE) {
    t->reads = 0;
  } else if (++t->reads > READS_OF_A_POLL) {
    t->reads = 0;
    set_spinning(p, p->current, THREAD_POLLS);
    t->looks = 0;  // it may be within a look, whose beginning counts
    return pass(p, what, code, 0, 1);
  }
  set_ready(p, p->current);
  return pass(p, what, code, 1, 1);
}

static int spins(explore_party* p, explore_point what, const mscclgo_emu_wait* wait, const void* code) {
  if (x.over) return -1;
  step(p, what, code);
  explore_thread* t = &p->thread[p->current];
  t->count++;
  t->point = (uint8_t)what;
  if (wait) t->wait = *wait;
  if (called(p)) {
    set_ready(p, p->current);
  } else {
    set_spinning(p, p->current, wait ? THREAD_LOOKS : THREAD_POLLS);
  }
  return pass(p, what, code, 0, 1);
}

// What has no turn reads memory while a load of a kernel does, so that then no load gets old values.
static uint32_t old(explore_party* p, uint32_t most, const race_old* of, const void* code) {
  if (x.over || x.outside) return 0;
  explore_thread* t = &p->thread[p->current];
  const explore_who who = who_of(p, p->current);
  uint32_t age = 0;
  if (x.plan.scheduler == EXPLORE_FIXED) {
    const explore_switch* s = told(who, t->count, 1);
    if (s) age = s->age < most ? s->age : most;
  } else if (draw_from(&x.ages) % 256 < x.aged) {
    age = 1 + (uint32_t)(draw_from(&x.ages) % most);
  }
  if (age == 0) return 0;
  step(p, EXPLORE_OLD | age << 8, code);
  t->old = 1;
  if (x.out.switch_count < EXPLORE_SWITCHES)
    x.switches[x.out.switch_count++] = (explore_switch){
        .from = who, .count = t->count, .code = code, .point = EXPLORE_OLD, .age = age, .of = *of};
  return age;
}

static void wrote(explore_party* p) {
  x.writes++;
  p->thread[p->current].resumed++;
}

static void left(explore_party* p, const char* text) {
  if (x.over) return;
  if (text) {
    end(text);
    return;
  }
  x.events++;
  x.writes++;
  explore_launch* l = p->launch;
  l->left--;
  --*l->resident;
  deactivate(p);
  free(p->thread);
  p->thread = NULL;
  p->ready_count = p->spin_count = 0;
  admit(l->device);
  pass(p, EXPLORE_END, NULL, 0, 0);
}

static const char* why(void) { return x.over ? x.out.text : NULL; }

static uint64_t clock_now(void) { return x.time; }

const explore_engine* explore_functions(void) {
  static const explore_engine engine = {launch,        running, finish, block_of, enter, ready,
                                        ended,         next,    point,  spins,    old,   wrote,
                                        explore_event, left,    why,    clock_now};
  return &engine;
}

// Runs.

int explore_begin(const explore_plan* plan) {
  explore_end();
  memset(&x, 0, sizeof(x));
  pthread_mutex_init(&x.lock, NULL);
  x.plan = *plan;
  x.random = plan->seed;
  x.time = 1;  // 0 is no time to wait.cuh
  x.trace = calloc(EXPLORE_STEPS, sizeof(*x.trace));
  x.switches = calloc(EXPLORE_SWITCHES, sizeof(*x.switches));
  if (!x.trace || !x.switches) return 0;
  x.ages = mix(~plan->seed);
  x.aged = 128u >> draw_from(&x.ages) % 5;
  x.stay = 256 - (256u >> (1 + draw() % 7));
  x.quantum = (uint32_t)(draw() % 64 >> draw() % 6);
  x.changes = 1 + (uint32_t)(draw() % MOST_CHANGES);
  for (uint32_t i = 0; i < x.changes; i++) {  // in each order of magnitude as many
    const uint64_t bound = (uint64_t)2 << draw() % 18;
    uint64_t at = bound / 2 + draw() % bound, j = i;
    for (; j && x.change[j - 1] > at; j--) x.change[j] = x.change[j - 1];
    x.change[j] = at;
  }
  return 1;
}

const explore_outcome* explore_result(void) {
  x.out.switches = x.switches;
  x.out.trace = x.trace;
  if (x.plan.expected && !x.out.diverged && !x.out.text[0] && x.out.steps < x.plan.expected_count) {
    x.out.diverged = 1;
    x.out.at = x.out.steps;
    x.out.expected = x.plan.expected[x.out.steps];
  }
  return &x.out;
}

const char* explore_kernel(explore_who who) {
  for (const explore_party* p = x.all; p; p = p->next)
    if (p->who == (who & ~(uint64_t)WHO_THREAD_MASK)) return p->name;
  return "?";
}

uint64_t explore_steps(void) { return __atomic_load_n(&x.out.steps, __ATOMIC_RELAXED); }

void explore_end(void) {
  for (explore_party* p = x.all; p;) {
    explore_party* next_party = p->next;
    sem_destroy(&p->turn);
    free(p->thread);
    free(p);
    p = next_party;
  }
  for (explore_launch* l = x.launches; l;) {
    explore_launch* next_launch = l->next;
    free(l);
    l = next_launch;
  }
  free(x.active);
  free(x.trace);
  free(x.switches);
  memset(&x, 0, sizeof(x));
}
