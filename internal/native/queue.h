// What a transport offers to threads in C: a queue of operations, done in order.
#ifndef MSCCLGO_NATIVE_QUEUE_H
#define MSCCLGO_NATIVE_QUEUE_H

#include <limits.h>

#include "native/range.h"

// What operations return: 0 when done, the transport's own code when they failed,
// or one of these.
enum {
  NATIVE_BUSY = INT_MIN,         // in use by a goroutine, or no room: threads in C wait for neither
  NATIVE_PENDING = INT_MIN + 1,  // not yet
  NATIVE_CLOSED = INT_MIN + 2,   // by its owner
};

// The operations, for reports that one failed. A read is a write from the peer's memory.
enum {
  NATIVE_BEGIN,
  NATIVE_WRITE,
  NATIVE_STORE,
  NATIVE_UPDATE,
  NATIVE_MARK,
  NATIVE_REACH,
  NATIVE_READ,
  NATIVE_PROGRESS
};

// NATIVE_MARKS is how many marks a queue has.
enum { NATIVE_MARKS = 16 };

// native_thread is what operations remember about the calling thread. It begins as
// zeros whenever the thread may have run other code.
typedef struct {
  const void* context;  // what the transport made current
  const void* trigger;  // the entry of a ring that asks for its next operations, for reports
} native_thread;

// native_request is all that a trigger asks of a queue, in the order of the operations.
typedef struct {
  native_place dst, src;  // of a copy; dst of a value too
  uint64_t bytes;         // of a copy; 0: none
  bool reads;             // the copy is one from the peer's memory
  bool stores;            // a value
  bool marks;
  native_place word;  // to be updated; its range is NULL where there is none
} native_request;

typedef struct native_queue native_queue;

// native_operations are a transport's functions. Goroutines may add to the same underlying queue
// meanwhile; the thread's operations follow what they find there. So may threads of other proxies,
// which the transport keeps apart where it must: a mark that one of them sets anew is reached later.
// No function waits for longer than queueing takes.
typedef struct {
  // begin makes the queue ready for this thread and a request, all of whose operations
  // come before end, or if it is NULL for asking whether marks are reached. It may return
  // NATIVE_BUSY.
  int (*begin)(native_queue* queue, native_thread* thread, const native_request* request);
  void (*end)(native_queue* queue);
  // write queues the copy of n bytes, not 0, to the peer's memory, or from there if the request reads.
  int (*write)(native_queue* queue, native_place dst, native_place src, uint64_t n);
  // store queues the store of a value to an aligned word of the peer's.
  int (*store)(native_queue* queue, native_place dst, uint64_t value);
  // update queues the change of an aligned word of the peer's, which only grows, from one value to
  // another. A reader of the new one at system scope sees what was queued before.
  int (*update)(native_queue* queue, native_place dst, uint64_t from, uint64_t to);
  // What an operation but mark returns NATIVE_PENDING for is taken, but waits for what is under way,
  // until progress returns 0, or, once the queue is closed, the connection is. Only the last operation
  // of a request returns it.
  //
  // progress queues what waits, as far as it need not wait any more, and returns NATIVE_PENDING while
  // some does of that many requests, the first that the queue has taken. NULL where nothing ever does.
  int (*progress)(native_queue* queue, uint64_t requests);
  // mark puts a mark, below NATIVE_MARKS, behind all that was queued before. The mark
  // may be under way from an earlier call. 0 means that it is reached already,
  // NATIVE_PENDING that it is not.
  int (*mark)(native_queue* queue, unsigned mark);
  // reached returns 0 once all before the mark is done at the peer, NATIVE_PENDING
  // until then.
  int (*reached)(native_queue* queue, unsigned mark);
  // remote is whether the queue leads over a network: it takes memory that is not mapped
  // here, and begin may find no room for as long as the peer likes.
  bool remote;
} native_operations;

// native_queue is the first member of a transport's own struct.
struct native_queue {
  const native_operations* operations;
  native_gate gate;
  uint32_t turns;  // places of goroutines in the queue for the connection's turn; theirs
  uint64_t taken;  // requests, if some may wait; for those who have entered
};

// native_queue_enter makes a queue ready for this thread and a request, as begin does, until
// native_queue_leave. It returns 0, or else the queue is not entered. It returns NATIVE_BUSY for a
// request while a goroutine has the connection's turn or a place for it. Turns are looked at once
// begin has kept goroutines out, where it does, so that none begins in the midst of the request, nor
// the request in the midst of one: a goroutine raises turns before it first has what begin takes, and
// begin acquires what it released. One that raises them later has not begun, and waits for end.
static inline int native_queue_enter(native_queue* queue, native_thread* thread,
                                     const native_request* request) {
  if (!native_gate_enter(&queue->gate)) return NATIVE_CLOSED;
  int rc = queue->operations->begin(queue, thread, request);
  if (!rc && request && __atomic_load_n(&queue->turns, __ATOMIC_ACQUIRE)) {
    queue->operations->end(queue);
    rc = NATIVE_BUSY;
  }
  if (rc) native_gate_leave(&queue->gate);
  return rc;
}

static inline void native_queue_leave(native_queue* queue) {
  queue->operations->end(queue);
  native_gate_leave(&queue->gate);
}

#endif
