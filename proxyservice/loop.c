#include "loop.h"

static bool enter_range(native_range* range) { return !range || native_range_enter(range); }

static void leave_range(native_range* range) {
  if (range) native_range_leave(range);
}

// ranges are those that a job uses; what it does not use is NULL.
typedef struct {
  native_range *dst, *src, *words;
} ranges;

static ranges ranges_of(const proxy_job* j) {
  return (ranges){
      .dst = j->request.put ? j->dst->range : NULL,
      .src = j->request.put ? j->src->range : NULL,
      .words = j->request.signal ? j->port->words : NULL,
  };
}

static void leave_ranges(ranges r) {
  leave_range(r.words);
  leave_range(r.src);
  leave_range(r.dst);
}

static bool enter_ranges(ranges r) {
  if (!enter_range(r.dst)) return false;
  if (!enter_range(r.src)) {
    leave_range(r.dst);
    return false;
  }
  if (!enter_range(r.words)) {
    leave_range(r.src);
    leave_range(r.dst);
    return false;
  }
  return true;
}

static void leave(const proxy_job* j) {
  native_queue_leave(j->port->connection->queue);
  if (j->request.signal) native_count_release(j->port->sent);
  leave_ranges(ranges_of(j));
}

// enter takes all that a job needs, until leave, or nothing, so that a trigger is
// served whole or left whole to Go. It returns 0, a code of queue.h or the
// transport's.
static int enter(const proxy_job* j, native_thread* thread) {
  ranges r = ranges_of(j);
  if (!enter_ranges(r)) return NATIVE_CLOSED;
  int rc = NATIVE_BUSY;
  if (!j->request.signal || native_count_claim(j->port->sent)) {
    rc = native_queue_enter(j->port->connection->queue, thread);
    if (!rc) return 0;
    if (j->request.signal) native_count_release(j->port->sent);
  }
  leave_ranges(r);
  return rc;
}

static int fail(proxy_failure* f, int op, int code) {
  f->op = op;
  f->code = code;
  return code;
}

// perform does a job that was entered. It returns 0, or the code of the failure.
static int perform(proxy_loop* loop, const proxy_job* j, proxy_counters* counters) {
  const proxy_request* r = &j->request;
  proxy_connection* c = j->port->connection;
  native_queue* queue = c->queue;
  proxy_failure* f = &loop->failure;
  int rc;
  if (r->put) {
    f->dst = j->dst->range->address + r->dst_offset;
    f->src = j->src->range->address + r->src_offset;
    f->bytes = r->bytes;
    if (r->bytes && (rc = queue->operations->write(queue, f->dst, f->src, r->bytes)))
      return fail(f, NATIVE_WRITE, rc);
  }
  if (r->signal) {
    native_count* sent = j->port->sent;
    f->dst = j->port->word;
    if ((rc = queue->operations->store(queue, j->port->word, sent->sent + 1)))
      return fail(f, NATIVE_STORE, rc);
    sent->sent++;
  }
  if (r->flush && (rc = proxy_flush_begin(&loop->flushing, c, j->position, j->since, counters)))
    return fail(f, NATIVE_MARK, rc);
  return 0;
}

static void count(const proxy_job* j, proxy_counters* counters) {
  if (!counters) return;
  proxy_count(&counters->triggers[j->trigger.kind], 1);
  if (j->verdict == PROXY_MOVE && j->request.put)
    proxy_count(&counters->bytes[j->port->connection->transport], j->request.bytes);
}

// SERVED is another end of serve.
enum { SERVED = -1 };

// serve serves the job, if it can.
static int serve(proxy_loop* loop, const proxy_job* j, native_thread* thread, proxy_counters* counters) {
  if (!proxy_native(j)) return PROXY_JOBS;
  if (j->request.flush && !proxy_flush_reserve(j->port->connection)) return PROXY_NO_MEMORY;
  loop->failure = (proxy_failure){0};
  int rc = enter(j, thread);
  if (rc == NATIVE_BUSY || rc == NATIVE_CLOSED) return PROXY_JOBS;
  if (rc) {
    fail(&loop->failure, NATIVE_BEGIN, rc);
    return PROXY_FAILED;
  }
  rc = perform(loop, j, counters);
  leave(j);
  if (rc) return PROXY_FAILED;
  count(j, counters);
  return SERVED;
}

