#include "loop.h"

// leave_ranges leaves the first n ranges of a job.
static void leave_ranges(const proxy_job* j, int n) {
  while (n-- > 0)
    if (j->ranges[n]) native_range_leave(j->ranges[n]);
}

static bool enter_ranges(const proxy_job* j) {
  for (int i = 0; i < PROXY_RANGES; i++)
    if (j->ranges[i] && !native_range_enter(j->ranges[i])) {
      leave_ranges(j, i);
      return false;
    }
  return true;
}

static void leave_count(const proxy_job* j) {
  if (j->trigger.kind & PROXY_SIGNAL) native_count_release(j->port->sent);
}

static void leave(const proxy_job* j) {
  native_queue_leave(j->port->connection->queue);
  leave_count(j);
  leave_ranges(j, PROXY_RANGES);
}

static native_place dst_of(const proxy_job* j) { return (native_place){j->ranges[0], j->dst_offset}; }
static native_place src_of(const proxy_job* j) { return (native_place){j->ranges[1], j->src_offset}; }
static native_place word_of(const proxy_job* j) { return (native_place){j->ranges[2], j->port->word}; }

// request returns what a job asks of its connection's queue.
static native_request request(const proxy_job* j) {
  const native_trigger* t = &j->trigger;
  return (native_request){
      .dst = dst_of(j),
      .src = src_of(j),
      .bytes = t->kind & PROXY_COPIES ? t->c : 0,
      .reads = t->kind & PROXY_GET,
      .stores = t->kind & PROXY_STORE,
      .marks = t->kind & PROXY_FLUSH,
      .word = word_of(j),
  };
}

// enter takes all that the job of an entry needs, until leave, or nothing, so that a trigger is
// served whole or left whole to Go. It returns 0, a code of queue.h or the
// transport's.
static int enter(const proxy_job* j, const void* entry, native_thread* thread) {
  if (!enter_ranges(j)) return NATIVE_CLOSED;
  int rc = NATIVE_BUSY;
  if (!(j->trigger.kind & PROXY_SIGNAL) || native_count_claim(j->port->sent)) {
    const native_request r = request(j);
    thread->trigger = entry;
    rc = native_queue_enter(j->port->connection->queue, thread, &r);
    if (!rc) return 0;
    leave_count(j);
  }
  leave_ranges(j, PROXY_RANGES);
  return rc;
}

// trace adds what was done for a job to the timeline: the transport's copy and atomic, the
// signal, and the trigger itself.
static void trace(const proxy_loop* loop, const proxy_job* j, uint64_t start) {
  if (!loop->trace) return;
  const proxy_port* port = j->port;
  const uint32_t transport = port->connection->transport << 8;
  const uint8_t kind = j->trigger.kind;
  native_event e = {.start = start, .end = native_trace_now(), .where = port->connection->peer};
  if ((kind & (PROXY_COPIES | PROXY_STORE)) && j->trigger.c) {
    e.what = (kind & PROXY_GET ? NATIVE_TRACE_READ : NATIVE_TRACE_WRITE) | transport;
    e.bytes = j->trigger.c;
    native_trace_add(loop->trace, &e);
  }
  if (kind & PROXY_SIGNAL) {
    e.what = NATIVE_TRACE_ATOMIC | transport;
    e.value = port->sent->sent;
    e.bytes = 8;
    native_trace_add(loop->trace, &e);
    e.what = NATIVE_TRACE_HOST_SIGNAL;
    e.where = port->where;
    e.bytes = j->position + 1;
    e.extra = loop->entries;
    native_trace_add(loop->trace, &e);
  }
  e = (native_event){.what = NATIVE_TRACE_SERVE | (uint32_t)kind << 8,
                     .start = (uint64_t)j->since,
                     .end = e.end,
                     .where = port->where,
                     .value = j->position,
                     .bytes = proxy_bytes(&j->trigger),
                     .extra = loop->entries};
  native_trace_add(loop->trace, &e);
}

