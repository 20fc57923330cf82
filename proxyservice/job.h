// What a trigger asks for and what is to be done about it.
#ifndef MSCCLGO_PROXYSERVICE_JOB_H
#define MSCCLGO_PROXYSERVICE_JOB_H

#include "connection.h"
#include "native/count.h"
#include "native/range.h"
#include "native/ring.h"

// The kinds of a port's triggers; see PortRequest in <mscclgo/port_channel.cuh>.
enum {
  PROXY_PUT = 1,
  PROXY_SIGNAL = 2,
  PROXY_FLUSH = 4,
  PROXY_INLINE = 8,
  PROXY_GET = 16,
  PROXY_STORE = 32,
  PROXY_ATOMIC = 64,  // of a store or a get, which then is an addition or an exchange
  PROXY_ADD = PROXY_ATOMIC | PROXY_STORE,
  PROXY_EXCHANGE = PROXY_ATOMIC | PROXY_GET,
  PROXY_COPIES = PROXY_PUT | PROXY_GET,
};

// PROXY_WORD is how many bytes a store, an addition and an exchange have.
enum { PROXY_WORD = 8 };

// proxy_memory is what a memory's id stands for.
typedef struct {
  native_range* range;  // NULL where it was closed
  uint64_t registry;    // which one it is registered in or imported by
  uint64_t size;        // bytes
  uint32_t rank;        // whose memory it is
} proxy_memory;

// proxy_port is what a channel's id stands for.
typedef struct {
  proxy_connection* connection;
  // What a thread in C signals with; sent is NULL where only Go can.
  native_count* sent;
  native_range* words;  // of the semaphore at the peer
  uint64_t word;        // the offset there of the one that signals are stored to
  uint64_t where;       // of events: the channel and the peer
} proxy_port;

typedef struct {
  proxy_table connections, ports, memories;
  uint32_t first_user_kind;  // kinds from this one are for the user's handler
} proxy_tables;

// proxy_verdict is what is to be done about a trigger. From PROXY_BAD_KIND on, the
// trigger is wrong.
typedef enum {
  PROXY_NATIVE,  // a thread in C can do what it asks for
  PROXY_MOVE,    // Go can
  PROXY_USER,    // the user's handler serves it
  PROXY_BAD_KIND,
  PROXY_BAD_FIELD,  // the device found a number too large for its field, or what is of a word is not
  PROXY_NO_PORT,
  PROXY_NO_MEMORY,
  PROXY_BAD_DST,    // outside the memory of the rank that is copied to, or of another registry
  PROXY_BAD_SRC,    // likewise of the rank that is copied from
  PROXY_BAD_BYTES,  // an inlined put's cannot be where it says, or be so many
} proxy_verdict;

// PROXY_RANGES is how many ranges a job uses at most: dst, src, and the semaphore's.
enum { PROXY_RANGES = 3 };

// proxy_job is a trigger, decoded, looked up and checked. For a port's, detail is the
// port and c the number of bytes; of a store and an addition b is the value, and of an exchange c.
typedef struct {
  native_trigger trigger;
  uint64_t position;  // in the ring
  int64_t since;      // when a flush was taken, or any for a trace; 0 when nobody asks
  uint64_t dst_offset, src_offset;
  uint16_t dst, src;  // memories
  proxy_verdict verdict;
  const uint8_t* payload;  // of an inlined put
  const proxy_port* port;
  native_range* ranges[PROXY_RANGES];  // NULL where it uses none, or it was closed
  uint32_t place, known;               // who asks for it, where races are looked for; see race.Asked
} proxy_job;

// proxy_holds reports whether a memory is a rank's, of a registry, and holds n bytes
// at an offset.
static inline bool proxy_holds(const proxy_memory* memory, uint64_t registry, uint32_t rank, uint64_t offset,
                               uint64_t n) {
  return memory->registry == registry && memory->rank == rank && offset <= memory->size &&
         n <= memory->size - offset;
}

// proxy_exchanges reports whether a port's trigger of a kind that it may be is an exchange.
static inline bool proxy_exchanges(uint8_t kind) { return (kind & PROXY_EXCHANGE) == PROXY_EXCHANGE; }

// proxy_bytes returns how many bytes a port's trigger moves.
static inline uint64_t proxy_bytes(const native_trigger* t) {
  if (t->kind & PROXY_ATOMIC) return PROXY_WORD;
  return t->kind & (PROXY_COPIES | PROXY_STORE) ? t->c : 0;
}

// proxy_is_kind reports whether a port's trigger may be of a kind: a put with anything, with
// or without its bytes; a get, a store, an addition or an exchange, alone or with a flush; or none
// of these.
static inline bool proxy_is_kind(uint8_t kind) {
  const uint8_t what = kind & ~PROXY_FLUSH;
  if (kind & (PROXY_GET | PROXY_STORE | PROXY_ATOMIC))
    return what == PROXY_GET || what == PROXY_STORE || what == PROXY_ADD || what == PROXY_EXCHANGE;
  return kind != 0 && kind < PROXY_GET && (!(kind & PROXY_INLINE) || (kind & PROXY_PUT));
}

