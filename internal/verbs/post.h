// What posts requests and polls for their ends: calls of the driver, with no symbol of
// the library, so that other packages' C code can include this.
#ifndef MSCCLGO_VERBS_POST_H
#define MSCCLGO_VERBS_POST_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <string.h>

#include "abi.h"

// VERBS_BATCH is the most requests and completions of a call of the driver.
enum { VERBS_BATCH = 64 };

// verbs_work is one work request. Go has the same struct.
typedef struct {
  uint64_t id;
  uint64_t local;
  uint64_t remote;
  uint64_t value;    // added or stored, or the immediate value
  uint64_t compare;  // what a word must be to be swapped
  uint32_t size;
  uint32_t lkey;
  uint32_t rkey;
  uint16_t opcode;
  uint16_t flags;
} verbs_work;

// verbs_post_send posts n requests, with one call of the driver for each VERBS_BATCH.
// posted is the number that was posted. It returns an errno value, or 0.
static inline int verbs_post_send(struct ibv_qp* qp, const verbs_work* work, int n, int* posted) {
  struct ibv_send_wr requests[VERBS_BATCH];
  struct ibv_sge parts[VERBS_BATCH];
  *posted = 0;
  while (*posted < n) {
    int count = n - *posted < VERBS_BATCH ? n - *posted : VERBS_BATCH;
    for (int i = 0; i < count; i++, work++) {
      struct ibv_send_wr* r = &requests[i];
      memset(r, 0, sizeof *r);
      r->wr_id = work->id;
      r->next = i + 1 < count ? r + 1 : NULL;
      r->opcode = work->opcode;
      r->send_flags = work->flags;
      r->imm_data = htonl((uint32_t)work->value);
      if (work->size) {
        parts[i].addr = work->local;
        parts[i].length = work->size;
        parts[i].lkey = work->lkey;
        r->sg_list = &parts[i];
        r->num_sge = 1;
      }
      const bool swaps = work->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
      if (swaps || work->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        r->wr.atomic.remote_addr = work->remote;
        r->wr.atomic.compare_add = swaps ? work->compare : work->value;
        r->wr.atomic.swap = swaps ? work->value : 0;
        r->wr.atomic.rkey = work->rkey;
      } else {
        r->wr.rdma.remote_addr = work->remote;
        r->wr.rdma.rkey = work->rkey;
      }
    }
    struct ibv_send_wr* bad = NULL;
    int rc = qp->context->ops.post_send(qp, requests, &bad);
    if (rc) {
      *posted += bad ? (int)(bad - requests) : 0;
      return rc < 0 ? -rc : rc;
    }
    *posted += count;
  }
  return 0;
}

// verbs_completion is one completion. Go has the same struct.
typedef struct {
  uint64_t id;
  uint32_t status;
  uint32_t vendor;
  uint32_t qp;
  uint32_t immediate;
} verbs_completion;

// verbs_poll takes at most n and at most VERBS_BATCH completions; below 0 it failed.
static inline int verbs_poll(struct ibv_cq* cq, verbs_completion* out, int n) {
  struct ibv_wc found[VERBS_BATCH];
  int got = cq->context->ops.poll_cq(cq, n < VERBS_BATCH ? n : VERBS_BATCH, found);
  for (int i = 0; i < got; i++) {
    out[i].id = found[i].wr_id;
    out[i].status = (uint32_t)found[i].status;
    out[i].vendor = found[i].vendor_err;
    out[i].qp = found[i].qp_num;
    out[i].immediate = ntohl(found[i].imm_data);
  }
  return got;
}

#endif
