#include "fake.h"

#include <string.h>

static bool same(native_place a, native_place b) { return a.range == b.range && a.offset == b.offset; }

// asks reports whether a request asks for an operation.
static bool asks(const native_request* r, int op) {
  switch (op) {
    case NATIVE_WRITE:
      return r->bytes != 0;
    case NATIVE_STORE:
      return r->stores;
    case NATIVE_UPDATE:
      return r->word.range != NULL;
  }
  return op == NATIVE_MARK && r->marks;
}

// follows reports whether the request asks for an operation between two.
static bool follows(const fake_queue* q, int after, int before) {
  for (int op = after + 1; op < before; op++)
    if (asks(&q->request, op)) return true;
  return false;
}

static void expect(fake_queue* q, bool ok) {
  if (!ok) __atomic_fetch_add(&q->wrong, 1, __ATOMIC_SEQ_CST);
}

// outcome returns the code of an operation, and counts it when that is 0.
static int outcome(fake_queue* q, int op) {
  int code = (int)__atomic_load_n(&q->codes[op], __ATOMIC_SEQ_CST);
  if (code)
    q->failed = true;
  else
    __atomic_fetch_add(&q->done[op], 1, __ATOMIC_SEQ_CST);
  return code;
}

// next is outcome for an operation of the request, which must be what that asks for next.
static int next(fake_queue* q, int op, bool as_asked) {
  expect(q, as_asked && q->serves && op > q->last && asks(&q->request, op) && !follows(q, q->last, op));
  if (q->last == NATIVE_BEGIN) q->queue.taken++;
  q->last = op;
  return outcome(q, op);
}

// park returns what an operation that was done returns: one that the request ends with may wait.
static int park(const fake_queue* q, int op) {
  const bool waits = __atomic_load_n(&q->parks, __ATOMIC_SEQ_CST);
  return waits && !follows(q, op, NATIVE_MARK + 1) ? NATIVE_PENDING : 0;
}

static int begin(native_queue* queue, native_thread* thread, const native_request* request) {
  (void)thread;
  fake_queue* q = (fake_queue*)queue;
  if (__atomic_load_n(&q->busy, __ATOMIC_SEQ_CST)) return NATIVE_BUSY;
  q->serves = request != NULL;
  q->request = request ? *request : (native_request){0};
  q->last = NATIVE_BEGIN;
  q->failed = false;
  return outcome(q, NATIVE_BEGIN);
}

// end expects all to be done that was asked for, unless something failed. A request that gave way to
// a turn has not begun.
static void end(native_queue* queue) {
  fake_queue* q = (fake_queue*)queue;
  const bool begun = q->last != NATIVE_BEGIN || !__atomic_load_n(&queue->turns, __ATOMIC_SEQ_CST);
  expect(q, !begun || q->failed || !follows(q, q->last, NATIVE_MARK + 1));
}

static int write(native_queue* queue, native_place dst, native_place src, uint64_t n) {
  fake_queue* q = (fake_queue*)queue;
  const native_request* r = &q->request;
  int rc = next(q, NATIVE_WRITE, same(dst, r->dst) && same(src, r->src) && n == r->bytes);
  if (rc) return rc;
  if (dst.range->mapped && src.range->mapped)
    memmove((void*)(uintptr_t)native_address(dst), (const void*)(uintptr_t)native_address(src), n);
  return park(q, NATIVE_WRITE);
}

static int store_as(fake_queue* q, int op, bool as_asked, native_place dst, uint64_t value) {
  int rc = next(q, op, as_asked);
  if (rc) return rc;
  if (dst.range->mapped) __atomic_store_n((uint64_t*)(uintptr_t)native_address(dst), value, __ATOMIC_SEQ_CST);
  return park(q, op);
}

static int store(native_queue* queue, native_place dst, uint64_t value) {
  fake_queue* q = (fake_queue*)queue;
  return store_as(q, NATIVE_STORE, same(dst, q->request.dst), dst, value);
}

static int update(native_queue* queue, native_place dst, uint64_t from, uint64_t to) {
  fake_queue* q = (fake_queue*)queue;
  return store_as(q, NATIVE_UPDATE, same(dst, q->request.word) && from <= to, dst, to);
}

static int mark(native_queue* queue, unsigned mark) {
  int rc = next((fake_queue*)queue, NATIVE_MARK, mark < NATIVE_MARKS);
  return rc ? rc : NATIVE_PENDING;
}

static int progress(native_queue* queue, uint64_t requests) {
  fake_queue* q = (fake_queue*)queue;
  const bool waits = requests > __atomic_load_n(&q->queued, __ATOMIC_SEQ_CST);
  return waits && __atomic_load_n(&q->parks, __ATOMIC_SEQ_CST) ? NATIVE_PENDING : outcome(q, NATIVE_PROGRESS);
}

static int reached(native_queue* queue, unsigned mark) {
  (void)mark;
  fake_queue* q = (fake_queue*)queue;
  if (__atomic_load_n(&q->held, __ATOMIC_SEQ_CST) || __atomic_load_n(&q->parks, __ATOMIC_SEQ_CST))
    return NATIVE_PENDING;
  return outcome(q, NATIVE_REACH);
}

void fake_init(fake_queue* q, bool remote) {
  static const native_operations here = {begin, end, write, store, update, progress, mark, reached, false};
  static const native_operations there = {begin, end, write, store, update, progress, mark, reached, true};
  q->queue.operations = remote ? &there : &here;
}

int fake_do(native_queue* queue, int op, uint64_t a, uint64_t b, uint64_t n) {
  native_thread thread = {0};
  native_range memory = {.size = UINT64_MAX, .mapped = true};  // all there is
  const native_place to = {&memory, a}, from = {&memory, b};
  const native_request request = {.dst = to,
                                  .src = from,
                                  .bytes = op == NATIVE_WRITE ? n : 0,
                                  .stores = op == NATIVE_STORE,
                                  .marks = op == NATIVE_MARK,
                                  .word = op == NATIVE_UPDATE ? to : (native_place){NULL, 0}};
  int rc = native_queue_enter(queue, &thread, op == NATIVE_REACH || op == NATIVE_PROGRESS ? NULL : &request);
  if (rc) return rc;
  switch (op) {
    case NATIVE_WRITE:
      rc = queue->operations->write(queue, to, from, n);
      break;
    case NATIVE_STORE:
      rc = queue->operations->store(queue, to, b);
      break;
    case NATIVE_UPDATE:
      rc = queue->operations->update(queue, to, n, b);
      break;
    case NATIVE_PROGRESS:
      rc = queue->operations->progress(queue, UINT64_MAX);
      break;
    case NATIVE_MARK:
      rc = queue->operations->mark(queue, (unsigned)a);
      break;
    case NATIVE_REACH:
      rc = queue->operations->reached(queue, (unsigned)a);
      break;
  }
  native_queue_leave(queue);
  return rc;
}

int fake_serve(native_queue* queue, const native_request* r, uint64_t value, uint64_t from, uint64_t to,
               unsigned mark) {
  const native_operations* does = queue->operations;
  native_thread thread = {0};
  int rc = native_queue_enter(queue, &thread, r);
  if (rc) return rc;
  if (r->bytes) rc = does->write(queue, r->dst, r->src, r->bytes);
  if (!rc && r->stores) rc = does->store(queue, r->dst, value);
  if (!rc && r->word.range) rc = does->update(queue, r->word, from, to);
  if (!rc && r->marks) rc = does->mark(queue, mark - 1);
  native_queue_leave(queue);
  return rc;
}