// next makes a job of the oldest trigger that was not polled, if there is one.
static bool next(const proxy_loop* loop, const native_ring* ring, const proxy_counters* counters,
                 proxy_job* j) {
  if (!native_ring_peek(ring, &j->trigger)) return false;
  proxy_decide(j, &loop->tables, ring);
  if (counters && j->request.flush) j->since = proxy_now();
  return true;
}

// hand hands Go a job, and those behind it that are for Go as well.
static void hand(proxy_loop* loop, native_ring* ring, const proxy_counters* counters,
                 const proxy_job* first) {
  loop->jobs[0] = *first;
  do {
    ring->polled++;
    loop->taken++;
  } while (loop->taken < PROXY_BATCH && next(loop, ring, counters, &loop->jobs[loop->taken]) &&
           !proxy_native(&loop->jobs[loop->taken]));
}

// end ends the time without work, if it was one.
static proxy_end end(proxy_loop* loop, proxy_counters* counters, proxy_end why) {
  proxy_work(&loop->backoff, counters);
  return why;
}

proxy_end proxy_serve(proxy_loop* loop, native_ring* ring, const proxy_orders* orders,
                      proxy_counters* counters) {
  native_thread thread = {0};
  if (!proxy_answer(loop, counters)) return PROXY_NO_MEMORY;
  while (!__atomic_load_n(&orders->quit, __ATOMIC_ACQUIRE)) {
    // Read first: what is pushed before the order is seen by the poll.
    bool stop = __atomic_load_n(&orders->stop, __ATOMIC_ACQUIRE);
    int served = 0;
    proxy_job j;
    while (served < PROXY_BATCH && next(loop, ring, counters, &j)) {
      int how = serve(loop, &j, &thread, counters);
      if (how == PROXY_JOBS) hand(loop, ring, counters, &j);
      if (how == PROXY_FAILED) loop->jobs[0] = j;
      if (how != SERVED) return end(loop, counters, (proxy_end)how);
      native_ring_pop(ring);
      served++;
    }
    loop->idle = false;
    if (served)
      proxy_work(&loop->backoff, counters);
    else if (stop && !loop->flushing)
      return end(loop, counters, PROXY_DRAINED);
    else
      loop->idle = proxy_pause(&loop->backoff, counters, loop->flushing);
    if (!loop->flushing) continue;
    int rc = proxy_flush_query(&loop->flushing, &thread, counters);
    if (rc == 0) continue;
    loop->connection = loop->flushing->number;
    if (rc == PROXY_ASK_GO) return PROXY_QUERY;
    loop->failure = (proxy_failure){.op = NATIVE_REACH, .code = rc};
    return end(loop, counters, PROXY_FLUSH_FAILED);
  }
  return end(loop, counters, PROXY_QUIT);
}

bool proxy_answer(proxy_loop* loop, proxy_counters* counters) {
  for (uint32_t i = 0; i < loop->done; i++) {
    const proxy_job* j = &loop->jobs[i];
    count(j, counters);
    if (j->verdict != PROXY_MOVE || !j->request.flush) continue;
    if (!proxy_flush_reserve(j->port->connection)) return false;
    proxy_flush_began(&loop->flushing, j->port->connection, j->position, j->since);
  }
  loop->taken = loop->done = 0;
  if (loop->reached) proxy_flush_done(&loop->flushing, counters);
  loop->reached = false;
  return true;
}

void proxy_loop_free(proxy_loop* loop) {
  proxy_table_free(&loop->tables.connections, proxy_connection_free);
  proxy_table_free(&loop->tables.ports, free);
  proxy_table_free(&loop->tables.memories, free);
  free(loop);
}
