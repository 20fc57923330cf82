// block.c: the scheduler of a block's threads.
//
// Threads run in the order of a queue. A thread leaves the queue at a barrier or a warp
// collective and returns to it when the last one arrives. A thread that spins yields,
// which puts it at the end of the queue. A thread that ends leaves its stack to the next
// one that has not begun, so a kernel without barriers runs on one stack.
#define _GNU_SOURCE
#include "block.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"
#include "fiber.h"
#include "race/layout.h"
#include "race/word.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // since Linux 6.13
#endif

enum {
  WARPS = MSCCLGO_EMU_MAX_THREADS / MSCCLGO_EMU_WARP,
  SLAB_STACKS = 32,
  SLAB_BYTES = (SLAB_STACKS + 1) * MSCCLGO_EMU_STACK_BYTES,  // one more to align them
  MAPPED_GUARDS = 8192,
  POISON = 0xa5,  // fills __shared__ memory at first
  DYNAMIC_BYTES = (MSCCLGO_EMU_SHARED_BYTES + 0xffff) / 0x10000 * 0x10000,  // whole pages of any size
  DYNAMIC_GUARD = 1 << 20,                                                  // bytes behind them that fault
  PATIENT_ROUNDS = 256,          // of yielding the core before sleeping
  LONGEST_SLEEP = 64000,         // nanoseconds
  CROWD = 8,                     // blocks a core, of more than which one that waits sleeps longer
  WAITING_SHARE = 4,             // of the cores' time, the part that is for looking, as 1 / WAITING_SHARE
  LONGEST_IN_CROWD = 400000000,  // nanoseconds
  LONGEST_NAP = 10000000,        // nanoseconds between looks at whether there is still a reason to wait
  WAKING = 10000,                // nanoseconds of a core that a sleep takes at least
};

// The top of a stack.
typedef struct stack {
  fiber where;         // the fiber, while it is not running
  struct stack* next;  // in the list of stacks without a thread
  block* owner;
  mscclgo_emu_thread thread;  // last, where runtime.h looks for it
} stack;

_Static_assert(sizeof(stack) % 64 == 0, "the thread must end where the stack ends");

// Stacks that were mapped together.
typedef struct slab {
  void* mapping;
  size_t bytes;
  int guards;
  struct slab* next;
} slab;

// A thread's state in a collective of its warp, or in active_mask.
typedef struct lane {
  uint32_t mask;  // 0 while it is in no collective
  mscclgo_emu_collective what;
  uint32_t source;
  uint64_t value, result;
  uint32_t place;  // 0 while it is not in active_mask
} lane;

struct block {
  mscclgo_emu_block seen;  // the part that its threads see
  launch* launch;
  fiber scheduler;  // the OS thread's own stack
  void* running;    // the stack in use, or the last one, or null

  stack* free;
  slab* slabs;
  uint32_t stacks;
  void* (*shares)(void);  // the anchor of the module whose __shared__ memory there is
  char* dynamic;          // DYNAMIC_BYTES of dynamic shared memory and the guard, or null

  // The queue of runnable threads, by rank. A thread without a stack has not begun.
  uint16_t queue[MSCCLGO_EMU_MAX_THREADS];
  uint32_t head, runnable;
  stack* on[MSCCLGO_EMU_MAX_THREADS];

  uint32_t threads, live;  // all of the block, and the ones that have not ended

  // The barrier.
  uint8_t waiting[MSCCLGO_EMU_MAX_THREADS];
  uint32_t arrived, positive;
  uint64_t outcome;

  // The warps.
  uint32_t live_lanes[WARPS], joined_lanes[WARPS];
  lane lanes[MSCCLGO_EMU_MAX_THREADS];

  // Yields since the last progress, and rounds of nothing but yields.
  uint32_t quiet, rounds;
  // The OS thread's CPU time before the last sleep in a crowd, or 0, and what a round costs of it.
  uint64_t slept, cost;

  stall stall;

  int signalled;  // the next launch may begin, as far as this block knows

  race_thread* raced;     // what the race finder knows of each thread, or null
  const race_weak* weak;  // has loads get older values, or null
  // The load before, if the thread that made it has had the turn since.
  struct {
    const void* at;
    uint64_t size;
    uint32_t age;  // 0 for none
  } old;
  // The store that was told of last, if nothing else was since, and the first bytes that were there.
  struct {
    const void* at;
    uint64_t size;  // 0 for none
    char had[16];
  } told;
  const explore_engine* explore;  // decides which thread goes on, or null
  explore_party* party;           // the block there
  const void* place;              // where a thread last called
};

static stack* stack_of(mscclgo_emu_thread* t) { return (stack*)((char*)t - offsetof(stack, thread)); }

static block* block_of(mscclgo_emu_thread* t) { return stack_of(t)->owner; }

// The queue.

static void push(block* b, uint32_t rank) {
  if (b->explore) {
    b->explore->ready(b->party, rank);
    return;
  }
  b->queue[(b->head + b->runnable++) % MSCCLGO_EMU_MAX_THREADS] = (uint16_t)rank;
}

static uint32_t pop(block* b) {
  uint32_t rank = b->queue[b->head];
  b->head = (b->head + 1) % MSCCLGO_EMU_MAX_THREADS;
  b->runnable--;
  return rank;
}

// Stacks.

static void run_stack(void*);

// prepare makes a stack ready for a thread. The addresses of the tops of stacks differ
// only in the highest bits; starting at different distances below keeps the stacks from
// competing for the same cache lines.
static void prepare(stack* s, uint32_t turn) {
  s->where = fiber_make((char*)s - turn % 16 * 128, run_stack, s);
}

