#include "fake.h"

#include <string.h>

// outcome returns the code of an operation, and counts it when that is 0.
static int outcome(native_queue* queue, int op) {
  fake_queue* q = (fake_queue*)queue;
  int code = (int)__atomic_load_n(&q->codes[op], __ATOMIC_SEQ_CST);
  if (!code) __atomic_fetch_add(&q->done[op], 1, __ATOMIC_SEQ_CST);
  return code;
}

static int begin(native_queue* queue, native_thread* thread, const native_request* request) {
  (void)thread, (void)request;
  if (__atomic_load_n(&((fake_queue*)queue)->busy, __ATOMIC_SEQ_CST)) return NATIVE_BUSY;
  return outcome(queue, NATIVE_BEGIN);
}

static void end(native_queue* queue) { (void)queue; }

static int write(native_queue* queue, native_place dst, native_place src, uint64_t n) {
  int rc = outcome(queue, NATIVE_WRITE);
  if (!rc) memmove((void*)(uintptr_t)native_address(dst), (const void*)(uintptr_t)native_address(src), n);
  return rc;
}

static int store_as(native_queue* queue, int op, native_place dst, uint64_t value) {
  int rc = outcome(queue, op);
  if (!rc) __atomic_store_n((uint64_t*)(uintptr_t)native_address(dst), value, __ATOMIC_SEQ_CST);
  return rc;
}

static int store(native_queue* queue, native_place dst, uint64_t value) {
  return store_as(queue, NATIVE_STORE, dst, value);
}

static int update(native_queue* queue, native_place dst, uint64_t from, uint64_t to) {
  (void)from;
  return store_as(queue, NATIVE_UPDATE, dst, to);
}

static int mark(native_queue* queue, unsigned mark) {
  (void)mark;
  int rc = outcome(queue, NATIVE_MARK);
  return rc ? rc : NATIVE_PENDING;
}

static int progress(native_queue* queue) { return outcome(queue, NATIVE_PROGRESS); }

static int reached(native_queue* queue, unsigned mark) {
  (void)mark;
  if (__atomic_load_n(&((fake_queue*)queue)->held, __ATOMIC_SEQ_CST)) return NATIVE_PENDING;
  return outcome(queue, NATIVE_REACH);
}

void fake_init(fake_queue* q) {
  static const native_operations operations = {begin,    end,  write,   store, update,
                                               progress, mark, reached, false};
  q->queue.operations = &operations;
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
      rc = queue->operations->progress(queue);
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
