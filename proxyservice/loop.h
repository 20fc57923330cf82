// The loop of a proxy's thread in C, where no garbage collection stops it. It
// decides about all triggers of the ring and serves those whose connections have a
// queue for threads in C. The others it hands to Go as jobs. It tracks the flushes
// of all connections and counts.
#ifndef MSCCLGO_PROXYSERVICE_LOOP_H
#define MSCCLGO_PROXYSERVICE_LOOP_H

#include "backoff.h"
#include "connection.h"
#include "job.h"

// PROXY_BATCH is how many triggers are served before the loop looks at other things,
// and how many jobs it hands to Go at most, so that the crossing costs each little.
enum { PROXY_BATCH = 16 };

// proxy_end is why the loop returned to Go.
typedef enum {
  PROXY_QUIT,          // it was told to
  PROXY_DRAINED,       // it was told to stop, and nothing is left
  PROXY_JOBS,          // there are jobs for Go
  PROXY_QUERY,         // Go must query the oldest mark of its own of a connection
  PROXY_FAILED,        // an operation failed for the first of jobs
  PROXY_FLUSH_FAILED,  // the query of a mark failed
  PROXY_NO_MEMORY,     // of the host
} proxy_end;

// proxy_failure is the operation that failed.
typedef struct {
  int op;                    // NATIVE_WRITE and the like
  int code;                  // the transport's, or NATIVE_CLOSED
  uint64_t dst, src, bytes;  // of a write; dst of a store
} proxy_failure;

typedef struct {
  proxy_tables tables;
  proxy_backoff backoff;
  proxy_connection* flushing;  // one of the circle of those with flushes under way

  // For Go, when the loop returns.
  proxy_job jobs[PROXY_BATCH];
  uint32_t taken;         // of jobs: those for Go
  uint32_t connection;    // of PROXY_QUERY and PROXY_FLUSH_FAILED
  bool idle;              // nothing was found for a while: other goroutines may run
  proxy_failure failure;  // the last

  // What Go answers before it calls again.
  uint32_t done;  // of jobs: those that it did
  bool reached;   // the mark
} proxy_loop;

// proxy_orders are what other threads tell the loop.
typedef struct {
  uint32_t stop;  // when nothing is left
  uint32_t quit;  // at once
} proxy_orders;

// proxy_serve serves the ring until there is something for Go. counters may be NULL.
proxy_end proxy_serve(proxy_loop* loop, native_ring* ring, const proxy_orders* orders,
                      proxy_counters* counters);

// proxy_answer takes Go's answers, as proxy_serve does first. It reports whether
// there was host memory.
bool proxy_answer(proxy_loop* loop, proxy_counters* counters);

// proxy_loop_free frees a loop with its tables.
void proxy_loop_free(proxy_loop* loop);

#endif
