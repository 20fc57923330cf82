// What waits for all kernels of the context in the driver, and is done while there are none.
#ifndef MSCCLGO_CUDA_IDLE_H
#define MSCCLGO_CUDA_IDLE_H

#include "stream.h"

// streams_idle reports whether no stream has work, as far as the driver can tell. Of one that
// captures the driver does not tell what was queued before: it is idle if `capturing` is.
static inline bool streams_idle(cuda_context* c, CUstream* streams, size_t n, bool capturing) {
  for (size_t i = 0; i < n; i++) {
    cuda_stream s = {.context = c, .handle = streams[i]};
    status rc = stream_ask(&s);
    bool captures = rc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || rc == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (rc == CUDA_ERROR_NOT_READY || (captures && !capturing)) return false;
  }
  return true;
}

// hosts_free frees count pinned memories and returns the first failure.
static inline status hosts_free(cuda_context* c, void** hosts, size_t count) {
  ENTER_UNSAFE(c);
  status first = 0;
  for (size_t i = 0; i < count; i++) {
    status rc = CALL(c->api, cuMemFreeHost, hosts[i]);
    if (!first) first = rc;
  }
  return first;
}

// hosts_free_idle is hosts_free, and reports so, if no stream has work. The turn keeps others
// from queueing any meanwhile, unless that takes long.
static inline status hosts_free_idle(cuda_context* c, CUstream* streams, size_t n, void** hosts, size_t count,
                                     bool* freed) {
  ENTER_UNSAFE(c);
  *freed = false;
  if (!turn_take(&c->submitting)) return CUDA_SUCCESS;
  *freed = streams_idle(c, streams, n, false);
  status rc = *freed ? hosts_free(c, hosts, count) : CUDA_SUCCESS;
  turn_end(&c->submitting, true);
  return rc;
}

// stream_destroy_idle destroys a stream, and reports so, unless it has work.
static inline status stream_destroy_idle(cuda_context* c, CUstream stream, bool* destroyed) {
  ENTER_UNSAFE(c);
  cuda_stream s = {.context = c, .handle = stream};
  *destroyed = stream_ask(&s) != CUDA_ERROR_NOT_READY;
  return *destroyed ? stream_destroy(&s) : CUDA_SUCCESS;
}

// context_idle reports whether no stream has work, but for streams that capture.
static inline status context_idle(cuda_context* c, CUstream* streams, size_t n, bool* is) {
  ENTER(c);
  *is = streams_idle(c, streams, n, true);
  return CUDA_SUCCESS;
}

#endif
