// A connection that a thread in C serves, and its flushes under way.
#ifndef MSCCLGO_PROXYSERVICE_LINE_H
#define MSCCLGO_PROXYSERVICE_LINE_H

#include "counters.h"
#include "native/queue.h"

// proxy_flush is one that was begun, or the last of several that a mark stands for.
typedef struct {
  uint64_t position;  // of its trigger
  int64_t since;      // of the first; 0 when nobody counts
  uint32_t number;    // of those that the mark stands for
} proxy_flush;

typedef struct proxy_line {
  native_queue* queue;
  uint64_t registry;   // whose ranges it takes
  uint32_t rank;       // from this rank's
  uint32_t peer;       // to this one's
  uint32_t transport;  // the number of its bit
  uint32_t number;     // in the service
  uint64_t* done;      // pinned: 1 + the position of the newest flush that is done

  // All else is of the proxy's thread alone.
  struct proxy_line *next, *previous;  // in the circle of lines with flushes under way
  uint32_t first, under_way;           // of flushes, as a ring
  proxy_flush flushes[NATIVE_MARKS];   // by the queue's mark
} proxy_line;

// proxy_flush_begin begins a flush on a queue that was entered, and adds the line to
// the circle where it has the first under way. It gives 0 or the transport's code.
int proxy_flush_begin(proxy_line** circle, proxy_line* line, uint64_t position, int64_t since,
                      proxy_counters* counters);

// proxy_flush_ask asks for one flush of the circle, which must not be empty, whether
// it is done: asking takes about as long as a trigger, and triggers are waiting. It
// gives 0, NATIVE_CLOSED or the transport's code; then circle is the line of it.
int proxy_flush_ask(proxy_line** circle, native_thread* thread, proxy_counters* counters);

#endif
