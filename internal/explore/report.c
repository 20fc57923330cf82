#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// The channels of a Watch that are none (communicator/failure.go).
enum { GROUP_CHANNEL = 0, RING_CHANNEL = 0x7ffffffe };

typedef struct writer {
  char* text;
  size_t bytes, used;
} writer;

static void add(writer* w, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int n = vsnprintf(w->text + w->used, w->bytes - w->used, format, values);
  va_end(values);
  if (n > 0) w->used += (size_t)n < w->bytes - w->used ? (size_t)n : w->bytes - w->used - 1;
}

static uint32_t part(explore_who who, uint32_t lowest, uint32_t bits) {
  return (uint32_t)(who >> lowest & (((uint64_t)1 << bits) - 1));
}

static int alike(const explore_thread* a, const explore_thread* b) {
  if (a->state != b->state) return 0;
  if (a->state == THREAD_HELD) return a->point == b->point;
  if (a->state == THREAD_LOOKS && a->point != b->point) return 0;
  return a->state != THREAD_LOOKS || (a->wait.peer == b->wait.peer && a->wait.channel == b->wait.channel &&
                                      a->wait.number == b->wait.number);
}

// awaited tells what a thread of a rank waits for, as its wait's Watch has it: the one of the group names
// the rank itself, where a kernel gives it to waitUntil.
static void awaited(writer* w, const mscclgo_emu_wait* wait, uint32_t rank) {
  if (wait->channel == RING_CHANNEL) {
    add(w, "its host to serve the ring of triggers or end a flush");
    return;
  }
  if (wait->channel == GROUP_CHANNEL && wait->peer == rank) {
    add(w, "a flag or packet of a rank that its Watch does not name");
    return;
  }
  if (wait->channel == GROUP_CHANNEL) {
    add(w, "a barrier or packet of the group");
  } else {
    if (wait->number) add(w, "signal %llu of ", (unsigned long long)wait->number);
    add(w, "channel %u", wait->channel);
  }
  if (wait->peer != ~0u) add(w, " from rank %u", wait->peer);
}

// waits tells what threads from one on wait for.
static void waits(writer* w, const explore_party* p, uint32_t first, uint32_t threads) {
  const explore_thread* t = &p->thread[first];
  if (!p->launch) {
    add(w, "%s waits", p->name);
    return;
  }
  if (threads == 1) {
    add(w, "thread %u", first);
  } else {
    add(w, "%u threads, from %u on,", threads, first);
  }
  add(w, " of block %u of %s ", part(p->who, WHO_BLOCK, 16), p->name);
  switch (t->state) {
    case THREAD_HELD:
      add(w, t->point == EXPLORE_BARRIER ? "at __syncthreads" : "in a warp function");
      return;
    case THREAD_LOOKS:
      if (t->point == EXPLORE_PREVIOUS) {
        add(w, "waiting for the launch before it to end");
        return;
      }
      add(w, "waiting for ");
      awaited(w, &t->wait, part(p->who, WHO_RANK, 8));
      return;
    case THREAD_READY:
      add(w, "able to go on");
      return;
    default:
      add(w, "polling");
  }
}

static void tell(writer* w, const explore_party* p) {
  if (w->used + 1 >= w->bytes) return;
  for (uint32_t i = 0; i < p->threads; i++) {
    // A thread that has ended has no state of its own: it was held at its end.
    if (p->thread[i].state == THREAD_HELD && p->thread[i].point == EXPLORE_END) continue;
    uint32_t before = 0, same = 0;
    for (uint32_t j = 0; j < p->threads; j++) {
      const int like = alike(&p->thread[i], &p->thread[j]) &&
                       !(p->thread[j].state == THREAD_HELD && p->thread[j].point == EXPLORE_END);
      same += like;
      before += like && j < i;
    }
    if (before) continue;
    add(w, "; rank %u: ", part(p->who, WHO_RANK, 8));
    waits(w, p, i, same);
  }
}

void explore_report(char* text, size_t bytes, const char* why, explore_party* const* parties,
                    uint32_t count) {
  writer w = {text, bytes, 0};
  add(&w, "%s", why);
  explore_who last = 0;
  for (;;) {  // in order
    const explore_party* next = NULL;
    for (uint32_t i = 0; i < count; i++) {
      if (parties[i]->who > last && (!next || parties[i]->who < next->who)) next = parties[i];
    }
    if (!next) return;
    last = next->who;
    if (next->thread && next->live) tell(&w, next);
  }
}
