// What a trigger asks for and what is to be done about it.
#ifndef MSCCLGO_PROXYSERVICE_JOB_H
#define MSCCLGO_PROXYSERVICE_JOB_H

#include "connection.h"
#include "native/count.h"
#include "native/range.h"
#include "native/ring.h"
#include "table.h"

// proxy_request is what a port's trigger asks for; see PortRequest in
// <mscclgo/port_channel.cuh>.
typedef struct {
  uint64_t port;
  uint64_t dst_offset, src_offset, bytes;
  uint16_t dst, src;  // memories
  bool put, signal, flush;
  bool inlined;  // of a put: the bytes are in the entry's payload
} proxy_request;

// proxy_memory is what a memory's id stands for.
typedef struct {
  native_range* range;  // NULL where it is not mapped
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
  uint64_t word;        // the address of the one that signals are stored to
} proxy_port;

typedef struct {
  proxy_table connections, ports, memories;
  uint32_t first_user_kind;  // kinds from this one are for the user's handler
} proxy_tables;

// proxy_verdict is what is to be done about a trigger. From PROXY_UNKNOWN_KIND on,
// the trigger is wrong.
typedef enum {
  PROXY_MOVE,  // what its request says
  PROXY_USER,  // the user's handler serves it
  PROXY_UNKNOWN_KIND,
  PROXY_FIELD_OVERFLOW,  // the device found a number too large for its field
  PROXY_UNKNOWN_PORT,
  PROXY_UNKNOWN_DST,
  PROXY_UNKNOWN_SRC,
  PROXY_FOREIGN_DST,  // of another rank or registry than the connection's peer
  PROXY_FOREIGN_SRC,
  PROXY_DST_RANGE,  // outside the memory
  PROXY_SRC_RANGE,
  PROXY_NO_INLINE,   // the connection takes no bytes of the host's, or not so many
  PROXY_NO_PAYLOAD,  // no such bytes can have come with the trigger
} proxy_verdict;

// proxy_job is a trigger, decoded, looked up and checked; the job of serve.go.
typedef struct {
  native_trigger trigger;
  proxy_request request;
  uint64_t position;  // in the ring
  int64_t since;      // when it was taken; 0 when nobody counts
  const uint8_t* payload;
  const proxy_port* port;         // of a PROXY_MOVE
  const proxy_memory *dst, *src;  // of a put
  proxy_verdict verdict;
} proxy_job;

enum {
  PROXY_PUT = 1,
  PROXY_SIGNAL = 2,
  PROXY_FLUSH = 4,
  PROXY_INLINE = 8,
  PROXY_KINDS = PROXY_PUT | PROXY_SIGNAL | PROXY_FLUSH | PROXY_INLINE,
};

static const uint64_t proxy_offset_mask = ((uint64_t)1 << 48) - 1;

// proxy_within reports whether n bytes at an offset are inside a memory.
static inline bool proxy_within(const proxy_memory* memory, uint64_t offset, uint64_t n) {
  return offset <= memory->size && n <= memory->size - offset;
}

static inline bool proxy_belongs(const proxy_memory* memory, uint64_t registry, uint32_t rank) {
  return memory->registry == registry && memory->rank == rank;
}

static inline proxy_verdict proxy_check_put(proxy_job* job, const proxy_tables* tables,
                                            const native_ring* ring) {
  const proxy_request* r = &job->request;
  const proxy_connection* c = job->port->connection;
  job->dst = proxy_table_get(&tables->memories, r->dst);
  if (!job->dst) return PROXY_UNKNOWN_DST;
  if (!proxy_belongs(job->dst, c->registry, c->peer)) return PROXY_FOREIGN_DST;
  if (!proxy_within(job->dst, r->dst_offset, r->bytes)) return PROXY_DST_RANGE;
  if (r->inlined) {
    if (r->bytes > c->inline_limit) return PROXY_NO_INLINE;
    job->payload = native_ring_payload(ring, job->position, &job->trigger);
    return job->payload ? PROXY_MOVE : PROXY_NO_PAYLOAD;
  }
  job->src = proxy_table_get(&tables->memories, r->src);
  if (!job->src) return PROXY_UNKNOWN_SRC;
  if (!proxy_belongs(job->src, c->registry, c->rank)) return PROXY_FOREIGN_SRC;
  return proxy_within(job->src, r->src_offset, r->bytes) ? PROXY_MOVE : PROXY_SRC_RANGE;
}

static inline proxy_verdict proxy_check(proxy_job* job, const proxy_tables* tables, const native_ring* ring) {
  const native_trigger* t = &job->trigger;
  if (t->kind >= tables->first_user_kind) return PROXY_USER;
  if (t->kind == 0 || t->kind > PROXY_KINDS || (t->kind & (PROXY_INLINE | PROXY_PUT)) == PROXY_INLINE)
    return PROXY_UNKNOWN_KIND;
  if ((t->kind & PROXY_PUT) && t->c > proxy_offset_mask) return PROXY_FIELD_OVERFLOW;
  job->port = proxy_table_get(&tables->ports, t->detail);
  if (!job->port) return PROXY_UNKNOWN_PORT;
  return t->kind & PROXY_PUT ? proxy_check_put(job, tables, ring) : PROXY_MOVE;
}

// proxy_decide makes the rest of a job from its trigger, which may hold anything and
// is the ring's oldest that was not polled.
static inline void proxy_decide(proxy_job* job, const proxy_tables* tables, const native_ring* ring) {
  const native_trigger* t = &job->trigger;
  proxy_request* r = &job->request;
  r->port = t->detail;
  r->dst_offset = t->a & proxy_offset_mask;
  r->src_offset = t->b & proxy_offset_mask;
  r->bytes = t->c;
  r->dst = (uint16_t)(t->a >> 48);
  r->src = (uint16_t)(t->b >> 48);
  r->put = t->kind & PROXY_PUT;
  r->signal = t->kind & PROXY_SIGNAL;
  r->flush = t->kind & PROXY_FLUSH;
  r->inlined = t->kind & PROXY_INLINE;
  job->position = ring->polled;
  job->since = 0;
  job->payload = NULL;
  job->port = NULL;
  job->dst = job->src = NULL;
  job->verdict = proxy_check(job, tables, ring);
}

// proxy_native reports whether a thread in C can do the job.
static inline bool proxy_native(const proxy_job* job) {
  return job->verdict == PROXY_MOVE && job->port->sent && !job->request.inlined &&
         (!job->request.put || (job->dst->range && job->src->range));
}

#endif
