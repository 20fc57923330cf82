#include "line.h"

// tell tells kernels that all flushes up to a position are done. Older marks may be
// found reached later, by Go too.
static void tell(proxy_line* line, uint64_t position) {
  if (*line->done <= position) __atomic_store_n(line->done, position + 1, __ATOMIC_RELEASE);
}

static void count(proxy_counters* counters, const proxy_flush* f) {
  if (counters && f->since) proxy_count_flushes(counters, f->number, proxy_now() - f->since);
}

static void join(proxy_line** circle, proxy_line* line) {
  if (!*circle) {
    *circle = line->next = line->previous = line;
    return;
  }
  line->next = *circle;
  line->previous = (*circle)->previous;
  line->next->previous = line->previous->next = line;
}

static void leave(proxy_line** circle, proxy_line* line) {
  if (line->next == line) {
    *circle = NULL;
    return;
  }
  line->next->previous = line->previous;
  line->previous->next = line->next;
  if (*circle == line) *circle = line->next;
}

int proxy_flush_begin(proxy_line** circle, proxy_line* line, uint64_t position, int64_t since,
                      proxy_counters* counters) {
  // With all marks on their way, the newest is put anew and stands for this flush
  // as well. That can happen again only until the oldest is reached, so that it
  // delays nobody for long.
  uint32_t number = line->under_way == NATIVE_MARKS ? NATIVE_MARKS - 1 : line->under_way;
  uint32_t mark = (line->first + number) % NATIVE_MARKS;
  int rc = line->queue->operations->mark(line->queue, mark);
  if (rc == 0) {
    tell(line, position);
    count(counters, &(proxy_flush){position, since, 1});
    return 0;
  }
  if (rc != NATIVE_PENDING) return rc;
  proxy_flush* f = &line->flushes[mark];
  if (number == line->under_way) {
    *f = (proxy_flush){.since = since};
    if (line->under_way++ == 0) join(circle, line);
  }
  f->position = position;
  f->number++;
  return 0;
}

int proxy_flush_ask(proxy_line** circle, native_thread* thread, proxy_counters* counters) {
  proxy_line* line = *circle = (*circle)->next;
  int rc = native_queue_enter(line->queue, thread);
  if (rc == NATIVE_BUSY) return 0;
  if (rc) return rc;
  rc = line->queue->operations->reached(line->queue, line->first);
  native_queue_leave(line->queue);
  if (rc == NATIVE_PENDING) return 0;
  if (rc) return rc;
  const proxy_flush* f = &line->flushes[line->first];
  tell(line, f->position);
  count(counters, f);
  line->first = (line->first + 1) % NATIVE_MARKS;
  if (--line->under_way == 0) leave(circle, line);
  return 0;
}
