// A queue of host memory that a test controls.
#ifndef MSCCLGO_NATIVETEST_FAKE_H
#define MSCCLGO_NATIVETEST_FAKE_H

#include "native/count.h"
#include "native/queue.h"

typedef struct {
  native_queue queue;
  uint32_t held, busy, parks;
  uint32_t queued;                      // requests of which nothing waits any more, though the queue parks
  uint32_t codes[NATIVE_PROGRESS + 1];  // by operation; 0 does not fail
  uint32_t done[NATIVE_PROGRESS + 1];
  uint32_t wrong;  // operations that a request did not ask for as they were, and requests not done

  // Of the thread that has entered.
  bool serves;  // a request
  native_request request;
  int last;  // the operation done last
  bool failed;
} fake_queue;

// fake_init makes a queue of zeros.
void fake_init(fake_queue* queue, bool remote);

// fake_do does one operation on any queue; see Do.
int fake_do(native_queue* queue, int op, uint64_t a, uint64_t b, uint64_t n);

// fake_serve does all of a request on any queue; see Serve.
int fake_serve(native_queue* queue, const native_request* r, uint64_t value, uint64_t from, uint64_t to,
               unsigned mark);

#endif
