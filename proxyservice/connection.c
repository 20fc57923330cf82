#include "connection.h"

#include <stdlib.h>
#include <string.h>

// at returns a connection's flush by its age; 0 is the oldest.
static proxy_flush* at(const proxy_connection* c, uint32_t age) {
  return &c->flushes[(c->first + age) & (c->capacity - 1)];
}

// tell tells kernels that all flushes up to a position are done.
static void tell(proxy_connection* c, uint64_t position) {
  if (*c->done <= position) __atomic_store_n(c->done, position + 1, __ATOMIC_RELEASE);
}

static void count(proxy_counters* counters, int64_t since, uint32_t number) {
  if (counters && since) proxy_count_flushes(counters, number, proxy_now() - since);
}

static void join(proxy_connection** circle, proxy_connection* c) {
  if (!*circle) {
    *circle = c->next = c->previous = c;
    return;
  }
  c->next = *circle;
  c->previous = (*circle)->previous;
  c->next->previous = c->previous->next = c;
}

static void leave(proxy_connection** circle, proxy_connection* c) {
  if (c->next == c) {
    *circle = NULL;
    return;
  }
  c->next->previous = c->previous;
  c->previous->next = c->next;
  if (*circle == c) *circle = c->next;
}

static void add(proxy_connection** circle, proxy_connection* c, proxy_flush f) {
  *at(c, c->under_way) = f;
  if (c->under_way++ == 0) join(circle, c);
}

bool proxy_flush_reserve(proxy_connection* c) {
  if (c->under_way < c->capacity) return true;
  uint32_t capacity = c->capacity ? 2 * c->capacity : NATIVE_MARKS;
  proxy_flush* flushes = calloc(capacity, sizeof *flushes);
  if (!flushes) return false;
  for (uint32_t age = 0; age < c->under_way; age++) flushes[age] = *at(c, age);
  free(c->flushes);
  c->flushes = flushes;
  c->capacity = capacity;
  c->first = 0;
  return true;
}

// newest returns the newest flush with a mark of the queue's.
static proxy_flush* newest(const proxy_connection* c) {
  uint32_t age = c->under_way;
  while (at(c, --age)->mark == PROXY_GO_MARK) continue;
  return at(c, age);
}

int proxy_flush_begin(proxy_connection** circle, proxy_connection* c, uint64_t position, int64_t since,
                      proxy_counters* counters) {
  // With all marks under way, the newest is put anew and stands for this flush as
  // well. That can happen again only until the oldest is reached, so that it delays
  // nobody for long.
  proxy_flush* shared = c->marks == NATIVE_MARKS ? newest(c) : NULL;
  uint32_t mark = shared ? shared->mark : c->next_mark;
  int rc = c->queue->operations->mark(c->queue, mark);
  if (rc == 0) {
    tell(c, position);
    count(counters, since, 1);
    return 0;
  }
  if (rc != NATIVE_PENDING) return rc;
  if (shared) {
    shared->position = position;
    shared->number++;
    return 0;
  }
  c->marks++;
  c->next_mark = (mark + 1) % NATIVE_MARKS;
  add(circle, c, (proxy_flush){position, since, 1, mark});
  return 0;
}

void proxy_flush_began(proxy_connection** circle, proxy_connection* c, uint64_t position, int64_t since) {
  add(circle, c, (proxy_flush){position, since, 1, PROXY_GO_MARK});
}

int proxy_flush_query(proxy_connection** circle, native_thread* thread, proxy_counters* counters) {
  proxy_connection* c = *circle = (*circle)->next;
  uint32_t mark = at(c, 0)->mark;
  if (mark == PROXY_GO_MARK) return PROXY_ASK_GO;
  int rc = native_queue_enter(c->queue, thread);
  if (rc == NATIVE_BUSY) return 0;
  if (rc) return rc;
  rc = c->queue->operations->reached(c->queue, mark);
  native_queue_leave(c->queue);
  if (rc == NATIVE_PENDING) return 0;
  if (rc == 0) proxy_flush_done(circle, counters);
  return rc;
}

void proxy_flush_done(proxy_connection** circle, proxy_counters* counters) {
  proxy_connection* c = *circle;
  const proxy_flush* f = at(c, 0);
  tell(c, f->position);
  count(counters, f->since, f->number);
  if (f->mark != PROXY_GO_MARK) c->marks--;
  c->first = (c->first + 1) & (c->capacity - 1);
  if (--c->under_way == 0) leave(circle, c);
}

void proxy_connection_free(void* c) {
  if (c) free(((proxy_connection*)c)->flushes);
  free(c);
}