// Mapped guards of the process.
static atomic_int guards;

// guard makes the lowest page of a stack fault and returns how many mapped guards that
// took. Before Linux 6.13 a guard takes two mappings, of which a process may have 65530,
// so stacks beyond a number have no guard there. QEMU's user mode says yes to any advice, and follows none.
static int guard(void* bottom) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (madvise(bottom, page, -1) && madvise(bottom, page, MADV_GUARD_INSTALL) == 0) return 0;
  if (atomic_fetch_add(&guards, 1) < MAPPED_GUARDS && mprotect(bottom, page, PROT_NONE) == 0) return 1;
  atomic_fetch_sub(&guards, 1);
  return 0;
}

// add_stacks maps another slab.
static int add_stacks(block* b) {
  const size_t size = MSCCLGO_EMU_STACK_BYTES, bytes = SLAB_BYTES;
  slab* m = malloc(sizeof(*m));
  if (!m) return 0;
  m->mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m->mapping == MAP_FAILED) {
    free(m);
    return 0;
  }
  madvise(m->mapping, bytes, MADV_NOHUGEPAGE);
  m->bytes = bytes;
  m->guards = 0;
  m->next = b->slabs;
  b->slabs = m;
  char* first = (char*)(((uintptr_t)m->mapping + size - 1) / size * size);
  for (int i = SLAB_STACKS - 1; i >= 0; i--) {
    char* bottom = first + i * size;
    m->guards += guard(bottom);
    stack* s = (stack*)(bottom + size) - 1;
    s->owner = b;
    s->next = b->free;
    b->free = s;
    prepare(s, b->stacks++);
  }
  return 1;
}

void block_trim(block* b) {
  for (slab* m = b->slabs; m;) {
    slab* after = m->next;
    munmap(m->mapping, m->bytes);
    atomic_fetch_sub(&guards, m->guards);
    free(m);
    m = after;
  }
  b->slabs = NULL;
  b->free = NULL;
  b->running = NULL;
  b->stacks = 0;
  if (b->dynamic) munmap(b->dynamic, DYNAMIC_BYTES + DYNAMIC_GUARD);
  b->dynamic = NULL;
}

// put assigns a thread that has not begun to the stack.
static void put(block* b, stack* s, uint32_t rank) {
  const mscclgo_emu_dim d = b->seen.block_dim;
  mscclgo_emu_thread* t = &s->thread;
  memset(t, 0, sizeof(*t));
  t->block = &b->seen;
  t->index.x = rank % d.x;
  t->index.y = rank / d.x % d.y;
  t->index.z = rank / d.x / d.y;
  t->rank = rank;
  t->lane = rank % MSCCLGO_EMU_WARP;
  b->on[rank] = s;
}

// leave switches to the scheduler, unless it is what runs: it is saved only while a
// thread does.
static void leave(block* b, fiber* from) {
  if (from != &b->scheduler) fiber_switch(from, b->scheduler);
}

// starve ends a launch for which there is no memory.
static void starve(block* b, const char* what) {
  char text[sizeof(b->launch->text)];
  const mscclgo_emu_dim at = b->seen.block_index;
  snprintf(text, sizeof(text),
           "block (%u,%u,%u): out of memory: cannot allocate %s; raise the limit of the address space "
           "(ulimit -v), or launch fewer blocks and threads",
           at.x, at.y, at.z, what);
  atomic_store_explicit(&b->launch->starved, 1, memory_order_relaxed);
  launch_end(b->launch, LAUNCH_FAILED, text);
}

// settle ends what the last access of a thread with the turn began.
static void settle(block* b) {
  if (b->weak) b->weak->settle();
  b->old.age = 0;
  b->told.size = 0;
}

// go_on switches to a thread, or to the scheduler if there is no stack for it. The caller's
// fiber is saved in from.
static void go_on(block* b, fiber* from, uint32_t rank) {
  stack* s = b->on[rank];
  if (s && from == &s->where) return;  // the explorer has the caller go on
  if (!s) {
    if (!b->free && !add_stacks(b)) {
      char what[128];
      snprintf(what, sizeof(what),
               "%d KiB for stacks of %d threads, beside %u of the block's %u that have one",
               SLAB_BYTES / 1024, SLAB_STACKS, b->stacks, b->threads);
      starve(b, what);
      leave(b, from);
      return;
    }
    s = b->free;
    b->free = s->next;
    put(b, s, rank);
  }
  b->running = s;
  fiber_switch(from, s->where);
}

// go_on_with is go_on for what the explorer returns.
static void go_on_with(block* b, fiber* from, int rank) {
  if (rank < 0) {
    leave(b, from);
  } else {
    go_on(b, from, (uint32_t)rank);
  }
}

// next switches to the thread at the head of the queue, or to the scheduler if there is none.
// why is where the caller waits, for the explorer.
static void next(block* b, fiber* from, explore_point why) {
  if (b->explore) {
    settle(b);
    go_on_with(b, from, b->explore->next(b->party, why, why == EXPLORE_END ? NULL : b->place));
  } else if (b->runnable == 0) {
    leave(b, from);
  } else {
    go_on(b, from, pop(b));
  }
}

// abandon leaves a thread of a launch that has ended. The thread never runs again.
static void abandon(stack* s) {
  settle(s->owner);
  fiber_switch(&s->where, s->owner->scheduler);
  __builtin_unreachable();
}

// Barriers and collectives.

static void happened(block* b) { b->quiet = b->rounds = 0; }

