// What a connection offers to threads in C. Nothing waits for a peer or for Go: what must follow
// others that are not done is parked, and posted when polls have found these. What is for a memory
// whose keys Go has not found yet is left to Go, and all while Go has the connection or too much is
// parked.
#include <sched.h>

#include "post.h"

static ib_conn* conn_of(native_queue* queue) { return (ib_conn*)queue; }

static int code_of(int rc) { return rc == IB_WAIT ? NATIVE_PENDING : rc; }

// know finds the keys of a memory, of this side or of the peer's. It compares the registry too, since
// memories of another registry of the rank have the same numbers.
static bool know(const ib_conn* c, bool own, const native_range* range, ib_memory* m, uint32_t* keys) {
  if (range->owner != (own ? c->registry : c->peer_registry)) return false;
  const ib_known(*table)[IB_WAYS] = own ? c->own : c->theirs;
  const uint64_t number = (uint64_t)range->number + 1;
  const ib_known* found = table[range->number % IB_SETS];
  for (const ib_known* end = found + IB_WAYS; found < end; found++) {
    if (__atomic_load_n(&found->memory.memory, __ATOMIC_ACQUIRE) != number) continue;
    *m = found->memory;
    m->memory = number;  // Go may forget it meanwhile
    memcpy(keys, found->keys, c->count * sizeof *keys);
    return true;
  }
  return false;
}

// room reports whether one more request can be parked. It posts what is, if that helps.
static bool room(ib_conn* c) {
  if (c->queue.taken - c->parked_from < IB_PARKED) return true;
  ib_unpark(c);
  return c->queue.taken - c->parked_from < IB_PARKED;
}

// take makes the next request to be parked of what a trigger asks for. It reports false if that is
// Go's.
static bool take(ib_conn* c, const native_request* r) {
  if (!c->open || !room(c) || ib_broken(c)) return false;
  ib_parked* p = &c->parked[c->queue.taken % IB_PARKED];
  *p = (ib_parked){
      .dst_offset = r->dst.offset,
      .src_offset = r->src.offset,
      .word_offset = r->word.offset,
      .bytes = r->bytes,
      .reads = r->reads,
      .stores = r->stores,
      .updates = r->word.range != NULL,
  };
  uint32_t word_keys[IB_QUEUES];
  if ((r->bytes || r->stores) && !know(c, r->reads, r->dst.range, &p->dst, p->dst_keys)) return false;
  if (r->bytes && !know(c, !r->reads, r->src.range, &p->src, p->src_keys)) return false;
  if (p->updates && !know(c, false, r->word.range, &p->word, word_keys)) return false;
  c->left = (r->bytes != 0) + p->stores + p->updates + r->marks;
  return true;
}

static int poll(ib_conn* c) {
  for (uint32_t i = 0; i < c->count; i++)
    if (c->queues[i].ledger.done < c->queues[i].ledger.posted && ib_poll(c, i)) return IB_BROKEN;
  return 0;
}

// claim takes the lock unless a goroutine has it. A thread of another service has it for one
// trigger: it is waited for, but not for long, as it may be kept from running.
static bool claim(ib_conn* c) {
  enum { LOOKS = 256 };
  for (int i = 0; i < LOOKS; i++) {
    uint32_t who = IB_NOBODY;
    if (__atomic_compare_exchange_n(&c->claimed, &who, IB_THREAD, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return true;
    if (who == IB_GOROUTINE) return false;
    sched_yield();
  }
  return false;
}

static void end(native_queue* queue) {
  __atomic_store_n(&conn_of(queue)->claimed, IB_NOBODY, __ATOMIC_RELEASE);
}

static int begin(native_queue* queue, native_thread* thread, const native_request* request) {
  (void)thread;
  ib_conn* c = conn_of(queue);
  if (!claim(c)) return NATIVE_BUSY;
  // Go tells what polls find wrong.
  if (!request || (!poll(c) && take(c, request))) return 0;
  end(queue);
  return NATIVE_BUSY;
}

// did is called after each operation. After the last it parks the request, and posts what it can
// with one call of the driver.
static int did(ib_conn* c) {
  if (--c->left) return 0;
  c->queue.taken++;
  return code_of(ib_unpark(c));
}

static int write(native_queue* queue, native_place dst, native_place src, uint64_t n) {
  (void)dst, (void)src, (void)n;  // as begin has them
  return did(conn_of(queue));
}

static int store(native_queue* queue, native_place dst, uint64_t value) {
  (void)dst;
  ib_conn* c = conn_of(queue);
  c->parked[c->queue.taken % IB_PARKED].value = value;
  return did(c);
}

static int update(native_queue* queue, native_place dst, uint64_t from, uint64_t to) {
  (void)dst;
  ib_conn* c = conn_of(queue);
  c->parked[c->queue.taken % IB_PARKED].increase = to - from;
  return did(c);
}

// advance posts what is parked, as far as it need not wait.
static int advance(ib_conn* c) {
  if (c->parked_from == c->queue.taken) return 0;
  int rc = poll(c);
  return rc ? rc : ib_unpark(c);
}

static int progress(native_queue* queue, uint64_t requests) {
  ib_conn* c = conn_of(queue);
  int rc = advance(c);
  return rc == IB_WAIT && c->parked_from >= requests ? 0 : code_of(rc);
}

static int mark(native_queue* queue, unsigned mark) {
  ib_conn* c = conn_of(queue);
  c->parked[c->queue.taken % IB_PARKED].mark = mark + 1;
  c->marks[mark].behind = c->queue.taken + 1;
  int rc = did(c);
  return rc ? rc : NATIVE_PENDING;
}

static int reached(native_queue* queue, unsigned mark) {
  ib_conn* c = conn_of(queue);
  int rc = advance(c);
  if (c->parked_from < c->marks[mark].behind) return code_of(rc);
  return code_of(ib_reached(c, &c->marks[mark].mark));
}

void ib_init(ib_conn* c, uint32_t count, uint64_t depth) {
  static const native_operations operations = {begin,    end,  write,   store, update,
                                               progress, mark, reached, true};
  c->queue.operations = &operations;
  c->count = count;
  ib_entry* entries = (ib_entry*)&c->queues[count];
  for (uint32_t i = 0; i < count; i++) {
    c->queues[i].ledger.depth = depth;
    c->queues[i].ledger.entries = entries + i * depth;
  }
}
