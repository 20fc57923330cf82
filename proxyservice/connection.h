// A connection as a proxy sees it, with its flushes under way.
#ifndef MSCCLGO_PROXYSERVICE_CONNECTION_H
#define MSCCLGO_PROXYSERVICE_CONNECTION_H

#include "counters.h"
#include "native/queue.h"

// proxy_flush is one that was begun, or the last of several that a mark stands for.
typedef struct {
  uint64_t position;  // of its trigger
  int64_t since;      // of the first; 0 when nobody counts
  uint32_t number;    // of those that the mark stands for
  uint32_t mark;      // the queue's, or PROXY_GO_MARK
} proxy_flush;

// PROXY_GO_MARK is a mark that Go made and can query.
enum { PROXY_GO_MARK = NATIVE_MARKS };

typedef struct proxy_connection {
  native_queue* queue;    // NULL where only Go can use it
  uint64_t registry;      // whose memories it takes
  uint64_t inline_limit;  // the most bytes of the host's that it takes; 0: none
  uint32_t rank;          // from this rank's
  uint32_t peer;          // to this one's
  uint32_t transport;     // the number of its bit
  uint32_t number;        // in the service
  uint64_t* done;         // pinned: 1 + the position of the newest flush that is done

  // All else belongs to the proxy's thread.
  struct proxy_connection *next, *previous;  // in the circle of those with flushes under way
  proxy_flush* flushes;                      // a ring, oldest first
  uint32_t capacity;                         // of flushes: 0, or a power of two
  uint32_t first, under_way;                 // of flushes
  uint32_t marks, next_mark;                 // of the queue's marks: those under way
} proxy_connection;

// proxy_flush_reserve makes room for one more flush. It reports whether there was
// host memory.
bool proxy_flush_reserve(proxy_connection* c);

// proxy_flush_begin begins a flush for which there is room on a queue that was
// entered, and adds the connection to the circle where it has the first under way.
// It returns 0 or the transport's code.
int proxy_flush_begin(proxy_connection** circle, proxy_connection* c, uint64_t position, int64_t since,
                      proxy_counters* counters);

// proxy_flush_began adds a flush, for which there is room, whose mark Go made.
void proxy_flush_began(proxy_connection** circle, proxy_connection* c, uint64_t position, int64_t since);

// proxy_flush_query moves the circle, which must not be empty, on by one connection
// and asks whether that one's oldest flush is done: one only, since a query takes
// about as long as a trigger, and triggers are waiting. It returns 0, PROXY_ASK_GO,
// NATIVE_CLOSED or the transport's code; the circle is at that connection unless it
// has no more flushes.
int proxy_flush_query(proxy_connection** circle, native_thread* thread, proxy_counters* counters);

// PROXY_ASK_GO means that Go must query the mark.
enum { PROXY_ASK_GO = NATIVE_CLOSED + 1 };

// proxy_flush_done ends the oldest flush of the circle's connection.
void proxy_flush_done(proxy_connection** circle, proxy_counters* counters);

// proxy_connection_free frees a proxy_connection.
void proxy_connection_free(void* c);

#endif
