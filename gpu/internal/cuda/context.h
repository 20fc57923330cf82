// A GPU's primary context.
#ifndef MSCCLGO_CUDA_CONTEXT_H
#define MSCCLGO_CUDA_CONTEXT_H

#include "api.h"
#include "turn.h"

// cuda_context lives as long as the process, so that who uses what is closed gets an
// error of the driver's.
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

// ENTER_UNSAFE is ENTER for the rest of a wrapper whose calls the driver holds to be
// unsafe while a stream captures: it fails them, and the capture, on every thread that
// is not in the relaxed mode, unless the capture itself is relaxed. Captures of this
// package are. Those of other code in the process may not be, and what is done here has
// no part in them.
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

// SUBMIT calls a function that puts work on a stream. taken says whether it is the
// caller's turn, and may wait for that.
//
// A stream with nothing to do has no hardware queue. The driver gives it one that is
// free with its next work, if there is one; but to two threads at the same time it may
// give the same one (seen: 580, where there are more streams than queues, and as
// streams are first used). A kernel of the one stream then waits for kernels of the
// other, and for ever if these wait for it.
#define SUBMIT(c, taken, name, ...)                               \
  __extension__({                                                 \
    bool mscclgo_turn = (taken);                                  \
    status mscclgo_submitted = CALL((c)->api, name, __VA_ARGS__); \
    turn_end(&(c)->submitting, mscclgo_turn);                     \
    mscclgo_submitted;                                            \
  })

#endif