// perform does a job that was entered. It returns 0, or the code of the failure.
static int perform(proxy_loop* loop, const proxy_job* j) {
  const native_trigger* t = &j->trigger;
  native_queue* queue = j->port->connection->queue;
  proxy_failure* f = &loop->failure;
  const uint64_t start = loop->trace ? native_trace_now() : 0;
  int rc = 0;
  if ((t->kind & PROXY_COPIES) && t->c) {
    const native_place dst = dst_of(j), src = src_of(j);
    *f = (proxy_failure){t->kind & PROXY_GET ? NATIVE_READ : NATIVE_WRITE, 0, native_address(dst),
                         native_address(src), t->c};
    rc = queue->operations->write(queue, dst, src, t->c);
  }
  if (t->kind & PROXY_STORE) {
    const native_place dst = dst_of(j);
    *f = (proxy_failure){.op = NATIVE_STORE, .dst = native_address(dst)};
    rc = queue->operations->store(queue, dst, t->b);
  }
  if (!rc && (t->kind & PROXY_SIGNAL)) {
    native_count* sent = j->port->sent;
    const native_place word = word_of(j);
    *f = (proxy_failure){.op = NATIVE_UPDATE, .dst = native_address(word)};
    rc = queue->operations->update(queue, word, sent->sent, sent->sent + 1);
    if (!rc || rc == NATIVE_PENDING) sent->sent++;
  }
  if (rc == NATIVE_PENDING) {
    proxy_flush_parked(&loop->flushing, j->port->connection);
    rc = 0;
  }
  if (!rc && (t->kind & PROXY_FLUSH)) {
    f->op = NATIVE_MARK;
    rc = proxy_flush_begin(&loop->flushing, j->port->connection, j->position, j->since, loop->counters);
  }
  f->code = rc;
  if (!rc) trace(loop, j, start);
  return rc;
}

static void count(const proxy_job* j, proxy_counters* counters) {
  if (!counters) return;
  proxy_count(&counters->triggers[j->trigger.kind], 1);
  if (j->verdict != PROXY_USER && (j->trigger.kind & (PROXY_COPIES | PROXY_STORE)))
    proxy_count(&counters->bytes[j->port->connection->transport], proxy_bytes(&j->trigger));
}

// took tells kernels that there is room for another trigger of the job's connection.
static void took(const proxy_job* j) {
  uint64_t* taken = j->port->connection->taken;
  if (taken) __atomic_fetch_add(taken, 1, __ATOMIC_RELEASE);
}

// SERVED is another end of serve.
enum { SERVED = -1 };

// dropped reports whether a job is not to be done, since its group has failed. The failure ends a kernel's
// wait, and the kernel queued behind it may ask for this job. A peer that has not heard of the failure would
// take its data or signal for the first kernel's. The flag is set before the abort word that ends the wait.
// It is read here after the acquiring loads of the trigger, and the push of a trigger orders what its kernel
// knew before. So the flag is seen for all triggers of kernels that began after the wait's end.
static bool dropped(const proxy_job* j) {
  return (j->verdict == PROXY_NATIVE || j->verdict == PROXY_MOVE) &&
         __atomic_load_n(j->port->connection->failed, __ATOMIC_ACQUIRE) != 0;
}

// serve serves a job, if it can.
static int serve(proxy_loop* loop, proxy_job* j, native_thread* thread) {
  // It gives no room back: a kernel that asks on and on comes to wait for room, which its group has ended.
  if (dropped(j)) return SERVED;
  if (j->verdict != PROXY_NATIVE) return PROXY_JOBS;
  const bool waits = __atomic_load_n(&j->port->connection->waiting, __ATOMIC_ACQUIRE) != 0;
  int rc = waits ? NATIVE_BUSY : enter(j, native_ring_entry(loop->ring, j->position), thread);
  if (rc == NATIVE_BUSY || rc == NATIVE_CLOSED) {
    j->verdict = PROXY_MOVE;
    return PROXY_JOBS;
  }
  if (rc) {
    loop->failure = (proxy_failure){.op = NATIVE_BEGIN, .code = rc};
    return PROXY_FAILED;
  }
  rc = perform(loop, j);
  leave(j);
  if (rc) return PROXY_FAILED;
  took(j);
  count(j, loop->counters);
  return SERVED;
}

// next makes a job of the oldest trigger that was not polled, if there is one.
static bool next(const proxy_loop* loop, proxy_job* j) {
  if (!native_ring_peek(loop->ring, &j->trigger)) return false;
  proxy_decide(j, &loop->tables, loop->ring);
  if ((loop->counters && (j->trigger.kind & PROXY_FLUSH)) || loop->trace) j->since = proxy_now();
  return true;
}