// release makes the threads at the barrier runnable, in order of rank.
static void release(block* b) {
  b->outcome = (uint64_t)b->arrived << 32 | b->positive;
  if (b->launch->race) b->launch->race->barrier(b->raced, b->threads, b->place);
  b->arrived = b->positive = 0;
  for (uint32_t i = 0; i < b->threads; i++) {
    if (!b->waiting[i]) continue;
    b->waiting[i] = 0;
    push(b, i);
  }
  happened(b);
  stall_changed(&b->stall);
}

// outcome returns a lane's result of a collective of the lanes in set.
static uint64_t outcome(const lane* lanes, uint32_t self, uint32_t set) {
  const lane* me = &lanes[self];
  if (me->what == MSCCLGO_EMU_SYNC) return 0;
  if (me->what == MSCCLGO_EMU_SHUFFLE) {
    return set >> me->source & 1 ? lanes[me->source].value : me->value;
  }
  uint32_t bits = 0, r = (uint32_t)me->value;
  for (uint32_t rest = set; rest; rest &= rest - 1) {
    uint32_t i = (uint32_t)__builtin_ctz(rest), v = (uint32_t)lanes[i].value;
    if (me->what == MSCCLGO_EMU_BALLOT && lanes[i].value) bits |= 1u << i;
    if (me->what == MSCCLGO_EMU_MATCH_ANY && lanes[i].value == me->value) bits |= 1u << i;
    if (i == self) continue;
    switch (me->what) {
      case MSCCLGO_EMU_ADD:
        r += v;
        break;
      case MSCCLGO_EMU_MIN_SIGNED:
        if ((int32_t)v < (int32_t)r) r = v;
        break;
      case MSCCLGO_EMU_MAX_SIGNED:
        if ((int32_t)v > (int32_t)r) r = v;
        break;
      case MSCCLGO_EMU_MIN_UNSIGNED:
        if (v < r) r = v;
        break;
      case MSCCLGO_EMU_MAX_UNSIGNED:
        if (v > r) r = v;
        break;
      case MSCCLGO_EMU_AND:
        r &= v;
        break;
      case MSCCLGO_EMU_OR:
        r |= v;
        break;
      case MSCCLGO_EMU_XOR:
        r ^= v;
        break;
      default:
        break;
    }
  }
  return me->what == MSCCLGO_EMU_BALLOT || me->what == MSCCLGO_EMU_MATCH_ANY ? bits : r;
}

// join completes the collective of the lanes in mask if all live ones have joined it,
// and reports whether it did. The waiting lanes other than self become runnable.
static int join(block* b, uint32_t warp, uint32_t mask, uint32_t self) {
  lane* lanes = &b->lanes[warp * MSCCLGO_EMU_WARP];
  const uint32_t set = mask & b->live_lanes[warp];
  if ((b->joined_lanes[warp] & set) != set) return 0;
  for (uint32_t rest = set; rest; rest &= rest - 1) {
    if (lanes[__builtin_ctz(rest)].mask != mask) return 0;
  }
  for (uint32_t rest = set; rest; rest &= rest - 1) {
    uint32_t i = (uint32_t)__builtin_ctz(rest);
    lanes[i].result = outcome(lanes, i, set);
  }
  if (b->launch->race) {
    b->launch->race->warp(&b->raced[warp * MSCCLGO_EMU_WARP], set, b->place);
  }
  int looks = 1;  // a wait's steps change nothing
  for (uint32_t rest = set; rest; rest &= rest - 1) {
    uint32_t i = (uint32_t)__builtin_ctz(rest);
    lanes[i].mask = 0;
    looks &= stall_waits(&b->stall, warp * MSCCLGO_EMU_WARP + i);
    if (i != self) push(b, warp * MSCCLGO_EMU_WARP + i);
  }
  b->joined_lanes[warp] &= ~set;
  if (looks) return 1;
  happened(b);
  stall_changed(&b->stall);
  return 1;
}

// retire removes a thread that has ended from all counts.
static void retire(block* b, uint32_t rank) {
  settle(b);
  if (b->launch->race) b->launch->race->ended(&b->raced[rank], &b->launch->raced);
  if (b->explore) b->explore->ended(b->party);
  const uint32_t warp = rank / MSCCLGO_EMU_WARP;
  const lane* lanes = &b->lanes[warp * MSCCLGO_EMU_WARP];
  b->on[rank] = NULL;
  b->live--;
  b->live_lanes[warp] &= ~(1u << rank % MSCCLGO_EMU_WARP);
  for (uint32_t rest = b->joined_lanes[warp]; rest; rest &= rest - 1) {
    uint32_t mask = lanes[__builtin_ctz(rest)].mask;
    if (mask) join(b, warp, mask, MSCCLGO_EMU_WARP);
  }
  if (b->arrived && b->arrived == b->live) release(b);
  happened(b);
  stall_changed(&b->stall);
}

// run_stack runs one thread after the other. The stack is in the free list while it has
// no thread.
static void run_stack(void* argument) {
  stack* s = argument;
  block* b = s->owner;
  for (;;) {
    b->launch->kernel->invoke(b->launch->arguments);
    retire(b, s->thread.rank);
    const int ended = launch_ended(b->launch);
    int after = -1;  // the thread to go on with, if it has not begun
    if (!ended && b->explore) {
      after = b->explore->next(b->party, EXPLORE_END, NULL);
      if (after < 0) {
        s->next = b->free;
        b->free = s;
        fiber_switch(&s->where, b->scheduler);
        continue;
      }
    } else if (!ended && b->runnable && !b->on[b->queue[b->head]]) {
      after = (int)pop(b);
    }
    if (after >= 0 && !b->on[after]) {
      put(b, s, (uint32_t)after);
      b->running = s;
      continue;
    }
    s->next = b->free;
    b->free = s;
    if (ended) {
      fiber_switch(&s->where, b->scheduler);
    } else if (after >= 0) {
      go_on(b, &s->where, (uint32_t)after);
    } else {
      next(b, &s->where, EXPLORE_END);
    }
  }
}

