#include "post.h"

// copy gathers what is left of a request's copy.
static int copy(ib_conn* c, ib_parked* p) {
  for (; p->queue < c->count; p->queue++, p->at = 0) {
    uint64_t begin;
    const uint64_t n = ib_spread(p->bytes, p->queue, p->reads ? 1 : c->count, &begin);
    p->dst.key = p->dst_keys[p->queue];
    p->src.key = p->src_keys[p->queue];
    while (p->at < n) {
      const uint64_t most = ib_fits(c, p->queue, p->reads), size = n - p->at < most ? n - p->at : most;
      const uint64_t dst = p->dst_offset + begin + p->at, src = p->src_offset + begin + p->at;
      int rc = p->reads ? ib_read(c, &p->dst, dst, &p->src, src, size)
                        : ib_write(c, p->queue, &p->dst, dst, &p->src, src, size);
      if (rc) return rc;
      p->at += size;
    }
  }
  p->bytes = 0;
  return 0;
}

// run gathers what is left of a request, and sets its mark. It returns 0 once nothing is.
static int run(ib_conn* c, ib_parked* p) {
  int rc = p->bytes ? copy(c, p) : 0;
  if (!rc && p->stores) {
    p->dst.key = p->dst_keys[0];
    rc = ib_store(c, &p->dst, p->dst_offset, p->value);
    p->stores = rc != 0;
  }
  if (!rc && p->updates) {
    rc = ib_update(c, &p->word, p->word_offset, p->increase);
    p->updates = rc != 0;
  }
  if (!rc && p->mark) rc = ib_settle(c, &c->marks[p->mark - 1].mark);
  return rc;
}

int ib_unpark(ib_conn* c) {
  if (c->parked_from == c->queue.taken) return 0;
  int rc = ib_broken(c) ? IB_BROKEN : 0;
  c->gathers = true;
  while (!rc && c->parked_from < c->queue.taken) {
    rc = run(c, &c->parked[c->parked_from % IB_PARKED]);
    if (!rc) c->parked_from++;
  }
  return ib_post_all(c) ? IB_BROKEN : rc;
}
