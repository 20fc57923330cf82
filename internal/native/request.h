// What a port's trigger asks; see PortRequest in <mscclgo/port_channel.cuh>.
#ifndef MSCCLGO_NATIVE_REQUEST_H
#define MSCCLGO_NATIVE_REQUEST_H

#include "native/ring.h"

enum { NATIVE_PUT = 1, NATIVE_SIGNAL = 2, NATIVE_FLUSH = 4 };

typedef struct {
  bool put, signal, flush;
  uint16_t dst, src;  // memories
  uint64_t port;
  uint64_t dst_offset, src_offset, bytes;
} native_request;

// native_request_decode says whether the trigger, which may hold anything, is a
// port's.
static inline bool native_request_decode(native_request* request, const native_trigger* t) {
  const uint64_t offset = ((uint64_t)1 << 48) - 1;
  *request = (native_request){
      .put = t->kind & NATIVE_PUT,
      .signal = t->kind & NATIVE_SIGNAL,
      .flush = t->kind & NATIVE_FLUSH,
      .dst = (uint16_t)(t->a >> 48),
      .src = (uint16_t)(t->b >> 48),
      .port = t->detail,
      .dst_offset = t->a & offset,
      .src_offset = t->b & offset,
      .bytes = t->c,
  };
  if (t->kind == 0 || t->kind > (NATIVE_PUT | NATIVE_SIGNAL | NATIVE_FLUSH)) return false;
  return !request->put || request->bytes <= offset;
}

#endif
