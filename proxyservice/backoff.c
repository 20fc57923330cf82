#include "backoff.h"

#include <sched.h>

// A proxy that finds no work polls on without pause for a while (eager), then lets
// other threads run between polls until the time to spin is over, then sleeps,
// twice as long each time.
enum {
  polls_between_looks = 64,  // at the clock, which costs as much as several polls
  eager = 20 * 1000,         // nanoseconds
  shortest_sleep = 1000,     // nanoseconds
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// count adds to the idle time what was not counted yet.
static void count(proxy_backoff* b, proxy_counters* counters, int64_t now) {
  if (!counters) return;
  int64_t idle = now - b->since;
  proxy_count(&counters->idle, (uint64_t)(idle - b->counted));
  b->counted = idle;
}

void proxy_work(proxy_backoff* b, proxy_counters* counters) {
  if (b->looked && counters) count(b, counters, proxy_now());
  b->looked = false;
  b->polls = 0;
  b->counted = b->sleep = 0;
}

bool proxy_pause(proxy_backoff* b, proxy_counters* counters, bool under_way) {
  if (++b->polls % polls_between_looks != 0 && b->sleep == 0) return false;
  int64_t now = proxy_now();
  if (!b->looked) {
    b->looked = true;
    b->since = now;
  }
  int64_t idle = now - b->since;
  if (idle < least(eager, b->spin)) return false;
  if (idle < b->spin || under_way) {
    sched_yield();
    return true;
  }
  count(b, counters, now);
  b->sleep = least(b->sleep ? 2 * b->sleep : shortest_sleep, b->longest);
  struct timespec t = {.tv_sec = b->sleep / 1000000000, .tv_nsec = b->sleep % 1000000000};
  nanosleep(&t, NULL);  // woken early, it polls early
  return true;
}
