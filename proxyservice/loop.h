// What a thread does for a proxy in C, where no garbage collection stops it. It decides
// about all triggers of the ring and serves those whose connections have a queue for
// threads in C. The others it hands to Go as jobs. It tracks the flushes of all
// connections and counts.
#ifndef MSCCLGO_PROXYSERVICE_LOOP_H
#define MSCCLGO_PROXYSERVICE_LOOP_H

#include "connection.h"
#include "job.h"
#include "native/trace.h"

// PROXY_BATCH is how many triggers are served in a turn. It counts triggers for Go too, which
// gets them together, so that the crossing costs each little.
enum { PROXY_BATCH = 16 };

// proxy_end is how a turn ended. From PROXY_QUIT on, there is something for Go.
typedef enum {
  PROXY_IDLE,          // there was nothing to do
  PROXY_WORKED,        // all that was found was done
  PROXY_QUIT,          // it was told to
  PROXY_DRAINED,       // it was told to stop, and nothing is left
  PROXY_JOBS,          // there are jobs for Go
  PROXY_QUERY,         // Go must query the oldest mark of its own of a connection
  PROXY_FAILED,        // an operation failed for the first of jobs
  PROXY_FLUSH_FAILED,  // the query of a mark failed
} proxy_end;

// proxy_failure is an operation that failed: the native.Failure of Go.
typedef struct {
  int64_t op;                // NATIVE_WRITE and the like
  int64_t code;              // the transport's, or NATIVE_CLOSED
  uint64_t dst, src, bytes;  // of a write or a read; dst of a store
} proxy_failure;

typedef struct {
  native_ring* ring;
  proxy_counters counted;
  proxy_counters* counters;  // counted, or NULL to count nothing
  native_trace* trace;       // of a timeline, or NULL
  uint64_t entries;          // the ring's, as kernels see them

  bool turns;     // its turns are given by an order that is explored, and nothing depends on time
  bool looked;    // at a flush, in this turn
  int64_t again;  // when the ring, which has stalled, is looked at again; 0: at once

  // Any thread reads these: how many looks found no trigger while no flush was under way, and
  // a count that changes with each trigger taken.
  uint64_t rounds, begun;
  // And the trigger that Go serves or that waits for its connection: 1 + position, then the kind's 8
  // bits; 0 if there is none. Go stores it, and C where it has done or dropped one that waited.
  uint64_t serving;

  // For Go, when the loop returns.
  proxy_job jobs[PROXY_BATCH];
  proxy_failure failure;
  uint32_t taken;       // the first jobs, which are for Go
  uint32_t connection;  // of PROXY_QUERY and PROXY_FLUSH_FAILED

  // Set by Go, before it calls again.
  bool reached;   // the mark of PROXY_QUERY
  uint32_t done;  // the first jobs, which it did
  bool stalled;   // the first job that it did not do must wait

  // Set by any thread.
  uint32_t stop;    // turns end when nothing is left
  uint32_t quit;    // or at once
  int64_t waiting;  // triggers in backlogs

  proxy_tables tables;
  proxy_flushing flushing;
} proxy_loop;

// proxy_loop_new returns a loop of zeros.
proxy_loop* proxy_loop_new(void);

// proxy_loop_free frees a loop with its tables.
void proxy_loop_free(proxy_loop* loop);

// proxy_turn takes note of what Go did, asks whether a flush is done, and serves up to
// PROXY_BATCH triggers. After PROXY_QUERY the turn goes on with the next call.
proxy_end proxy_turn(proxy_loop* loop, native_thread* thread);

// proxy_finish takes note of what Go did, as proxy_turn does first.
void proxy_finish(proxy_loop* loop);

#endif
