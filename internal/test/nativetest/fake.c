#include "fake.h"

#include <string.h>

// outcome returns the code of an operation, and counts it when that is 0.
static int outcome(native_queue* queue, int op) {
  fake_queue* q = (fake_queue*)queue;
  int code = (int)__atomic_load_n(&q->codes[op], __ATOMIC_SEQ_CST);
  if (!code) __atomic_fetch_add(&q->done[op], 1, __ATOMIC_SEQ_CST);
  return code;
}

static int begin(native_queue* queue, native_thread* thread) {
  (void)thread;
  if (__atomic_load_n(&((fake_queue*)queue)->busy, __ATOMIC_SEQ_CST)) return NATIVE_BUSY;
  return outcome(queue, NATIVE_BEGIN);
}

static void end(native_queue* queue) { (void)queue; }

static int write(native_queue* queue, uint64_t dst, uint64_t src, uint64_t n) {
  int rc = outcome(queue, NATIVE_WRITE);
  if (!rc) memmove((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, n);
  return rc;
}

static int store(native_queue* queue, uint64_t dst, uint64_t value) {
  int rc = outcome(queue, NATIVE_STORE);
  if (!rc) __atomic_store_n((uint64_t*)(uintptr_t)dst, value, __ATOMIC_SEQ_CST);
  return rc;
}

static int mark(native_queue* queue, unsigned mark) {
  (void)mark;
  int rc = outcome(queue, NATIVE_MARK);
  return rc ? rc : NATIVE_PENDING;
}

static int reached(native_queue* queue, unsigned mark) {
  (void)mark;
  if (__atomic_load_n(&((fake_queue*)queue)->held, __ATOMIC_SEQ_CST)) return NATIVE_PENDING;
  return outcome(queue, NATIVE_REACH);
}

void fake_init(fake_queue* q) {
  static const native_operations operations = {begin, end, write, store, mark, reached};
  q->queue.operations = &operations;
}

int fake_do(native_queue* queue, int op, uint64_t a, uint64_t b, uint64_t n) {
  native_thread thread = {0};
  int rc = native_queue_enter(queue, &thread);
  if (rc) return rc;
  switch (op) {
    case NATIVE_WRITE:
      rc = queue->operations->write(queue, a, b, n);
      break;
    case NATIVE_STORE:
      rc = queue->operations->store(queue, a, b);
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
