// The loop of a proxy's thread in C, where no garbage collection stops it. It
// serves the ports whose connections offer native operations, and leaves to Go what
// is wrong, and all else.
#ifndef MSCCLGO_PROXYSERVICE_LOOP_H
#define MSCCLGO_PROXYSERVICE_LOOP_H

#include "backoff.h"
#include "line.h"
#include "native/count.h"
#include "native/range.h"
#include "native/ring.h"
#include "table.h"

// proxy_port is what a channel's id stands for.
typedef struct {
  proxy_line* line;
  native_count* sent;
  native_range* words;  // of the semaphore at the peer
  uint64_t word;        // the address of the one that signals are stored to
} proxy_port;

// proxy_end is why the loop went back to Go.
typedef enum {
  PROXY_QUIT,          // it was told to
  PROXY_DRAINED,       // it was told to stop, and nothing is left
  PROXY_YOURS,         // the ring's oldest trigger is for Go
  PROXY_LOOKED,        // it was to look once
  PROXY_IDLE,          // it was to look once, and has found nothing for a while
  PROXY_FAILED,        // an operation failed for the ring's oldest trigger
  PROXY_FLUSH_FAILED,  // the wait for a flush's end failed
} proxy_end;

// proxy_failure is the operation that failed.
typedef struct {
  int op;                    // NATIVE_WRITE and the like
  int code;                  // the transport's, or NATIVE_CLOSED
  uint32_t line;             // its number
  uint64_t dst, src, bytes;  // of a write; dst of a store
} proxy_failure;

typedef struct {
  proxy_table lines;     // of proxy_line, by their numbers; NULL for those of Go
  proxy_table ports;     // of proxy_port; NULL for those of Go
  proxy_table memories;  // of native_range; NULL for those of Go
  proxy_backoff backoff;
  proxy_line* flushing;   // one of the circle of lines with flushes under way
  proxy_failure failure;  // the last
} proxy_loop;

// proxy_orders are what other threads tell the loop.
typedef struct {
  uint32_t stop;  // when nothing is left
  uint32_t quit;  // at once
} proxy_orders;

// proxy_serve serves the ring until there is something for Go, or only looks once.
// counters may be NULL.
proxy_end proxy_serve(proxy_loop* loop, native_ring* ring, const proxy_orders* orders,
                      proxy_counters* counters, bool once);

// proxy_loop_free frees a loop with its lines and ports.
void proxy_loop_free(proxy_loop* loop);

#endif
