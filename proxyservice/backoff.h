// How a proxy that finds no work waits for some.
#ifndef MSCCLGO_PROXYSERVICE_BACKOFF_H
#define MSCCLGO_PROXYSERVICE_BACKOFF_H

#include <stdbool.h>

#include "counters.h"

typedef struct {
  int64_t spin;     // nanoseconds of polling without sleep
  int64_t longest;  // sleep, nanoseconds

  uint32_t polls;   // that found nothing
  bool looked;      // at the clock, since there was work
  int64_t since;    // when it first looked
  int64_t counted;  // of the time since then, what is counted
  int64_t sleep;    // the last; 0 before the first
} proxy_backoff;

// proxy_work is called when there was work.
void proxy_work(proxy_backoff* b, proxy_counters* counters);

// proxy_pause is called after each poll that found nothing. It does not sleep while
// something is under way. It reports whether it gave up the core, which it does only
// after some polls. counters may be NULL.
bool proxy_pause(proxy_backoff* b, proxy_counters* counters, bool under_way);

#endif