// clock_of returns the time of a clock in nanoseconds.
static uint64_t clock_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Blocks of the process that run, and its cores.
static atomic_int running;
static atomic_int cores;

static int cores_of_process(void) {
  int n = atomic_load_explicit(&cores, memory_order_relaxed);
  if (n > 0) return n;
  cpu_set_t set;
  n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (n < 1) n = 1;
  atomic_store_explicit(&cores, n, memory_order_relaxed);
  return n;
}

// over reports whether the block is to look at once: its launch is to end, or the group for which
// its threads wait has ended all waits.
static int over(const block* b) {
  if (launch_ended(b->launch)) return 1;
  for (uint32_t i = 0; i < b->threads; i++) {
    if (!stall_waits(&b->stall, i)) continue;
    const _Atomic uint32_t* aborted = b->stall.of[i].what.group;  // the first word of GroupStatus
    return aborted && atomic_load_explicit(aborted, memory_order_relaxed);
  }
  return 0;
}

// give_way sleeps where there are many blocks a core, and reports whether there are. If waiting
// blocks looked as often as where there are few, they would take the time of blocks that work.
// A round costs what its threads cost, and the more blocks look, the less often each does. So
// all of them together take a part of the cores.
static int give_way(block* b) {
  const uint64_t crowd = (uint64_t)atomic_load_explicit(&running, memory_order_relaxed) / cores_of_process();
  if (crowd <= CROWD) {
    b->slept = 0;
    return 0;
  }
  const uint64_t spent = clock_of(CLOCK_THREAD_CPUTIME_ID);
  uint64_t round = b->slept ? spent - b->slept : 0;
  // Between two waits there is work, which is not what a round costs.
  if (round > 2 * b->cost) round = 2 * b->cost;
  if (round < WAKING) round = WAKING;
  b->cost = round;
  b->slept = spent;
  // The first rounds of a wait sleep less: it may be short.
  const uint32_t doublings = ++b->rounds < 8 ? 8 - b->rounds : 0;
  uint64_t pause = round * crowd * WAITING_SHARE >> doublings;
  if (pause > LONGEST_IN_CROWD) pause = LONGEST_IN_CROWD;
  while (pause && !over(b)) {
    const uint64_t nap = pause < LONGEST_NAP ? pause : LONGEST_NAP;
    const struct timespec t = {0, (long)nap};
    nanosleep(&t, NULL);
    pause -= nap;
  }
  return 1;
}

// back_off yields the core after a round in which all runnable threads only yielded:
// they wait for another OS thread.
static void back_off(block* b) {
  if (give_way(b)) return;
  if (b->rounds++ < PATIENT_ROUNDS) {
    sched_yield();
    return;
  }
  uint32_t doublings = (b->rounds - PATIENT_ROUNDS) / 4;
  long pause = doublings < 7 ? 1000l << doublings : LONGEST_SLEEP;
  const struct timespec t = {0, pause < LONGEST_SLEEP ? pause : LONGEST_SLEEP};
  nanosleep(&t, NULL);
}

// answer tells what the block's threads wait for, unless one of them can go on.
static void answer(block* b) {
  stall_answer a;
  a.count = 0;
  for (uint32_t i = 0; i < b->threads; i++) {
    if (!(b->live_lanes[i / MSCCLGO_EMU_WARP] >> i % MSCCLGO_EMU_WARP & 1)) continue;
    const int waits = stall_waits(&b->stall, i);
    if (!waits && !b->waiting[i] && !b->lanes[i].mask) return;
    const uint32_t what = waits ? STALL_WAIT : b->waiting[i] ? STALL_BARRIER : STALL_WARP;
    if (!stall_add(&a, what, i, waits ? &b->stall.of[i].what : NULL)) return;
  }
  const mscclgo_emu_dim at = b->seen.block_index, grid = b->seen.grid_dim;
  a.block = at.x + grid.x * (at.y + grid.y * at.z);
  snprintf(a.kernel, sizeof(a.kernel), "%s", b->launch->kernel->name);
  stall_tell(&b->stall, &a);
}

// The runtime functions that threads call.

// explore has the explorer give the turn to another thread, perhaps, before this one does
// something.
static void explore(block* b, mscclgo_emu_thread* t, explore_point what, const void* code) {
  if (launch_ended(b->launch)) abandon(stack_of(t));
  settle(b);
  go_on_with(b, &stack_of(t)->where, b->explore->point(b->party, what, code));
  if (what == EXPLORE_WRITE) b->explore->wrote(b->party);
}

// explore_yield is rt_yield there.
static void explore_yield(block* b, mscclgo_emu_thread* t, mscclgo_emu_yield why, const void* code) {
  if (why == MSCCLGO_EMU_WORKING) {
    explore(b, t, EXPLORE_YIELD, code);
    return;
  }
  settle(b);
  const int looked = why == MSCCLGO_EMU_LOOKED;
  const int rank = b->explore->spins(b->party, looked ? EXPLORE_LOOK : EXPLORE_YIELD,
                                     looked ? &b->stall.of[t->rank].what : NULL, code);
  go_on_with(b, &stack_of(t)->where, rank);
}