// proxy_reaches reports whether a thread in C can have a memory used for a port.
static inline bool proxy_reaches(const proxy_port* port, const native_range* range) {
  return port->sent && range && (range->mapped || port->connection->queue->operations->remote);
}

static inline proxy_verdict proxy_check_copy(proxy_job* job, const proxy_tables* tables,
                                             const native_ring* ring) {
  const proxy_connection* c = job->port->connection;
  const bool get = job->trigger.kind & PROXY_GET;
  const uint32_t to = get ? c->rank : c->peer, from = get ? c->peer : c->rank;
  uint64_t bytes = job->trigger.c;
  const proxy_memory* dst = proxy_table_get(&tables->memories, job->dst);
  if (!dst) return PROXY_NO_MEMORY;
  if (!proxy_holds(dst, c->registry, to, job->dst_offset, bytes)) return PROXY_BAD_DST;
  if (job->trigger.kind & PROXY_INLINE) {
    job->payload = native_ring_payload(ring, job->position, &job->trigger);
    return job->payload && bytes <= c->inline_limit ? PROXY_MOVE : PROXY_BAD_BYTES;
  }
  const proxy_memory* src = proxy_table_get(&tables->memories, job->src);
  if (!src) return PROXY_NO_MEMORY;
  if (!proxy_holds(src, c->registry, from, job->src_offset, bytes)) return PROXY_BAD_SRC;
  job->ranges[0] = dst->range;
  job->ranges[1] = src->range;
  return proxy_reaches(job->port, dst->range) && proxy_reaches(job->port, src->range) ? PROXY_NATIVE
                                                                                      : PROXY_MOVE;
}

// proxy_check_store leaves two cases to Go: a word that is not aligned, for the error, and
// an addition, since queues have no operation for it.
static inline proxy_verdict proxy_check_store(proxy_job* job, const proxy_tables* tables) {
  const proxy_connection* c = job->port->connection;
  const proxy_memory* dst = proxy_table_get(&tables->memories, job->dst);
  if (!dst) return PROXY_NO_MEMORY;
  if (!proxy_holds(dst, c->registry, c->peer, job->dst_offset, PROXY_WORD)) return PROXY_BAD_DST;
  job->ranges[0] = dst->range;
  const bool aligned = dst->range && (dst->range->address + job->dst_offset) % PROXY_WORD == 0;
  const bool adds = job->trigger.kind & PROXY_ATOMIC;
  return aligned && !adds && proxy_reaches(job->port, dst->range) ? PROXY_NATIVE : PROXY_MOVE;
}

// proxy_check_exchange leaves exchanges to Go, as additions are.
static inline proxy_verdict proxy_check_exchange(const proxy_job* job, const proxy_tables* tables) {
  const proxy_connection* c = job->port->connection;
  const proxy_memory* theirs = proxy_table_get(&tables->memories, job->dst);
  if (!theirs) return PROXY_NO_MEMORY;
  if (!proxy_holds(theirs, c->registry, c->peer, job->dst_offset, PROXY_WORD)) return PROXY_BAD_DST;
  const proxy_memory* own = proxy_table_get(&tables->memories, job->src);
  if (!own) return PROXY_NO_MEMORY;
  return proxy_holds(own, c->registry, c->rank, job->src_offset, PROXY_WORD) ? PROXY_MOVE : PROXY_BAD_SRC;
}

static inline proxy_verdict proxy_check(proxy_job* job, const proxy_tables* tables, const native_ring* ring) {
  const native_trigger* t = &job->trigger;
  const bool exchanges = proxy_exchanges(t->kind);
  const bool copies = t->kind & PROXY_COPIES && !exchanges, store = t->kind & PROXY_STORE;
  if (t->kind >= tables->first_user_kind) return PROXY_USER;
  if (!proxy_is_kind(t->kind)) return PROXY_BAD_KIND;
  if ((copies && t->c >> 48) || (store && t->c != PROXY_WORD)) return PROXY_BAD_FIELD;
  job->port = proxy_table_get(&tables->ports, t->detail);
  if (!job->port) return PROXY_NO_PORT;
  if (t->kind & PROXY_SIGNAL) job->ranges[2] = job->port->words;
  if (exchanges) return proxy_check_exchange(job, tables);
  if (copies) return proxy_check_copy(job, tables, ring);
  if (store) return proxy_check_store(job, tables);
  return job->port->sent ? PROXY_NATIVE : PROXY_MOVE;
}

// proxy_decide makes the rest of a job from its trigger, which may hold anything and
// is the ring's oldest that was not polled.
static inline void proxy_decide(proxy_job* job, const proxy_tables* tables, const native_ring* ring) {
  const uint64_t offset = ((uint64_t)1 << 48) - 1;
  const native_trigger t = job->trigger;
  *job = (proxy_job){
      .trigger = t,
      .position = ring->polled,
      .dst_offset = t.a & offset,
      .src_offset = t.b & offset,
      .dst = (uint16_t)(t.a >> 48),
      .src = (uint16_t)(t.b >> 48),
  };
  job->verdict = proxy_check(job, tables, ring);
}

#endif
