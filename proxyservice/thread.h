// A thread that serves the rings of several proxies in turn.
#ifndef MSCCLGO_PROXYSERVICE_THREAD_H
#define MSCCLGO_PROXYSERVICE_THREAD_H

#include "backoff.h"
#include "loop.h"

typedef struct {
  proxy_backoff backoff;
  uint32_t called;  // set by any thread, to have proxy_serve return

  // All else belongs to the thread.
  bool idle;    // nothing was found for a while: other goroutines may run
  bool worked;  // something was, since the first had its turn
  uint32_t turn, size, capacity;
  proxy_loop** loops;  // that take turns
} proxy_thread;

// proxy_thread_new returns a thread of zeros.
proxy_thread* proxy_thread_new(void);

// proxy_thread_free frees a thread, but not its loops.
void proxy_thread_free(proxy_thread* thread);

// proxy_thread_add adds a loop, which has its turn behind all others.
void proxy_thread_add(proxy_thread* thread, proxy_loop* loop);

// proxy_thread_remove removes a loop.
void proxy_thread_remove(proxy_thread* thread, const proxy_loop* loop);

// proxy_serve has the loops take turns, until one has something for Go: it returns that
// loop, and sets why. It returns NULL if it was called.
proxy_loop* proxy_serve(proxy_thread* thread, proxy_end* why);

#endif