static void rt_yield(mscclgo_emu_thread* t, mscclgo_emu_yield why) {
  block* b = block_of(t);
  if (launch_ended(b->launch)) abandon(stack_of(t));
  if (b->explore) {
    explore_yield(b, t, why, __builtin_return_address(0));
    return;
  }
  if (why == MSCCLGO_EMU_WORKING) {
    happened(b);
  } else if (b->quiet++ >= b->runnable) {
    b->quiet = 0;
    back_off(b);
  }
  if (why == MSCCLGO_EMU_LOOKED && stall_looked(&b->stall, t->rank)) answer(b);
  if (b->runnable == 0) return;
  push(b, t->rank);
  next(b, &stack_of(t)->where, EXPLORE_YIELD);
}

static void rt_await(mscclgo_emu_thread* t, const mscclgo_emu_wait* what) {
  block* b = block_of(t);
  if (!what && !b->slept) b->rounds = 0;  // the next wait is as patient; in a crowd it is not
  stall_await(&b->stall, t->rank, what);
}

// signal_next has the next launch begin, once all blocks have called it or ended.
static void signal_next(block* b) {
  if (b->signalled) return;
  b->signalled = 1;
  atomic_fetch_add_explicit(&b->launch->signalled, 1, memory_order_release);
  if (b->explore) b->explore->happened();
}

static void rt_previous(mscclgo_emu_thread* t) {
  block* b = block_of(t);
  launch* l = b->launch;
  if (b->explore) explore(b, t, EXPLORE_PREVIOUS, __builtin_return_address(0));
  while (atomic_load_explicit(&l->follows, memory_order_acquire)) {
    static const mscclgo_emu_wait end;  // of that launch
    if (!b->explore) {
      rt_yield(t, MSCCLGO_EMU_WAITING);
      continue;
    }
    const int rank = b->explore->spins(b->party, EXPLORE_PREVIOUS, &end, __builtin_return_address(0));
    go_on_with(b, &stack_of(t)->where, rank);
    if (launch_ended(l)) abandon(stack_of(t));
  }
  if (l->race) l->race->previous(&b->raced[t->rank], l->before, __builtin_return_address(0));
  signal_next(b);
}

static uint64_t rt_barrier(mscclgo_emu_thread* t, int predicate) {
  block* b = block_of(t);
  if (launch_ended(b->launch)) abandon(stack_of(t));
  if (b->explore) explore(b, t, EXPLORE_BARRIER, __builtin_return_address(0));
  b->place = __builtin_return_address(0);
  b->arrived++;
  b->positive += predicate != 0;
  if (b->arrived == b->live) {
    release(b);
  } else {
    b->waiting[t->rank] = 1;
    next(b, &stack_of(t)->where, EXPLORE_BARRIER);
  }
  return b->outcome;
}

static uint64_t rt_collective(mscclgo_emu_thread* t, mscclgo_emu_collective what, uint32_t mask,
                              uint64_t value, uint32_t source) {
  block* b = block_of(t);
  if (launch_ended(b->launch)) abandon(stack_of(t));
  if (!(mask >> t->lane & 1)) return value;
  b->place = __builtin_return_address(0);
  const uint32_t warp = t->rank / MSCCLGO_EMU_WARP;
  lane* me = &b->lanes[t->rank];
  me->mask = mask;
  me->what = what;
  me->value = value;
  me->source = source % MSCCLGO_EMU_WARP;
  b->joined_lanes[warp] |= 1u << t->lane;
  if (!join(b, warp, mask, t->lane)) next(b, &stack_of(t)->where, EXPLORE_WARP);
  return me->result;
}

// Lanes on the same path meet here: each waits until all other runnable threads have run
// once, and the first to return takes those at its place.
static uint32_t rt_active_mask(mscclgo_emu_thread* t, uint32_t place) {
  block* b = block_of(t);
  if (launch_ended(b->launch)) abandon(stack_of(t));
  lane* lanes = &b->lanes[t->rank - t->lane];
  lane* me = &b->lanes[t->rank];
  me->place = place;
  b->place = __builtin_return_address(0);
  push(b, t->rank);
  next(b, &stack_of(t)->where, EXPLORE_WARP);
  if (me->place) {
    uint32_t set = 0;
    for (uint32_t i = 0; i < MSCCLGO_EMU_WARP; i++) {
      if (lanes[i].place == place) set |= 1u << i;
    }
    for (uint32_t rest = set; rest; rest &= rest - 1) {
      lane* other = &lanes[__builtin_ctz(rest)];
      other->place = 0;
      other->result = set;
    }
  }
  return (uint32_t)me->result;
}

static uint64_t now(void) { return clock_of(CLOCK_MONOTONIC); }

static uint64_t rt_clock(mscclgo_emu_thread* t) {
  const block* b = block_of(t);
  return b->explore ? b->explore->clock() : now();
}

static void rt_sleep(mscclgo_emu_thread* t, uint32_t nanoseconds) {
  block* b = block_of(t);
  if (b->explore) {  // a sleep has no order of its own
    if (launch_ended(b->launch)) abandon(stack_of(t));
    explore_yield(b, t, MSCCLGO_EMU_WAITING, __builtin_return_address(0));
    return;
  }
  const uint64_t begin = now();
  do {
    rt_yield(t, MSCCLGO_EMU_WAITING);
  } while (now() - begin < nanoseconds);
}

