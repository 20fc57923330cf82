// pool.c: OS threads that take blocks from a list of launches. They are started when
// there are more blocks than idle threads, and run until the pool is freed.
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "block.h"
#include "fault.h"

enum { OWN_STACK_BYTES = 1 << 20 };

struct pool {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  launch* first;  // with blocks that have not begun, oldest first
  uint32_t limit, threads, idle;
  int closing;
  uint32_t begun;    // threads that have got as far as to take blocks
  block** resting;   // of these: the block of each that is idle
  block** blocks;    // and of each
  uint32_t asked;    // the last question
  uint32_t running;  // launches that have not ended
  pthread_t thread[];
};

// remove_launch removes a launch from the list, if it is there.
static void remove_launch(pool* p, launch* l) {
  for (launch** at = &p->first; *at; at = &(*at)->behind) {
    if (*at != l) continue;
    *at = l->behind;
    return;
  }
}

// finished counts a launch as ended if all its blocks are finished.
static void finished(pool* p, launch* l) {
  if (l->finished != l->blocks || !l->counted) return;
  l->counted = 0;
  p->running--;
}

// drop counts the blocks that have not begun as finished.
static void drop(pool* p, launch* l) {
  remove_launch(p, l);
  l->finished += l->blocks - l->next;
  l->next = l->blocks;
  finished(p, l);
}

// trim gives back the stacks of idle threads, of whose blocks none runs.
static void trim(pool* p) {
  for (uint32_t i = 0; i < p->begun; i++) {
    if (p->resting[i]) block_trim(p->resting[i]);
  }
}

static void* work(void* argument) {
  pool* p = argument;
  // Sleeps are a few microseconds long; the default slack of 50 would exceed them.
  prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
  fault_enter();
  block* b = block_new();
  pthread_mutex_lock(&p->lock);
  const uint32_t self = p->begun++;
  p->blocks[self] = b;
  if (b) block_ask(b, p->asked);
  for (;;) {
    while (!p->first && !p->closing) {
      p->idle++;
      p->resting[self] = b;
      pthread_cond_wait(&p->work, &p->lock);
      p->resting[self] = NULL;
      p->idle--;
    }
    launch* l = p->first;
    if (!l) break;
    if (!b) launch_end(l, LAUNCH_FAILED, "no memory to run a block");
    if (launch_ended(l)) {
      drop(p, l);
    } else {
      const uint64_t i = l->next++;
      if (l->next == l->blocks) remove_launch(p, l);
      pthread_mutex_unlock(&p->lock);
      const mscclgo_emu_dim g = l->grid;
      const mscclgo_emu_dim index = {(uint32_t)(i % g.x), (uint32_t)(i / g.x % g.y),
                                     (uint32_t)(i / g.x / g.y)};
      block_run(b, l, index);
      pthread_mutex_lock(&p->lock);
      l->finished++;
      finished(p, l);
    }
    if (l->finished == l->blocks) pthread_cond_broadcast(&p->done);
  }
  pthread_mutex_unlock(&p->lock);
  if (b) block_free(b);
  fault_leave();
  return NULL;
}

