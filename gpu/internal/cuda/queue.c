#include "queue.h"

// begin makes the context current, unless the thread has done so: that is needed once
// for the calls of many triggers. It keeps no goroutine out.
static int begin(native_queue* queue, native_thread* thread, const native_request* request) {
  (void)request;
  cuda_queue* q = (cuda_queue*)queue;
  if (thread->context == q->context) return 0;
  ENTER(q->context);
  capture_mode_relax(q->context->api);  // for good: the thread is the library's own
  thread->context = q->context;
  return 0;
}

static void end(native_queue* queue) { (void)queue; }

static bool turn(const cuda_queue* q) { return turn_take(&q->context->submitting); }

static int write(native_queue* queue, native_place dst, native_place src, uint64_t n) {
  cuda_queue* q = (cuda_queue*)queue;
  return SUBMIT(q->context, turn(q), cuMemcpyAsync, native_address(dst), native_address(src), n, q->stream);
}

static int store(native_queue* queue, native_place dst, uint64_t value) {
  cuda_queue* q = (cuda_queue*)queue;
  return SUBMIT(q->context, turn(q), cuStreamWriteValue64_v2, q->stream, native_address(dst), value,
                CU_STREAM_WRITE_VALUE_DEFAULT);
}

// update stores the value: a stream writes it behind its copies.
static int update(native_queue* queue, native_place dst, uint64_t from, uint64_t to) {
  (void)from;
  return store(queue, dst, to);
}

static status make_event(cuda_queue* q, unsigned mark) {
  return CALL(q->context->api, cuEventCreate, &q->marks[mark], CU_EVENT_DISABLE_TIMING);
}

// mark does not query the event: right after the call it is never ready.
static int mark(native_queue* queue, unsigned mark) {
  cuda_queue* q = (cuda_queue*)queue;
  if (!q->marks[mark]) TRY(make_event(q, mark));
  TRY(SUBMIT(q->context, turn(q), cuEventRecord, q->marks[mark], q->stream));
  return NATIVE_PENDING;
}

static int reached(native_queue* queue, unsigned mark) {
  cuda_queue* q = (cuda_queue*)queue;
  status rc = CALL(q->context->api, cuEventQuery, q->marks[mark]);
  return rc == CUDA_ERROR_NOT_READY ? NATIVE_PENDING : rc;
}

// make_events ignores failures: begin and mark try again and return the error.
static status make_events(cuda_queue* q) {
  ENTER_UNSAFE(q->context);
  for (unsigned i = 0; i < NATIVE_MARKS; i++)
    if (make_event(q, i)) q->marks[i] = NULL;
  return 0;
}

void cuda_queue_init(cuda_queue* q, cuda_context* context, CUstream stream) {
  static const native_operations operations = {begin, end, write, store, update, NULL, mark, reached, false};
  q->queue.operations = &operations;
  q->context = context;
  q->stream = stream;
  make_events(q);
}

status cuda_queue_destroy(cuda_queue* q) {
  ENTER_UNSAFE(q->context);
  status first = 0;
  for (unsigned i = 0; i < NATIVE_MARKS; i++) {
    if (!q->marks[i]) continue;
    status rc = CALL(q->context->api, cuEventDestroy_v2, q->marks[i]);
    if (!first) first = rc;
  }
  return first;
}