// failed ends the launch for a thread that has failed, where the launch says.
static void failed(mscclgo_emu_thread* t, const char* why) {
  block* b = block_of(t);
  const mscclgo_emu_dim at = b->seen.block_index;
  char text[sizeof(b->launch->text)];
  snprintf(text, sizeof(text), "block (%u,%u,%u), thread (%u,%u,%u): %s", at.x, at.y, at.z, t->index.x,
           t->index.y, t->index.z, why);
  launch_finish(b->launch, LAUNCH_FAILED, text);
}

static void rt_fail(mscclgo_emu_thread* t, const char* why, const void* code) {
  launch* l = block_of(t)->launch;
  if (launch_claim(l)) {
    l->code = (uint64_t)(uintptr_t)code;
    failed(t, why);
  }
  abandon(stack_of(t));
}

// crash fails the running thread, which has faulted.
static void crash(void* argument, const char* why) {
  block* b = argument;
  mscclgo_emu_thread* t = &((stack*)b->running)->thread;
  if (launch_claim(b->launch)) {
    b->launch->access = fault_last(&b->launch->code, &b->launch->back);
    failed(t, why);
  }
  abandon(stack_of(t));
}

// What modules that are compiled for the race finder and the explorer call; others do not run
// with these, nor these without one.

// apart reports whether nobody but the thread uses memory: it is of its stack, or of what the
// device tells it.
static int apart(const block* b, const mscclgo_emu_thread* t, const void* at) {
  return ((uintptr_t)at ^ (uintptr_t)t) / MSCCLGO_EMU_STACK_BYTES == 0 ||
         (uintptr_t)at - (uintptr_t)b < sizeof(*b) ||
         (uintptr_t)at - (uintptr_t)b->seen.runtime < sizeof(*b->seen.runtime);
}

// A statement that copies an object tells of its store and of its load, and then does both (g++), or
// of the load first (memcpy). Nobody else gets the turn in between.

// tell notes that a store comes next.
static void tell(block* b, const void* at, uint64_t size) {
  if (!b->launch->race->table[(uintptr_t)at / 4096]) return;  // it may be no memory at all
  b->told.at = at;
  b->told.size = size;
  memcpy(b->told.had, at, size < sizeof(b->told.had) ? size : sizeof(b->told.had));
}

// copies reports whether a load may be of the copy whose store was told of: it comes next, has as many
// bytes, and the first of the store are as they were.
static int copies(block* b, uint64_t size) {
  const uint64_t told = b->told.size;
  b->told.size = 0;
  return told > 0 && told == size &&
         !memcmp(b->told.at, b->told.had, size < sizeof(b->told.had) ? size : sizeof(b->told.had));
}

// age_of returns of how many writes ago the value is that the thread's next load gets.
static uint32_t age_of(block* b, mscclgo_emu_thread* t, const void* at, uint64_t size, int atomic,
                       const void* code) {
  race_old of;
  const uint32_t most = b->weak->older(&b->raced[t->rank], at, size, atomic, &of);
  return most ? b->explore->old(b->party, most, &of, code) : 0;
}

// weak_access is rt_accessed where loads may get older values.
static void weak_access(block* b, mscclgo_emu_thread* t, const void* at, uint64_t size, uint32_t how,
                        const void* code) {
  if (apart(b, t, at)) return;  // the load before may still come, as part of the same statement
  race_thread* raced = &b->raced[t->rank];
  if (!(how & MSCCLGO_EMU_WRITE)) {
    if (how != 0 || !copies(b, size)) explore(b, t, EXPLORE_READ, code);
    const uint32_t age = age_of(b, t, at, size, 0, code);
    b->weak->read(raced, at, size, age);
    b->old.at = at;
    b->old.size = size;
    b->old.age = age;
    return;
  }
  const char *from = b->old.at, *to = at;
  const uint64_t bytes = b->old.size;
  const uint32_t age = from + bytes <= to || to + size <= from ? b->old.age : 0;
  explore(b, t, EXPLORE_WRITE, code);
  b->weak->write(raced, at, size, code);
  tell(b, at, size);
  if (age) b->weak->read(raced, from, bytes, age);
}

// within fails a thread that accesses what is behind the end of its memory.
static void within(const block* b, mscclgo_emu_thread* t, const void* at, uint64_t size, int write,
                   const void* code) {
  char text[256];
  if (b->launch->race && b->launch->race->beyond(at, size, write ? "write" : "read", text, sizeof(text)))
    rt_fail(t, text, code);
}

static void rt_accessed(mscclgo_emu_thread* t, const void* at, uint64_t size, uint32_t how,
                        const void* code) {
  block* b = block_of(t);
  within(b, t, at, size, how & MSCCLGO_EMU_WRITE, code);
  if (b->weak) {
    weak_access(b, t, at, size, how, code);
    return;
  }
  if (b->explore && !apart(b, t, at))
    explore(b, t, how & MSCCLGO_EMU_WRITE ? EXPLORE_WRITE : EXPLORE_READ, code);
  if (b->launch->race) b->launch->race->access(&b->raced[t->rank], at, size, how, code);
}

// changes reports whether an operation on a word that was old may have changed it: if not, nobody
// who waits has to look again.
static int changes(const mscclgo_emu_atomic* what, uint64_t old) {
  switch (what->what) {
    case MSCCLGO_EMU_LOAD:
      return 0;
    case MSCCLGO_EMU_COMPARE:
      return old == what->expected && what->value != old;
    case MSCCLGO_EMU_EXCHANGE:
      return what->value != old;
    case MSCCLGO_EMU_FETCH_ADD:
      return what->value != 0;
    default:
      return 1;
  }
}

