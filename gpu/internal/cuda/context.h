// A GPU's primary context.
#ifndef MSCCLGO_CUDA_CONTEXT_H
#define MSCCLGO_CUDA_CONTEXT_H

#include "api.h"
#include "turn.h"

// cuda_context is never freed, so that using a closed object is an error of the driver.
typedef struct {
  const mscclgo_cuda* api;
  CUdevice device;
  CUcontext handle;      // NULL unless it is retained
  cuda_turn submitting;  // work to its streams
} cuda_context;

static inline status context_retain(cuda_context* c) {
  return CALL(c->api, cuDevicePrimaryCtxRetain, &c->handle, c->device);
}

static inline status context_release(cuda_context* c) {
  c->handle = NULL;
  return CALL(c->api, cuDevicePrimaryCtxRelease_v2, c->device);
}

// ENTER makes a context current on this thread. Every wrapper begins with it: the
// calling goroutine may be on a thread that has another context or none.
#define ENTER(c) TRY(CALL((c)->api, cuCtxSetCurrent, (c)->handle))

// ENTER_UNSAFE is ENTER for a wrapper with calls that the driver considers unsafe while
// a stream captures: unless the capture or the calling thread is in the relaxed mode,
// the driver fails the call and invalidates the capture. Captures of this package are
// relaxed. Captures of other code in the process may not be, and the calls have nothing
// to do with them. The thread's mode is restored at the wrapper's end.
#define ENTER_UNSAFE(c) \
  ENTER(c);             \
  capture_mode mscclgo_mode __attribute__((cleanup(capture_mode_restore))) = capture_mode_relax((c)->api)

typedef struct {
  const mscclgo_cuda* api;  // NULL where there is nothing to restore
  CUstreamCaptureMode mode;
} capture_mode;

static inline capture_mode capture_mode_relax(const mscclgo_cuda* api) {
  capture_mode m = {api, CU_STREAM_CAPTURE_MODE_RELAXED};
  if (CALL(api, cuThreadExchangeStreamCaptureMode, &m.mode)) m.api = NULL;
  return m;
}

static inline void capture_mode_restore(capture_mode* m) {
  if (m->api) CALL(m->api, cuThreadExchangeStreamCaptureMode, &m->mode);
}

// SUBMIT calls a function that puts work on a stream. taken, which may wait, is true if
// the caller took a turn.
//
// A stream without work has no hardware queue. With its next work the driver assigns it
// a free one, if there is one; but it may assign the same one to two streams whose
// threads do this at the same time (seen: 580, with more streams than queues, and when
// streams are first used). A kernel of one stream then waits for kernels of the other,
// and forever if these wait for it.
#define SUBMIT(c, taken, name, ...)                               \
  __extension__({                                                 \
    bool mscclgo_turn = (taken);                                  \
    status mscclgo_submitted = CALL((c)->api, name, __VA_ARGS__); \
    turn_end(&(c)->submitting, mscclgo_turn);                     \
    mscclgo_submitted;                                            \
  })

#endif