// hand hands Go a job and, up to n, the jobs behind it that are for Go as well. in_use is the job's
// connection if that was in use or had no room, or NULL. Such a connection would be in use again for
// a job behind it that C could serve, unless a handler takes its time in between.
static void hand(proxy_loop* loop, const proxy_job* first, const proxy_connection* in_use, uint32_t n) {
  loop->jobs[0] = *first;
  for (proxy_job* j = loop->jobs;;) {
    if (j->verdict == PROXY_USER) in_use = NULL;
    loop->ring->polled++;
    if (++loop->taken == n || !next(loop, ++j) || dropped(j)) return;
    if (j->verdict != PROXY_NATIVE) continue;
    if (j->port->connection != in_use) return;
    j->verdict = PROXY_MOVE;
  }
}

// query asks whether a flush is done. It returns PROXY_IDLE, or what there is for Go.
static proxy_end query(proxy_loop* loop, native_thread* thread) {
  int op, rc = proxy_flush_query(&loop->flushing, thread, loop->counters, &op);
  if (rc == 0) return PROXY_IDLE;
  loop->connection = loop->flushing.at[loop->flushing.asked]->number;
  if (rc == PROXY_ASK_GO) return PROXY_QUERY;
  loop->failure = (proxy_failure){.op = op, .code = rc};
  return PROXY_FLUSH_FAILED;
}

// poll serves what is in the ring.
static proxy_end poll(proxy_loop* loop, native_thread* thread) {
  proxy_job j;
  uint32_t n = 0;
  for (; n < PROXY_BATCH && next(loop, &j); n++) {
    __atomic_store_n(&loop->begun, loop->begun + 1, __ATOMIC_RELEASE);
    const proxy_connection* native = j.verdict == PROXY_NATIVE ? j.port->connection : NULL;
    int how = serve(loop, &j, thread);
    if (how == PROXY_JOBS) hand(loop, &j, native, PROXY_BATCH - n);
    if (how == PROXY_FAILED) loop->jobs[0] = j;
    if (how != SERVED) return (proxy_end)how;
    if (loop->serving) __atomic_store_n(&loop->serving, 0, __ATOMIC_RELEASE);
    native_ring_pop(loop->ring);
  }
  return n ? PROXY_WORKED : PROXY_IDLE;
}

// stall_pause is after how many nanoseconds a ring that has stalled is looked at again.
enum { stall_pause = 50 * 1000 };

proxy_end proxy_turn(proxy_loop* loop, native_thread* thread) {
  if (loop->stalled) {
    loop->ring->polled -= loop->taken - loop->done;  // they are polled again
    loop->again = loop->turns ? 0 : proxy_now() + stall_pause;
    loop->stalled = false;
  }
  proxy_finish(loop);
  if (__atomic_load_n(&loop->quit, __ATOMIC_ACQUIRE)) return PROXY_QUIT;
  if (loop->flushing.size && !loop->looked) {
    loop->looked = true;
    proxy_end why = query(loop, thread);
    if (why != PROXY_IDLE) return why;
  }
  loop->looked = false;
  // Read first: the poll sees what was pushed before the order.
  bool stop = __atomic_load_n(&loop->stop, __ATOMIC_ACQUIRE);
  if (loop->again && proxy_now() < loop->again) return PROXY_IDLE;
  loop->again = 0;
  proxy_end why = poll(loop, thread);
  if (why == PROXY_IDLE && !loop->flushing.size)
    __atomic_store_n(&loop->rounds, loop->rounds + 1, __ATOMIC_RELEASE);
  bool left = loop->flushing.size || __atomic_load_n(&loop->waiting, __ATOMIC_ACQUIRE);
  return why == PROXY_IDLE && stop && !left ? PROXY_DRAINED : why;
}

void proxy_finish(proxy_loop* loop) {
  for (uint32_t i = 0; i < loop->done; i++) {
    const proxy_job* j = &loop->jobs[i];
    count(j, loop->counters);
    if (j->verdict != PROXY_USER && (j->trigger.kind & PROXY_FLUSH))
      proxy_flush_began(&loop->flushing, j->port->connection, j->position, j->since);
  }
  if (loop->reached) proxy_flush_done(&loop->flushing, loop->counters);
  loop->taken = loop->done = 0;
  loop->reached = false;
}

proxy_loop* proxy_loop_new(void) {
  proxy_loop* loop = calloc(1, sizeof *loop);
  if (!loop) abort();
  return loop;
}

void proxy_loop_free(proxy_loop* loop) {
  proxy_tables* t = &loop->tables;
  for (uint32_t i = 0; i < t->connections.size; i++)
    free(((proxy_connection*)proxy_table_get(&t->connections, i))->flushes);
  proxy_table_free(&t->connections);
  proxy_table_free(&t->ports);
  proxy_table_free(&t->memories);
  free(loop);
}
