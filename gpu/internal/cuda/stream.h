// Streams, events, graphs and launches.
#ifndef MSCCLGO_CUDA_STREAM_H
#define MSCCLGO_CUDA_STREAM_H

#include "context.h"

typedef struct {
  cuda_context* context;
  CUstream handle;
  unsigned queued;  // at most, since it was last known to be empty
} cuda_stream;

// handle_stream and handle_event make handles of the numbers that other code has of them.
static inline CUstream handle_stream(uintptr_t number) { return (CUstream)number; }
static inline CUevent handle_event(uintptr_t number) { return (CUevent)number; }

// stream_create creates a stream that is not ordered with the legacy default stream.
static inline status stream_create(cuda_stream* s, cuda_context* c) {
  ENTER_UNSAFE(c);
  s->context = c;
  return CALL(c->api, cuStreamCreate, &s->handle, CU_STREAM_NON_BLOCKING);
}

// stream_wrap makes a stream of a handle that other code has. device is the device of the
// handle's context, and primary whether that context is c. A default stream takes the context that
// it is used in.
static inline status stream_wrap(cuda_stream* s, cuda_context* c, CUstream handle, CUdevice* device,
                                 bool* primary) {
  ENTER(c);
  s->context = c;
  s->handle = handle ? handle : CU_STREAM_LEGACY;
  *device = c->device;
  *primary = true;
  if (s->handle == CU_STREAM_LEGACY || s->handle == CU_STREAM_PER_THREAD) return CUDA_SUCCESS;
  CUcontext owner = NULL;
  TRY(CALL(c->api, cuStreamGetCtx, handle, &owner));
  *primary = owner == c->handle;
  if (*primary) return CUDA_SUCCESS;
  TRY(CALL(c->api, cuCtxSetCurrent, owner));
  status rc = CALL(c->api, cuCtxGetDevice, device);
  ENTER(c);
  return rc;
}

static inline status stream_enter(const cuda_stream* s) {
  ENTER(s->context);
  return CUDA_SUCCESS;
}

static inline status stream_destroy(cuda_stream* s) {
  ENTER_UNSAFE(s->context);
  return CALL(s->context->api, cuStreamDestroy_v2, s->handle);
}

// STREAM_MUCH is the work that may be queued before stream_busy is called, which takes
// some tenths of a microsecond.
enum { STREAM_MUCH = 64 };

// stream_ask queries a stream, unless it is capturing: that would invalidate the capture.
// The query is one of the calls that fail captures of other threads.
static inline status stream_ask(cuda_stream* s) {
  const mscclgo_cuda* api = s->context->api;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (api->cuStreamIsCapturing) TRY(CALL(api, cuStreamIsCapturing, s->handle, &capture));
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  capture_mode mode __attribute__((cleanup(capture_mode_restore))) = capture_mode_relax(api);
  return CALL(api, cuStreamQuery, s->handle);
}

