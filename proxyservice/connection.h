// A connection as a proxy sees it, with its flushes under way.
#ifndef MSCCLGO_PROXYSERVICE_CONNECTION_H
#define MSCCLGO_PROXYSERVICE_CONNECTION_H

#include "counters.h"
#include "native/queue.h"
#include "native/trace.h"
#include "table.h"

// proxy_flush is a flush under way, or the last of several that share a mark.
typedef struct {
  uint64_t position;  // of its trigger; of PROXY_PARKED the requests that the queue had taken
  int64_t since;      // of the first; 0 when nobody counts or traces
  uint32_t number;    // of flushes that share the mark
  uint32_t mark;      // the queue's, PROXY_GO_MARK or PROXY_PARKED
} proxy_flush;

// PROXY_GO_MARK is a mark that Go made and can query. PROXY_PARKED is none, of no flush: the
// connection's queue has taken operations that wait, until its progress returns 0 or it is closed. There
// is one at most, behind all flushes.
enum { PROXY_GO_MARK = NATIVE_MARKS, PROXY_PARKED };

typedef struct {
  native_queue* queue;     // NULL where only Go can use it
  uint64_t registry;       // whose memories it takes
  uint64_t inline_limit;   // the most bytes of the host's that it takes; 0: none
  uint32_t rank;           // from this rank's
  uint32_t peer;           // to this one's
  uint32_t transport;      // the number of its bit
  uint32_t number;         // in the service
  const uint32_t* failed;  // not 0 once its group has failed
  uint64_t* done;          // pinned: 1 + the position of the newest flush that is done
  uint64_t* taken;  // pinned: the triggers that the transport took; Go adds too. NULL where nobody asks
  int64_t waiting;  // triggers in the backlog, which are before all that come; Go's

  // All else belongs to the proxy's thread.
  proxy_flush* flushes;       // a ring, oldest first
  uint32_t capacity;          // of flushes: 0, or a power of two
  uint32_t first, under_way;  // of flushes
  uint32_t marks, next_mark;  // of the queue's marks: those under way
} proxy_connection;

// proxy_flushing are the connections with flushes under way.
typedef struct {
  native_trace* trace;  // or NULL
  uint32_t size, asked;
  proxy_connection* at[PROXY_IDS];
} proxy_flushing;

// proxy_flush_begin begins a flush on a queue that was entered. It returns 0 or the
// transport's code.
int proxy_flush_begin(proxy_flushing* flushing, proxy_connection* c, uint64_t position, int64_t since,
                      proxy_counters* counters);

// proxy_flush_began adds a flush whose mark Go made.
void proxy_flush_began(proxy_flushing* flushing, proxy_connection* c, uint64_t position, int64_t since);

// proxy_flush_parked notes that the connection's queue has operations that wait.
void proxy_flush_parked(proxy_flushing* flushing, proxy_connection* c);

// PROXY_ASK_GO means that Go must query the mark.
enum { PROXY_ASK_GO = NATIVE_CLOSED + 1 };

// proxy_flush_query asks the next of the connections, of which there must be one,
// whether its oldest flush is done: one only, since a query takes about as long as a
// trigger, and triggers are waiting; or whether what waits is queued. It returns 0, PROXY_ASK_GO,
// NATIVE_CLOSED or the transport's code, and sets op to what was tried.
int proxy_flush_query(proxy_flushing* flushing, native_thread* thread, proxy_counters* counters, int* op);

// proxy_flush_done ends the oldest flush of the connection that was asked.
void proxy_flush_done(proxy_flushing* flushing, proxy_counters* counters);

#endif
