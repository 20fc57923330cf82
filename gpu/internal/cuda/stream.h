// Streams, events, graphs and launches.
#ifndef MSCCLGO_CUDA_STREAM_H
#define MSCCLGO_CUDA_STREAM_H

#include "context.h"

typedef struct {
  cuda_context* context;
  CUstream handle;
  unsigned queued;  // at most, since it was last known to be empty
} cuda_stream;

// stream_create creates a stream that is not ordered with the legacy default stream.
static inline status stream_create(cuda_stream* s, cuda_context* c) {
  ENTER_UNSAFE(c);
  s->context = c;
  return CALL(c->api, cuStreamCreate, &s->handle, CU_STREAM_NON_BLOCKING);
}

static inline status stream_destroy(cuda_stream* s) {
  ENTER_UNSAFE(s->context);
  return CALL(s->context->api, cuStreamDestroy_v2, s->handle);
}

// STREAM_MUCH is the work that may be queued before stream_busy is called, which takes
// some tenths of a microsecond.
enum { STREAM_MUCH = 64 };

// stream_busy reports whether a stream has work or is capturing, when a query would
// invalidate the capture.
static inline bool stream_busy(cuda_stream* s) {
  CUstreamCaptureStatus capture;
  if (CALL(s->context->api, cuStreamIsCapturing, s->handle, &capture)) return false;
  return capture != CU_STREAM_CAPTURE_STATUS_NONE ||
         CALL(s->context->api, cuStreamQuery, s->handle) == CUDA_ERROR_NOT_READY;
}

// stream_take takes a turn to queue an amount of work, unless the stream has work. Such
// a stream has its hardware queue; and if that is full, the driver waits for room, while
// other threads may have to go on.
static inline bool stream_take(cuda_stream* s, unsigned amount) {
  if (__atomic_add_fetch(&s->queued, amount, __ATOMIC_RELAXED) > STREAM_MUCH) {
    if (stream_busy(s)) return false;
    __atomic_store_n(&s->queued, amount, __ATOMIC_RELAXED);
  }
  return turn_take(&s->context->submitting);
}

// QUEUE calls a function that puts one piece of work on a stream.
#define QUEUE(s, name, ...) SUBMIT((s)->context, stream_take(s, 1), name, __VA_ARGS__)

static inline status stream_copy(cuda_stream* s, CUdeviceptr dst, CUdeviceptr src, size_t n) {
  ENTER(s->context);
  return QUEUE(s, cuMemcpyAsync, dst, src, n, s->handle);
}

// stream_copy_now copies and waits. The host's end may be ordinary memory.
static inline status stream_copy_now(cuda_stream* s, CUdeviceptr dst, CUdeviceptr src, void* host, size_t n) {
  ENTER_UNSAFE(s->context);
  if (!dst) dst = (CUdeviceptr)(uintptr_t)host;
  if (!src) src = (CUdeviceptr)(uintptr_t)host;
  TRY(QUEUE(s, cuMemcpyAsync, dst, src, n, s->handle));
  return CALL(s->context->api, cuStreamSynchronize, s->handle);
}

static inline status stream_fill(cuda_stream* s, CUdeviceptr dst, unsigned char value, size_t n) {
  ENTER(s->context);
  return QUEUE(s, cuMemsetD8Async, dst, value, n, s->handle);
}

static inline status stream_write_value(cuda_stream* s, CUdeviceptr dst, uint64_t value) {
  ENTER(s->context);
  return QUEUE(s, cuStreamWriteValue64_v2, s->handle, dst, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static inline status stream_wait_value(cuda_stream* s, CUdeviceptr src, uint64_t value, bool equal) {
  ENTER(s->context);
  return QUEUE(s, cuStreamWaitValue64_v2, s->handle, src, value,
               equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ);
}

static inline status stream_record(cuda_stream* s, CUevent event) {
  ENTER(s->context);
  return QUEUE(s, cuEventRecord, event, s->handle);
}

static inline status stream_wait_event(cuda_stream* s, CUevent event) {
  ENTER(s->context);
  return QUEUE(s, cuStreamWaitEvent, s->handle, event, 0);
}

static inline status stream_query(cuda_stream* s) {
  ENTER(s->context);
  status rc = CALL(s->context->api, cuStreamQuery, s->handle);
  if (!rc) __atomic_store_n(&s->queued, 0, __ATOMIC_RELAXED);
  return rc;
}

// stream_begin_capture captures in the relaxed mode. The other modes tie a capture to
// the thread that began it, and a goroutine has no thread of its own.
static inline status stream_begin_capture(cuda_stream* s) {
  ENTER(s->context);
  return CALL(s->context->api, cuStreamBeginCapture_v2, s->handle, CU_STREAM_CAPTURE_MODE_RELAXED);
}

static inline status stream_end_capture(cuda_stream* s, CUgraphExec* exec) {
  ENTER_UNSAFE(s->context);
  CUgraph graph = NULL;
  TRY(CALL(s->context->api, cuStreamEndCapture, s->handle, &graph));
  status rc = CALL(s->context->api, cuGraphInstantiateWithFlags, exec, graph, 0);
  CALL(s->context->api, cuGraphDestroy, graph);
  return rc;
}

static inline status graph_launch(cuda_stream* s, CUgraphExec exec) {
  ENTER(s->context);
  return SUBMIT(s->context, stream_take(s, STREAM_MUCH), cuGraphLaunch, exec, s->handle);
}

static inline status graph_destroy(cuda_context* c, CUgraphExec exec) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuGraphExecDestroy, exec);
}

static inline status event_create(cuda_context* c, CUevent* event) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuEventCreate, event, CU_EVENT_DEFAULT);
}

static inline status event_destroy(cuda_context* c, CUevent event) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuEventDestroy_v2, event);
}

static inline status event_query(cuda_context* c, CUevent event) {
  ENTER(c);
  return CALL(c->api, cuEventQuery, event);
}

static inline status event_elapsed(cuda_context* c, CUevent start, CUevent end, float* milliseconds) {
  ENTER(c);
  return CALL(c->api, cuEventElapsedTime, milliseconds, start, end);
}

// stream_launch queues a kernel. args holds the arguments at the offsets of its
// parameters; the driver copies them.
static inline status stream_launch(cuda_stream* s, CUfunction kernel, uint32_t gx, uint32_t gy, uint32_t gz,
                                   uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared, bool cooperative,
                                   bool overlap, void* args, size_t size) {
  ENTER(s->context);
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, args, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                    CU_LAUNCH_PARAM_END};
  void** extra = size ? packed : NULL;
  if (!cooperative && !overlap)
    return QUEUE(s, cuLaunchKernel, kernel, gx, gy, gz, bx, by, bz, shared, s->handle, NULL, extra);
  CUlaunchAttribute attributes[2];
  unsigned count = 0;
  if (cooperative)
    attributes[count++] =
        (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {.cooperative = 1}};
  if (overlap)
    attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                              .value = {.programmaticStreamSerializationAllowed = 1}};
  CUlaunchConfig config = {.gridDimX = gx,
                           .gridDimY = gy,
                           .gridDimZ = gz,
                           .blockDimX = bx,
                           .blockDimY = by,
                           .blockDimZ = bz,
                           .sharedMemBytes = shared,
                           .hStream = s->handle,
                           .attrs = attributes,
                           .numAttrs = count};
  return QUEUE(s, cuLaunchKernelEx, &config, kernel, NULL, extra);
}

#endif
