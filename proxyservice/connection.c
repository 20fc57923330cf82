#include "connection.h"

#include <stdlib.h>

// at returns a connection's flush by its age; 0 is the oldest.
static proxy_flush* at(const proxy_connection* c, uint32_t age) {
  return &c->flushes[(c->first + age) & (c->capacity - 1)];
}

// tell stores for kernels that all flushes up to a position are done.
static void tell(proxy_connection* c, uint64_t position) {
  if (*c->done <= position) __atomic_store_n(c->done, position + 1, __ATOMIC_RELEASE);
}

static void count(proxy_counters* counters, int64_t since, uint32_t number) {
  if (counters && since) proxy_count_flushes(counters, number, proxy_now() - since);
}

// trace adds a flush that has ended to the timeline.
static void trace(const native_trace* to, const proxy_connection* c, int64_t since) {
  if (!to) return;
  native_event e = {.what = NATIVE_TRACE_FLUSH | c->transport << 8,
                    .start = (uint64_t)since,
                    .end = native_trace_now(),
                    .where = c->peer};
  native_trace_add(to, &e);
}

// add adds an entry, in place of operations that wait before it: to ask for what comes behind them is to
// ask for them too. A mark of Go's may not be set yet, as somebody has the turn, and asks for nothing then.
static void add(proxy_flushing* flushing, proxy_connection* c, proxy_flush f) {
  if (f.mark != PROXY_GO_MARK && c->under_way && at(c, c->under_way - 1)->mark == PROXY_PARKED) {
    *at(c, c->under_way - 1) = f;
    return;
  }
  if (c->under_way == c->capacity) {
    uint32_t capacity = c->capacity ? 2 * c->capacity : NATIVE_MARKS;
    proxy_flush* flushes = malloc(capacity * sizeof *flushes);
    if (!flushes) abort();  // as Go's allocator does
    for (uint32_t age = 0; age < c->under_way; age++) flushes[age] = *at(c, age);
    free(c->flushes);
    c->flushes = flushes;
    c->capacity = capacity;
    c->first = 0;
  }
  *at(c, c->under_way) = f;
  if (c->under_way++ == 0) flushing->at[flushing->size++] = c;
}

// newest returns the newest flush with a mark of the queue's.
static proxy_flush* newest(const proxy_connection* c) {
  uint32_t age = c->under_way;
  while (at(c, --age)->mark >= NATIVE_MARKS) continue;
  return at(c, age);
}

int proxy_flush_begin(proxy_flushing* flushing, proxy_connection* c, uint64_t position, int64_t since,
                      proxy_counters* counters) {
  // With all marks under way, the newest is set anew and stands for this flush as
  // well. That can only happen again until the oldest is reached, so it delays no
  // flush for long.
  proxy_flush* shared = c->marks == NATIVE_MARKS ? newest(c) : NULL;
  uint32_t mark = shared ? shared->mark : c->next_mark;
  int rc = c->queue->operations->mark(c->queue, mark);
  if (rc == 0) {
    tell(c, position);
    count(counters, since, 1);
    trace(flushing->trace, c, since);
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
  add(flushing, c, (proxy_flush){position, since, 1, mark});
  return 0;
}

void proxy_flush_began(proxy_flushing* flushing, proxy_connection* c, uint64_t position, int64_t since) {
  add(flushing, c, (proxy_flush){position, since, 1, PROXY_GO_MARK});
}

void proxy_flush_parked(proxy_flushing* flushing, proxy_connection* c) {
  add(flushing, c, (proxy_flush){.position = c->queue->taken, .mark = PROXY_PARKED});
}

int proxy_flush_query(proxy_flushing* flushing, native_thread* thread, proxy_counters* counters, int* op) {
  flushing->asked = (flushing->asked + 1) % flushing->size;
  proxy_connection* c = flushing->at[flushing->asked];
  uint32_t mark = at(c, 0)->mark;
  *op = mark == PROXY_PARKED ? NATIVE_PROGRESS : NATIVE_REACH;
  if (mark == PROXY_GO_MARK) return PROXY_ASK_GO;
  int rc = native_queue_enter(c->queue, thread, NULL);
  if (rc == NATIVE_CLOSED && mark == PROXY_PARKED) {  // who closes it has what waits queued
    proxy_flush_done(flushing, counters);
    return 0;
  }
  if (rc == NATIVE_BUSY) return 0;
  if (rc) return rc;
  rc = mark == PROXY_PARKED ? c->queue->operations->progress(c->queue, at(c, 0)->position)
                            : c->queue->operations->reached(c->queue, mark);
  native_queue_leave(c->queue);
  if (rc == NATIVE_PENDING) return 0;
  if (rc == 0) proxy_flush_done(flushing, counters);
  return rc;
}

void proxy_flush_done(proxy_flushing* flushing, proxy_counters* counters) {
  proxy_connection* c = flushing->at[flushing->asked];
  const proxy_flush* f = at(c, 0);
  if (f->mark != PROXY_PARKED) tell(c, f->position);
  count(counters, f->since, f->number);
  if (f->mark < NATIVE_MARKS) {
    c->marks--;
    trace(flushing->trace, c, f->since);
  }
  c->first = (c->first + 1) & (c->capacity - 1);
  if (--c->under_way == 0) flushing->at[flushing->asked] = flushing->at[--flushing->size];
}
