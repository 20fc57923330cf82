#include "loop.h"

#include "native/request.h"

// job is a request and all that it needs; what it does not need is NULL.
typedef struct {
  native_request request;
  proxy_line* line;
  native_range *dst, *src, *words;
  native_count* sent;
  uint64_t word;
} job;

// takes says whether a line takes a range of a rank for a part of it.
static bool takes(const proxy_line* line, const native_range* range, uint32_t rank, uint64_t offset,
                  uint64_t bytes) {
  return range && range->registry == line->registry && range->rank == rank &&
         native_range_holds(range, offset, bytes);
}

// find says whether a trigger is one for this thread, and what it needs.
static bool find(const proxy_loop* loop, const native_trigger* trigger, job* j) {
  *j = (job){0};
  native_request* r = &j->request;
  if (!native_request_decode(r, trigger)) return false;
  const proxy_port* port = proxy_table_get(&loop->ports, r->port);
  if (!port) return false;
  j->line = port->line;
  if (r->signal) {
    j->sent = port->sent;
    j->words = port->words;
    j->word = port->word;
  }
  if (!r->put) return true;
  j->dst = proxy_table_get(&loop->memories, r->dst);
  j->src = proxy_table_get(&loop->memories, r->src);
  return takes(j->line, j->dst, j->line->peer, r->dst_offset, r->bytes) &&
         takes(j->line, j->src, j->line->rank, r->src_offset, r->bytes);
}

static bool enter_range(native_range* range) { return !range || native_range_enter(range); }

static void leave_range(native_range* range) {
  if (range) native_range_leave(range);
}

static void leave_ranges(const job* j) {
  leave_range(j->words);
  leave_range(j->src);
  leave_range(j->dst);
}

static bool enter_ranges(const job* j) {
  if (!enter_range(j->dst)) return false;
  if (!enter_range(j->src)) {
    leave_range(j->dst);
    return false;
  }
  if (!enter_range(j->words)) {
    leave_range(j->src);
    leave_range(j->dst);
    return false;
  }
  return true;
}

static void leave(const job* j) {
  native_queue_leave(j->line->queue);
  if (j->sent) native_count_release(j->sent);
  leave_ranges(j);
}

// enter makes all that a job needs this thread's, until leave, or nothing, so that
// a trigger is served whole or left whole to Go. It gives 0, a code of queue.h or
// the transport's.
static int enter(const job* j, native_thread* thread) {
  if (!enter_ranges(j)) return NATIVE_CLOSED;
  int rc = NATIVE_BUSY;
  if (!j->sent || native_count_claim(j->sent)) {
    rc = native_queue_enter(j->line->queue, thread);
    if (!rc) return 0;
    if (j->sent) native_count_release(j->sent);
  }
  leave_ranges(j);
  return rc;
}

static int fail(proxy_failure* f, int op, int code) {
  f->op = op;
  f->code = code;
  return code;
}

// perform does a job that was entered. It gives 0, or the code of f.
static int perform(proxy_loop* loop, const job* j, uint64_t position, int64_t since, proxy_counters* counters,
                   proxy_failure* f) {
  const native_request* r = &j->request;
  native_queue* queue = j->line->queue;
  int rc;
  if (r->put) {
    f->dst = j->dst->address + r->dst_offset;
    f->src = j->src->address + r->src_offset;
    f->bytes = r->bytes;
    if (r->bytes && (rc = queue->operations->write(queue, f->dst, f->src, r->bytes)))
      return fail(f, NATIVE_WRITE, rc);
    if (counters) proxy_count(&counters->bytes[j->line->transport], r->bytes);
  }
  if (r->signal) {
    f->dst = j->word;
    if ((rc = queue->operations->store(queue, j->word, j->sent->sent + 1))) return fail(f, NATIVE_STORE, rc);
    j->sent->sent++;
  }
  if (r->flush && (rc = proxy_flush_begin(&loop->flushing, j->line, position, since, counters)))
    return fail(f, NATIVE_MARK, rc);
  return 0;
}

// SERVED is another end of serve.
enum { SERVED = -1 };

// serve serves a trigger, if it can.
static int serve(proxy_loop* loop, const native_trigger* trigger, uint64_t position, native_thread* thread,
                 proxy_counters* counters) {
  job j;
  if (!find(loop, trigger, &j)) return PROXY_YOURS;
  int64_t since = counters && j.request.flush ? proxy_now() : 0;
  loop->failure = (proxy_failure){.line = j.line->number};
  int rc = enter(&j, thread);
  if (rc == NATIVE_BUSY || rc == NATIVE_CLOSED) return PROXY_YOURS;
  if (rc) {
    fail(&loop->failure, NATIVE_BEGIN, rc);
    return PROXY_FAILED;
  }
  rc = perform(loop, &j, position, since, counters, &loop->failure);
  leave(&j);
  if (rc) return PROXY_FAILED;
  if (counters) proxy_count(&counters->triggers[trigger->kind], 1);
  return SERVED;
}

// BATCH is how many triggers are served before the loop looks at other things.
enum { BATCH = 16 };

// end ends the time without work, if it was one.
static proxy_end end(proxy_loop* loop, proxy_counters* counters, proxy_end why) {
  proxy_work(&loop->backoff, counters);
  return why;
}

proxy_end proxy_serve(proxy_loop* loop, native_ring* ring, const proxy_orders* orders,
                      proxy_counters* counters, bool once) {
  native_thread thread = {0};
  while (!__atomic_load_n(&orders->quit, __ATOMIC_ACQUIRE)) {
    // Read first: what is pushed before the order is seen by the poll.
    bool stop = __atomic_load_n(&orders->stop, __ATOMIC_ACQUIRE);
    int served = 0;
    native_trigger trigger;
    while (served < BATCH && native_ring_peek(ring, &trigger)) {
      int how = serve(loop, &trigger, ring->popped, &thread, counters);
      if (how != SERVED) return end(loop, counters, (proxy_end)how);
      native_ring_pop(ring);
      served++;
    }
    int rc = loop->flushing ? proxy_flush_ask(&loop->flushing, &thread, counters) : 0;
    if (rc) {
      loop->failure = (proxy_failure){.op = NATIVE_REACH, .code = rc, .line = loop->flushing->number};
      return end(loop, counters, PROXY_FLUSH_FAILED);
    }
    bool under_way = once || loop->flushing, idle = false;
    if (served)
      proxy_work(&loop->backoff, counters);
    else if (stop && !under_way)
      return end(loop, counters, PROXY_DRAINED);
    else
      idle = proxy_pause(&loop->backoff, counters, under_way);
    if (once) return idle ? PROXY_IDLE : PROXY_LOOKED;
  }
  return end(loop, counters, PROXY_QUIT);
}

void proxy_loop_free(proxy_loop* loop) {
  proxy_table_free(&loop->lines, free);
  proxy_table_free(&loop->ports, free);
  proxy_table_free(&loop->memories, NULL);
  free(loop);
}