static uint64_t rt_atomic(mscclgo_emu_thread* t, const mscclgo_emu_atomic* what, const void* code) {
  block* b = block_of(t);
  within(b, t, what->at, what->size, what->what != MSCCLGO_EMU_LOAD, code);
  if (b->explore) explore(b, t, what->what == MSCCLGO_EMU_LOAD ? EXPLORE_LOAD : EXPLORE_UPDATE, code);
  uint64_t old, wrote;
  int writes;
  if (b->weak) {
    const uint32_t age = what->what == MSCCLGO_EMU_LOAD && !(what->order & MSCCLGO_EMU_NEWEST)
                             ? age_of(b, t, what->at, what->size, 1, code)
                             : 0;
    old = b->weak->atomic(&b->raced[t->rank], what, age, code);
    writes = changes(what, old);
  } else if (b->launch->race) {
    old = b->launch->race->atomic(&b->raced[t->rank], what, code);
    writes = changes(what, old);
  } else {
    old = race_operate(what, &wrote, &writes);
    writes = changes(what, old);
  }
  if (b->explore && writes) b->explore->wrote(b->party);
  return old;
}

static void rt_fence(mscclgo_emu_thread* t, uint32_t order, uint32_t scope, const void* code) {
  block* b = block_of(t);
  if (b->explore) explore(b, t, EXPLORE_FENCE, code);
  if (b->weak) {
    b->weak->fence(&b->raced[t->rank], order, scope, code);
  } else if (b->launch->race) {
    b->launch->race->fence(&b->raced[t->rank], order, scope, code);
  }
}

static const mscclgo_emu_runtime runtime = {
    .yield = rt_yield,
    .await = rt_await,
    .barrier = rt_barrier,
    .collective = rt_collective,
    .active_mask = rt_active_mask,
    .sleep = rt_sleep,
    .fail = rt_fail,
    .accessed = rt_accessed,
    .atomic = rt_atomic,
    .fence = rt_fence,
    .clock = rt_clock,
    .previous = rt_previous,
};

// Blocks.

// share makes sure that this OS thread can have the module's __shared__ memory, and
// reports whether it can: the C library ends the process where it cannot allocate what is
// thread-local. Other threads may be quicker to take the memory, so that this is not
// certain.
static int share(block* b) {
  const launch* l = b->launch;
  if (l->shared.begin == l->shared.end || b->shares == l->module->anchor) return 1;
  const size_t bytes = l->shared.end + MSCCLGO_EMU_STACK_BYTES;  // and what the library takes besides
  void* room = malloc(bytes);
  if (!room) {
    char what[128];
    snprintf(what, sizeof(what), "%zu KiB for the block's __shared__ memory", bytes / 1024);
    starve(b, what);
    return 0;
  }
  free(room);
  b->shares = l->module->anchor;
  return 1;
}

// nowhere faults: the dynamic shared memory of launches that ask for none.
static void* nowhere;

static void map_nowhere(void) {
  nowhere = mmap(NULL, DYNAMIC_GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (nowhere == MAP_FAILED) nowhere = NULL;  // which faults as well
}

// share_dynamic maps the block's dynamic shared memory, unless it is mapped, and reports
// whether it is. The memory ends where a guard begins, so that a thread that goes beyond
// what was asked for faults. Alignment leaves a few bytes between, which spilled looks at.
static int share_dynamic(block* b) {
  const uint32_t bytes = b->launch->dynamic_shared, align = MSCCLGO_EMU_SHARED_ALIGNMENT;
  if (bytes == 0) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_nowhere);
    b->seen.dynamic = nowhere;
    fault_guard(nowhere, nowhere ? DYNAMIC_GUARD : 0, 0);
    return 1;
  }
  if (!b->dynamic) {
    void* room = mmap(NULL, DYNAMIC_BYTES + DYNAMIC_GUARD, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED && mprotect(room, DYNAMIC_BYTES, PROT_READ | PROT_WRITE)) {
      munmap(room, DYNAMIC_BYTES + DYNAMIC_GUARD);
      room = MAP_FAILED;
    }
    if (room == MAP_FAILED) {
      starve(b, "the block's dynamic shared memory");
      return 0;
    }
    b->dynamic = room;
  }
  char* end = b->dynamic + DYNAMIC_BYTES;
  b->seen.dynamic = end - (bytes + align - 1) / align * align;
  fault_guard(end, DYNAMIC_GUARD, bytes);
  return 1;
}

// spilled reports whether a thread has written behind the dynamic shared memory.
static int spilled(const block* b) {
  if (b->launch->dynamic_shared == 0) return 0;
  const unsigned char* end = (const unsigned char*)b->dynamic + DYNAMIC_BYTES;
  for (const unsigned char* p = (unsigned char*)b->seen.dynamic + b->launch->dynamic_shared; p < end; p++)
    if (*p != POISON) return 1;
  return 0;
}

// poison fills the block's __shared__ memory, so that kernels which rely on zeros fail.
static void poison(const block* b) {
  const launch* l = b->launch;
  const shared_layout* s = &l->shared;
  if (l->dynamic_shared)
    memset(b->seen.dynamic, POISON, (size_t)(b->dynamic + DYNAMIC_BYTES - (char*)b->seen.dynamic));
  if (s->begin == s->end) return;
  memset((char*)l->module->anchor() - s->anchor + s->begin, POISON, s->end - s->begin);
  for (void (*const* set)(void*) = l->module->dynamics; set != l->module->dynamics_end; set++)
    (*set)(b->seen.dynamic);
}

