// Streams, events, graphs and launches.
#ifndef MSCCLGO_CUDA_STREAM_H
#define MSCCLGO_CUDA_STREAM_H

#include "api.h"

// stream_create makes a stream that the legacy default stream does not order.
static inline status stream_create(const mscclgo_cuda* api, CUcontext ctx, CUstream* stream) {
  ENTER(api, ctx);
  return CALL(api, cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);
}

static inline status stream_destroy(const mscclgo_cuda* api, CUcontext ctx, CUstream stream) {
  ENTER(api, ctx);
  return CALL(api, cuStreamDestroy_v2, stream);
}

static inline status stream_copy(const mscclgo_cuda* api, CUcontext ctx, CUstream stream, CUdeviceptr dst,
                                 CUdeviceptr src, size_t n) {
  ENTER(api, ctx);
  return CALL(api, cuMemcpyAsync, dst, src, n, stream);
}

// stream_copy_now copies and waits. The host's end may be ordinary memory.
static inline status stream_copy_now(const mscclgo_cuda* api, CUcontext ctx, CUstream stream, CUdeviceptr dst,
                                     CUdeviceptr src, void* host, size_t n) {
  ENTER(api, ctx);
  if (!dst) dst = (CUdeviceptr)(uintptr_t)host;
  if (!src) src = (CUdeviceptr)(uintptr_t)host;
  TRY(CALL(api, cuMemcpyAsync, dst, src, n, stream));
  return CALL(api, cuStreamSynchronize, stream);
}

static inline status stream_fill(const mscclgo_cuda* api, CUcontext ctx, CUstream stream, CUdeviceptr dst,
                                 unsigned char value, size_t n) {
  ENTER(api, ctx);
  return CALL(api, cuMemsetD8Async, dst, value, n, stream);
}

static inline status stream_write_value(const mscclgo_cuda* api, CUcontext ctx, CUstream stream,
                                        CUdeviceptr dst, uint64_t value) {
  ENTER(api, ctx);
  return CALL(api, cuStreamWriteValue64_v2, stream, dst, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static inline status stream_wait_value(const mscclgo_cuda* api, CUcontext ctx, CUstream stream,
                                       CUdeviceptr src, uint64_t value, int equal) {
  ENTER(api, ctx);
  return CALL(api, cuStreamWaitValue64_v2, stream, src, value,
              equal ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ);
}

static inline status stream_record(const mscclgo_cuda* api, CUcontext ctx, CUstream stream, CUevent event) {
  ENTER(api, ctx);
  return CALL(api, cuEventRecord, event, stream);
}

static inline status stream_wait_event(const mscclgo_cuda* api, CUcontext ctx, CUstream stream,
                                       CUevent event) {
  ENTER(api, ctx);
  return CALL(api, cuStreamWaitEvent, stream, event, 0);
}

static inline status stream_query(const mscclgo_cuda* api, CUcontext ctx, CUstream stream) {
  ENTER(api, ctx);
  return CALL(api, cuStreamQuery, stream);
}

// stream_begin_capture captures in the relaxed mode. The others tie a capture
// to the thread that began it, and a goroutine has no thread of its own.
static inline status stream_begin_capture(const mscclgo_cuda* api, CUcontext ctx, CUstream stream) {
  ENTER(api, ctx);
  return CALL(api, cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
}

static inline status stream_end_capture(const mscclgo_cuda* api, CUcontext ctx, CUstream stream,
                                        CUgraphExec* exec) {
  ENTER(api, ctx);
  CUgraph graph = NULL;
  TRY(CALL(api, cuStreamEndCapture, stream, &graph));
  status rc = CALL(api, cuGraphInstantiateWithFlags, exec, graph, 0);
  CALL(api, cuGraphDestroy, graph);
  return rc;
}

static inline status graph_launch(const mscclgo_cuda* api, CUcontext ctx, CUgraphExec exec, CUstream stream) {
  ENTER(api, ctx);
  return CALL(api, cuGraphLaunch, exec, stream);
}

static inline status graph_destroy(const mscclgo_cuda* api, CUcontext ctx, CUgraphExec exec) {
  ENTER(api, ctx);
  return CALL(api, cuGraphExecDestroy, exec);
}

static inline status event_create(const mscclgo_cuda* api, CUcontext ctx, CUevent* event) {
  ENTER(api, ctx);
  return CALL(api, cuEventCreate, event, CU_EVENT_DEFAULT);
}

static inline status event_destroy(const mscclgo_cuda* api, CUcontext ctx, CUevent event) {
  ENTER(api, ctx);
  return CALL(api, cuEventDestroy_v2, event);
}

static inline status event_query(const mscclgo_cuda* api, CUcontext ctx, CUevent event) {
  ENTER(api, ctx);
  return CALL(api, cuEventQuery, event);
}

static inline status event_elapsed(const mscclgo_cuda* api, CUcontext ctx, CUevent start, CUevent end,
                                   float* milliseconds) {
  ENTER(api, ctx);
  return CALL(api, cuEventElapsedTime, milliseconds, start, end);
}

// stream_launch starts a kernel whose arguments lie in args as its parameters
// say. The driver copies them before it returns.
static inline status stream_launch(const mscclgo_cuda* api, CUcontext ctx, CUstream stream, CUfunction kernel,
                                   uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                                   uint32_t bz, uint32_t shared, int cooperative, int overlap, void* args,
                                   size_t size) {
  ENTER(api, ctx);
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, args, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                    CU_LAUNCH_PARAM_END};
  void** extra = size ? packed : NULL;
  if (!cooperative && !overlap)
    return CALL(api, cuLaunchKernel, kernel, gx, gy, gz, bx, by, bz, shared, stream, NULL, extra);
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
                           .hStream = stream,
                           .attrs = attributes,
                           .numAttrs = count};
  return CALL(api, cuLaunchKernelEx, &config, kernel, NULL, extra);
}

#endif