// save_address_space has new threads allocate where others do, in a process whose address
// space is limited: else the C library reserves 64 MiB for each. Who set the number of these
// places keeps it.
static void save_address_space(void) {
#ifdef M_ARENA_MAX
  struct rlimit limit;
  if (!getenv("MALLOC_ARENA_MAX") && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    mallopt(M_ARENA_MAX, 1);
#endif
}

// hire starts OS threads until there are as many idle ones as blocks to run, or the
// limit is reached. It returns an errno if it cannot: with fewer threads, blocks that wait
// for each other, as a device's resident ones may, would do so forever. The threads block
// signals, which are for the host program's threads.
static int hire(pool* p, uint64_t blocks) {
  uint64_t wanted = blocks > p->idle ? blocks - p->idle : 0;
  if (wanted == 0 || p->threads == p->limit) return 0;
  save_address_space();
  sigset_t all, old;
  sigfillset(&all);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  // The threads of blocks have stacks of their own, so the default, which is megabytes of
  // address space each, is more than enough.
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (!error) {
    pthread_attr_setstacksize(&attributes, OWN_STACK_BYTES);
    while (wanted-- && p->threads < p->limit && !error) {
      error = pthread_create(&p->thread[p->threads], &attributes, work, p);
      if (!error) pthread_setname_np(p->thread[p->threads++], "emu-block");
    }
    pthread_attr_destroy(&attributes);
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return error;
}

pool* pool_new(uint32_t limit) {
  pool* p = calloc(1, sizeof(pool) + limit * sizeof(pthread_t));
  if (!p) return NULL;
  p->resting = calloc(2 * (size_t)limit, sizeof(*p->resting));
  if (!p->resting) {
    free(p);
    return NULL;
  }
  p->blocks = p->resting + limit;
  fault_setup();
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->done, NULL);
  p->limit = limit;
  return p;
}

// explore has the blocks take part in what is explored, if anything is. If there is no memory
// for that the exploration is over, and they do not.
static void explore(pool* p, launch* l) {
  if (!l->explore) return;
  l->explored = l->explore->launch(l->stream, p, p->limit, l->kernel->name, l->module, l->blocks,
                                   l->block.x * l->block.y * l->block.z);
  if (!l->explored) l->explore = NULL;
}

int pool_begin(pool* p, launch* l) {
  explore(p, l);
  pthread_mutex_lock(&p->lock);
  launch** last = &p->first;
  uint64_t blocks = l->blocks;
  for (; *last; last = &(*last)->behind) blocks += (*last)->blocks - (*last)->next;
  const int ended = launch_ended(l);  // cancelled before it came here
  int error = ended ? 0 : hire(p, blocks);
  if (!error && !ended) {
    *last = l;
    l->counted = 1;
    p->running++;
    pthread_cond_broadcast(&p->work);
  } else {
    drop(p, l);
    if (l->explore)  // which waits for them
      l->explore->left(l->explore->block(l->explored, 0), "the blocks of a kernel cannot be run");
  }
  pthread_mutex_unlock(&p->lock);
  return error;
}

int pool_ended(pool* p, launch* l) {
  if (l->explore) return !l->explore->running(l->explored);
  pthread_mutex_lock(&p->lock);
  const int ended = l->finished == l->blocks;
  pthread_mutex_unlock(&p->lock);
  return ended;
}

void pool_end(pool* p, launch* l) {
  if (l->explore) l->explore->finish(l->stream, l->explored);
  pthread_mutex_lock(&p->lock);
  while (l->finished != l->blocks) pthread_cond_wait(&p->done, &p->lock);
  // So that the program can go on with smaller launches.
  if (atomic_load_explicit(&l->starved, memory_order_relaxed)) trim(p);
  pthread_mutex_unlock(&p->lock);
  fflush(stdout);  // what the kernel printed
}

void pool_cancel(pool* p, launch* l) {
  launch_end(l, LAUNCH_CANCELLED, "");
  pthread_mutex_lock(&p->lock);
  drop(p, l);
  pthread_cond_broadcast(&p->done);
  pthread_mutex_unlock(&p->lock);
}

void pool_ask(pool* p, uint32_t question) {
  pthread_mutex_lock(&p->lock);
  p->asked = question;
  for (uint32_t i = 0; i < p->begun; i++) {
    if (p->blocks[i]) block_ask(p->blocks[i], question);
  }
  pthread_mutex_unlock(&p->lock);
}

int pool_told(pool* p, uint32_t question, stall_answer* answers, pool_load* load) {
  pthread_mutex_lock(&p->lock);
  int told = p->begun < p->threads || (p->first && p->idle) ? -1 : 0;
  *load = (pool_load){.launches = p->running};
  for (const launch* l = p->first; l; l = l->behind) load->unbegun += l->blocks - l->next;
  for (uint32_t i = 0; i < p->begun && told >= 0; i++) {
    if (p->resting[i]) {
      load->epoch += block_epoch(p->resting[i]);
    } else if (p->blocks[i] && block_told(p->blocks[i], question, &answers[told])) {
      told++;
    } else {
      told = -1;
    }
  }
  pthread_mutex_unlock(&p->lock);
  return told;
}

void pool_free(pool* p) {
  pthread_mutex_lock(&p->lock);
  p->closing = 1;
  pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->lock);
  for (uint32_t i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
  pthread_cond_destroy(&p->work);
  pthread_cond_destroy(&p->done);
  pthread_mutex_destroy(&p->lock);
  free(p->resting);
  free(p);
}