// race has the finder watch the block, if there is one, and reports whether it can.
static int race(block* b) {
  launch* l = b->launch;
  b->seen.watched = NULL;
  b->weak = NULL;
  b->old.age = 0;
  if (!l->race) return 1;
  if (!b->raced && !(b->raced = malloc(MSCCLGO_EMU_MAX_THREADS * sizeof(*b->raced)))) {
    starve(b, "what the race finder knows of the block's threads");
    return 0;
  }
  if (b->explore) b->weak = l->race->weak;
  if (!b->weak) b->seen.watched = l->race->table;
  const mscclgo_emu_dim at = b->seen.block_index;
  l->race->block(b->raced, b->threads, &l->raced, at.x + l->grid.x * (at.y + l->grid.y * at.z), l->grid,
                 l->block);
  const shared_layout* s = &l->shared;
  if (s->begin != s->end)
    l->race->shared((char*)l->module->anchor() - s->anchor + s->begin, s->end - s->begin);
  if (l->dynamic_shared) l->race->shared(b->seen.dynamic, l->dynamic_shared);
  return 1;
}

// stuck describes threads that wait for each other forever.
static void stuck(block* b) {
  uint32_t joined = 0;
  for (uint32_t w = 0; w < WARPS; w++) joined += (uint32_t)__builtin_popcount(b->joined_lanes[w]);
  const mscclgo_emu_dim at = b->seen.block_index;
  char text[sizeof(b->launch->text)];
  snprintf(text, sizeof(text),
           "block (%u,%u,%u) is stuck: %u threads wait at __syncthreads and %u in warp functions for "
           "lanes of their mask that never arrive",
           at.x, at.y, at.z, b->arrived, joined);
  launch_end(b->launch, LAUNCH_FAILED, text);
}

// spill fails the launch of a block whose threads have written behind its dynamic shared
// memory.
static void spill(block* b) {
  const mscclgo_emu_dim at = b->seen.block_index;
  char text[sizeof(b->launch->text)];
  snprintf(text, sizeof(text),
           "block (%u,%u,%u) wrote beyond the %u bytes of dynamic shared memory of the launch", at.x, at.y,
           at.z, b->launch->dynamic_shared);
  launch_end(b->launch, LAUNCH_FAILED, text);
}

block* block_new(void) {
  block* b = calloc(1, sizeof(block));
  if (b) stall_init(&b->stall);
  return b;
}

void block_ask(block* b, uint32_t question) {
  atomic_store_explicit(&b->stall.asked, question, memory_order_release);
}

int block_told(block* b, uint32_t question, stall_answer* to) { return stall_told(&b->stall, question, to); }

uint64_t block_epoch(const block* b) { return b->stall.epoch; }

void block_run(block* b, launch* l, mscclgo_emu_dim index) {
  b->launch = l;
  b->seen.runtime = &runtime;
  b->seen.block_dim = l->block;
  b->seen.grid_dim = l->grid;
  b->seen.block_index = index;
  b->seen.dynamic_shared = l->dynamic_shared;
  b->threads = b->live = l->block.x * l->block.y * l->block.z;
  b->explore = NULL;
  b->party = NULL;
  b->head = b->runnable = 0;
  b->arrived = b->positive = b->signalled = 0;
  memset(b->live_lanes, 0, sizeof(b->live_lanes));
  memset(b->joined_lanes, 0, sizeof(b->joined_lanes));
  for (uint32_t i = 0; i < b->threads; i++) {
    push(b, i);  // before b->explore is set, which has its own
    b->live_lanes[i / MSCCLGO_EMU_WARP] |= 1u << i % MSCCLGO_EMU_WARP;
  }
  happened(b);
  stall_begin(&b->stall);
  int first = 0;
  if (l->explore) {
    b->explore = l->explore;
    b->party =
        l->explore->block(l->explored, index.x + l->grid.x * (index.y + (uint64_t)l->grid.y * index.z));
    first = l->explore->enter(b->party);
  }
  if (first >= 0 && share(b) && share_dynamic(b) && race(b)) {
    atomic_fetch_add_explicit(&running, 1, memory_order_relaxed);
    b->slept = b->cost = 0;
    poison(b);
    fault_catch(crash, b, &b->running);
    go_on(b, &b->scheduler, b->explore ? (uint32_t)first : pop(b));
    fault_catch(NULL, NULL, NULL);
    atomic_fetch_sub_explicit(&running, 1, memory_order_relaxed);
    if (spilled(b)) spill(b);
  }
  const char* why = b->explore ? b->explore->why() : NULL;
  if (!why) signal_next(b);
  if (b->explore) {
    if (why) launch_end(l, LAUNCH_FAILED, why);
    b->explore->left(b->party, launch_ended(l) ? l->text : NULL);
  }
  if (b->live == 0) return;
  if (!launch_ended(l)) stuck(b);
  // The threads that are left never run again; their stacks are used for others, unless
  // memory is short.
  const int starved = atomic_load_explicit(&l->starved, memory_order_relaxed);
  for (uint32_t i = 0; i < b->threads; i++) {
    stack* s = b->on[i];
    b->on[i] = NULL;
    b->waiting[i] = 0;
    b->lanes[i].mask = 0;
    b->lanes[i].place = 0;
    if (!s || starved) continue;
    prepare(s, i);
    s->next = b->free;
    b->free = s;
  }
  if (starved) block_trim(b);
}

void block_free(block* b) {
  block_trim(b);
  pthread_mutex_destroy(&b->stall.lock);
  free(b->raced);
  free(b);
}