// stream_busy reports whether a stream has work or is capturing, as far as the driver can
// tell.
static inline bool stream_busy(cuda_stream* s) {
  if (!s->context->api->cuStreamIsCapturing) return false;
  status rc = stream_ask(s);
  return rc == CUDA_ERROR_NOT_READY || rc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
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

// across_node is the node of a graph being captured that records an event.
typedef struct {
  cuuint64_t capture;  // the id of the capture
  CUgraphNode node;    // NULL if there is none
  CUgraphNode tail;    // the last that it was made to follow
} across_node;

// follows reports whether a node of a graph comes after another one in a chain of nodes that
// follow only each other. It may be false where that cannot be seen cheaply.
static inline bool follows(cuda_stream* s, CUgraphNode node, CUgraphNode before) {
  for (int steps = 0; steps < 32; steps++) {
    CUgraphNode parent;
    CUgraphEdgeData edge;
    size_t count = 1;
    if (CALL(s->context->api, cuGraphNodeGetDependencies_v2, node, NULL, NULL, &count) || count != 1)
      return false;
    if (CALL(s->context->api, cuGraphNodeGetDependencies_v2, node, &parent, &edge, &count)) return false;
    if (parent == before) return true;
    node = parent;
  }
  return false;
}

// stream_record_across has each launch of the graph being captured record the event behind
// what was captured so far. An event of the plain calls would belong to the capture. There
// is one node for the event, a leaf of the graph, that moves on with the capture: what is
// captured next does not wait for the node, and kernels still follow each other directly. It
// keeps no edge from a node that the next one follows: a kernel that two nodes follow ends
// 0.3 us later, as it did on an H100.
static inline status stream_record_across(cuda_stream* s, CUevent event, across_node* a) {
  ENTER(s->context);
  const mscclgo_cuda* api = s->context->api;
  CUstreamCaptureStatus capture;
  cuuint64_t id;
  CUgraph graph;
  const CUgraphNode* tails;
  const CUgraphEdgeData* edges;
  size_t count;
  TRY(CALL(api, cuStreamGetCaptureInfo_v3, s->handle, &capture, &id, &graph, &tails, &edges, &count));
  if (capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (count == 0) return CUDA_SUCCESS;
  if (!a->node || a->capture != id) {
    a->node = NULL;
    TRY(CALL(api, cuGraphAddEventRecordNode, &a->node, graph, tails, count, event));
    a->capture = id;
  } else {
    for (size_t i = 0; i < count; i++) {
      if (tails[i] == a->tail) continue;
      status rc = CALL(api, cuGraphAddDependencies_v2, graph, &tails[i], &a->node, NULL, 1);
      if (rc && rc != CUDA_ERROR_INVALID_VALUE) return rc;  // that is for an edge that exists
    }
    if (count == 1 && tails[0] != a->tail && follows(s, tails[0], a->tail))
      TRY(CALL(api, cuGraphRemoveDependencies_v2, graph, &a->tail, &a->node, NULL, 1));
  }
  a->tail = tails[count - 1];
  return CUDA_SUCCESS;
}

// stream_wait_across has each launch of the graph being captured wait for what the event
// marks then.
static inline status stream_wait_across(cuda_stream* s, CUevent event) {
  ENTER(s->context);
  return QUEUE(s, cuStreamWaitEvent, s->handle, event, CU_EVENT_WAIT_EXTERNAL);
}

static inline status stream_query(cuda_stream* s) {
  ENTER(s->context);
  status rc = stream_ask(s);
  if (!rc) __atomic_store_n(&s->queued, 0, __ATOMIC_RELAXED);
  return rc;
}

// stream_begin_capture captures in the relaxed mode. The other modes tie a capture to
// the thread that began it, and a goroutine has no thread of its own.
static inline status stream_begin_capture(cuda_stream* s) {
  ENTER(s->context);
  return CALL(s->context->api, cuStreamBeginCapture_v2, s->handle, CU_STREAM_CAPTURE_MODE_RELAXED);
}

// stream_capture reports whether a stream is capturing, and in which capture. An id is unique
// in the process.
static inline status stream_capture(cuda_stream* s, bool* capturing, cuuint64_t* id) {
  ENTER(s->context);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  TRY(CALL(s->context->api, cuStreamGetCaptureInfo_v3, s->handle, &capture, id, NULL, NULL, NULL, NULL));
  *capturing = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  if (capture != CU_STREAM_CAPTURE_STATUS_ACTIVE) *id = 0;
  return CUDA_SUCCESS;
}

static inline status stream_end_capture(cuda_stream* s, CUgraph* graph) {
  ENTER_UNSAFE(s->context);
  return CALL(s->context->api, cuStreamEndCapture, s->handle, graph);
}

// graph_make makes what is launched of a captured graph, which is gone then.
static inline status graph_make(cuda_context* c, CUgraph graph, CUgraphExec* exec) {
  ENTER_UNSAFE(c);
  status rc = CALL(c->api, cuGraphInstantiateWithFlags, exec, graph, 0);
  CALL(c->api, cuGraphDestroy, graph);
  return rc;
}

static inline status graph_drop(cuda_context* c, CUgraph graph) {
  ENTER_UNSAFE(c);
  return CALL(c->api, cuGraphDestroy, graph);
}

// stream_drop_capture ends a capture. Of an invalid one there is no graph.
static inline status stream_drop_capture(cuda_stream* s) {
  ENTER_UNSAFE(s->context);
  CUgraph graph = NULL;
  status rc = CALL(s->context->api, cuStreamEndCapture, s->handle, &graph);
  if (graph) rc = CALL(s->context->api, cuGraphDestroy, graph);
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
  ENTER_UNSAFE(c);
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
