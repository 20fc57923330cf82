#include "post.h"

uint64_t ib_size(uint32_t count, uint64_t depth) {
  return sizeof(ib_conn) + count * (sizeof(ib_queue) + depth * sizeof(ib_entry));
}

// fail keeps the first failure, for Go to explain. What was gathered is not posted any more, which
// callers are told of.
static int fail(ib_conn* c, const ib_queue* q, ib_failure f) {
  for (uint32_t i = 0; i < c->count; i++) c->queues[i].gathered = 0;
  if (!c->failed) {
    f.queue = (uint32_t)(q - c->queues);
    c->failure = f;
    __atomic_store_n(&c->failed, 1, __ATOMIC_RELEASE);
  }
  return IB_BROKEN;
}

static ib_part part_of(const ib_memory* m, uint64_t offset) {
  return (ib_part){m->memory, m->size, offset, m->place + offset};
}

static int post(ib_conn* c, ib_queue* q) {
  const uint32_t n = q->gathered;
  if (n == 0) return 0;
  q->gathered = 0;
  if (ib_broken(c)) return IB_BROKEN;
  int posted, rc = verbs_post_send(q->qp, q->work, (int)n, &posted);
  // It is not known which of the requests were posted.
  return rc ? fail(c, q, (ib_failure){.why = IB_BAD_POST, .code = rc}) : 0;
}

// finish posts a call's requests, unless there are more to come. It returns what gathering them has, if
// that is not 0.
static int finish(ib_conn* c, ib_queue* q, int rc) { return rc || c->gathers ? rc : post(c, q); }

int ib_post_all(ib_conn* c) {
  c->gathers = false;
  int first = 0;
  for (uint32_t i = 0; i < c->count; i++) {
    int rc = post(c, &c->queues[i]);
    if (rc) first = rc;
  }
  return first;
}

static int request(ib_conn* c, ib_queue* q, const ib_entry* what, verbs_work work, bool signal) {
  int rc = q->gathered == VERBS_BATCH ? post(c, q) : ib_broken(c) ? IB_BROKEN : 0;
  if (rc) return rc;
  work.id = ib_add(&q->ledger, what, signal, &work.flags);
  q->work[q->gathered++] = work;
  return 0;
}

int ib_request(ib_conn* c, uint32_t queue, const ib_entry* what, const verbs_work* work) {
  ib_queue* q = &c->queues[queue];
  return finish(c, q, request(c, q, what, *work, true));
}

// oldest returns the first request that is not done, of a caller's if there is one.
static ib_entry oldest(const ib_ledger* l) {
  for (uint64_t id = l->done; id < l->posted; id++)
    if (l->entries[id % l->depth].there.memory) return l->entries[id % l->depth];
  return l->entries[l->done % l->depth];
}

// poll takes completions. It fails the connection if there are none for the transport's
// timeout, since not every device gives up by itself.
static int poll(ib_conn* c, ib_queue* q) {
  if (ib_broken(c)) return IB_BROKEN;
  verbs_completion done[32];
  const int n = verbs_poll(q->cq, done, 32);
  if (n < 0) return fail(c, q, (ib_failure){.why = IB_BAD_POLL, .code = n});
  for (int i = 0; i < n; i++) {
    ib_failure f = {.status = done[i].status, .vendor = done[i].vendor, .number = done[i].id};
    const bool under_way = ib_complete(&q->ledger, done[i].id, &f.what);
    f.why = f.status ? IB_BAD_STATUS : under_way ? 0 : IB_BAD_NUMBER;
    if (f.why) return fail(c, q, f);
  }
  const int64_t silent = ib_silence(&q->ledger, n > 0);
  if (silent <= c->timeout) return 0;
  return fail(c, q, (ib_failure){.why = IB_SILENCE, .silent = silent, .what = oldest(&q->ledger)});
}

int ib_poll(ib_conn* c, uint32_t queue) { return poll(c, &c->queues[queue]); }

static int fence(ib_conn* c, ib_queue* q) {
  if (q->ledger.signaled == q->ledger.posted) return 0;
  if (ib_room(&q->ledger) < 1) return IB_WAIT;
  const ib_entry what = {.doing = IB_EMPTY};
  int rc = request(c, q, &what, (verbs_work){.opcode = IBV_WR_RDMA_WRITE}, true);
  return rc ? rc : post(c, q);
}

int ib_fence(ib_conn* c, uint32_t queue) { return fence(c, &c->queues[queue]); }

// conflicts returns IB_WAIT until all is done that a write or read on a queue pair must follow
// and might overtake.
static int conflicts(ib_conn* c, const ib_queue* q, const ib_entry* next) {
  int first = 0;
  for (uint32_t i = 0; i < c->count; i++) {
    ib_queue* other = &c->queues[i];
    const uint64_t end = ib_conflict(&other->ledger, next, other == q);
    int rc = end > other->ledger.signaled ? fence(c, other) : 0;
    if (!rc && other->ledger.done < end) rc = IB_WAIT;
    if (rc > first) first = rc;
  }
  return first;
}

uint64_t ib_spread(uint64_t n, uint32_t i, uint32_t count, uint64_t* begin) {
  *begin = 0;
  if (count == 1 || n < IB_SPREAD_FROM) return i == 0 ? n : 0;
  const uint64_t page = 4096, each = (n / count + page) / page * page, from = each * i;
  *begin = from < n ? from : n;
  return n - *begin < each ? n - *begin : each;
}

// IB_READ_BYTES is the most bytes of a request that reads. What is lost of a read's answer has all
// behind it sent again, and a device counts such attempts until the request is done: with
// 16 MiB in one, both ways at once, Soft-RoCE (Linux 6.1) gives up.
enum { IB_READ_BYTES = 1 << 20 };

static uint64_t per_read(const ib_queue* q) { return q->max < IB_READ_BYTES ? q->max : IB_READ_BYTES; }

static uint64_t pieces(uint64_t n, uint64_t each) { return n / each + (n % each != 0); }

static uint64_t most(const ib_queue* q, bool read) { return read ? per_read(q) : q->max; }

uint64_t ib_pieces(const ib_conn* c, uint32_t queue, uint64_t n, bool read) {
  return pieces(n, most(&c->queues[queue], read));
}

uint64_t ib_fits(const ib_conn* c, uint32_t queue, bool read) {
  const ib_queue* q = &c->queues[queue];
  return q->ledger.depth / 2 * most(q, read);
}

// read_back gathers a read of a byte at the peer. Once it is complete, the writes before it are
// in place. Updates wait for it: a fence would have the device wait instead, but Soft-RoCE
// (Linux 6.1) may hang after a fence.
static int read_back(ib_conn* c, ib_queue* q, uint32_t key, uint64_t at, ib_entry what) {
  what.doing = IB_WRITTEN;
  what.here = (ib_part){0};
  const verbs_work w = {.local = IB_TOUCHED_AT,
                        .remote = at,
                        .size = 1,
                        .lkey = q->scratch_key,
                        .rkey = key,
                        .opcode = IBV_WR_RDMA_READ};
  int rc = request(c, q, &what, w, true);
  q->ledger.wait_for = q->ledger.posted;
  return rc;
}

void ib_changed(ib_conn* c, const ib_memory* dst) {
  if (!dst->device)
    c->unread_host = true;
  else
    c->touched = c->unread = true;
}

static ib_entry write_entry(const ib_memory* dst, uint64_t dst_offset, const ib_memory* src,
                            uint64_t src_offset, uint64_t n) {
  return (ib_entry){
      .doing = IB_WRITE, .there = part_of(dst, dst_offset), .here = part_of(src, src_offset), .n = n};
}

int ib_write(ib_conn* c, uint32_t queue, const ib_memory* dst, uint64_t dst_offset, const ib_memory* src,
             uint64_t src_offset, uint64_t n) {
  ib_queue* q = &c->queues[queue];
  const ib_entry what = write_entry(dst, dst_offset, src, src_offset, n);
  int rc = conflicts(c, q, &what);
  if (rc) return rc;
  if (ib_room(&q->ledger) < ib_pieces(c, queue, n, false) + (queue > 0)) return IB_WAIT;
  for (uint64_t at = 0, size; at < n && !rc; at += size) {
    size = n - at < q->max ? n - at : q->max;
    const verbs_work w = {.local = src->base + src_offset + at,
                          .remote = dst->base + dst_offset + at,
                          .size = (uint32_t)size,
                          .lkey = src->key,
                          .rkey = dst->key,
                          .opcode = IBV_WR_RDMA_WRITE};
    rc = request(c, q, &what, w, false);
  }
  if (queue == 0)
    ib_changed(c, dst);
  else if (!rc)
    rc = read_back(c, q, dst->key, dst->base + dst_offset + n - 1, what);
  return finish(c, q, rc);
}

static ib_entry read_entry(const ib_memory* dst, uint64_t dst_offset, const ib_memory* src,
                           uint64_t src_offset, uint64_t n) {
  return (ib_entry){.doing = IB_READ,
                    .there = part_of(src, src_offset),
                    .here = part_of(dst, dst_offset),
                    .n = n,
                    .read = true};
}

int ib_read(ib_conn* c, const ib_memory* dst, uint64_t dst_offset, const ib_memory* src, uint64_t src_offset,
            uint64_t n) {
  ib_queue* q = c->queues;
  const ib_entry what = read_entry(dst, dst_offset, src, src_offset, n);
  int rc = conflicts(c, q, &what);
  if (rc) return rc;
  if (ib_room(&q->ledger) < ib_pieces(c, 0, n, true)) return IB_WAIT;
  const uint64_t each = per_read(q);
  for (uint64_t at = 0, size; at < n && !rc; at += size) {
    size = n - at < each ? n - at : each;
    const verbs_work w = {.local = dst->base + dst_offset + at,
                          .remote = src->base + src_offset + at,
                          .size = (uint32_t)size,
                          .lkey = dst->key,
                          .rkey = src->key,
                          .opcode = IBV_WR_RDMA_READ};
    rc = request(c, q, &what, w, at + size == n);
  }
  q->ledger.wait_for = q->ledger.posted;
  if (dst->device) {
    c->landing.newest = q->ledger.posted;
    c->landing.key = dst->key;
    c->landing.at = dst->base + dst_offset + n - 1;
  }
  return finish(c, q, rc);
}

static ib_entry word_entry(const ib_memory* dst, uint64_t offset, uint32_t doing) {
  return (ib_entry){.doing = doing, .there = part_of(dst, offset), .n = 8, .atomic = doing == IB_ADDITION};
}

int ib_store(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value) {
  ib_queue* q = c->queues;
  const ib_entry what = word_entry(dst, offset, IB_STORE);
  int rc = conflicts(c, q, &what);
  if (rc) return rc;
  if (ib_room(&q->ledger) < 1) return IB_WAIT;
  // The request before it in the slot is done, since there is room.
  const uint64_t slot = IB_OUT_AT + q->ledger.posted % q->ledger.depth * IB_OUT_BYTES;
  memcpy(c->scratch + slot, &value, sizeof value);
  const verbs_work w = {.local = slot,
                        .remote = dst->base + offset,
                        .size = 8,
                        .lkey = q->scratch_key,
                        .rkey = dst->key,
                        .opcode = IBV_WR_RDMA_WRITE};
  rc = request(c, q, &what, w, false);
  ib_changed(c, dst);
  return finish(c, q, rc);
}

int ib_follow(ib_conn* c, const ib_memory* dst, uint64_t offset, uint32_t doing, bool at_device) {
  ib_queue* q = c->queues;
  if (c->touched && !at_device) {
    if (ib_room(&q->ledger) < 1) return IB_WAIT;
    int rc = read_back(c, q, c->anchor_key, c->anchor_at, word_entry(dst, offset, doing));
    if (!rc) rc = post(c, q);
    if (rc) return rc;
    c->touched = false;
  }
  for (uint32_t i = 0; i < c->count; i++)
    if (c->queues[i].ledger.done < c->queues[i].ledger.wait_for) return IB_WAIT;
  return 0;
}

static int fetch_add(ib_conn* c, const ib_memory* dst, uint64_t offset, uint32_t doing, uint64_t value) {
  ib_queue* q = c->queues;
  if (ib_room(&q->ledger) < 1) return IB_WAIT;
  const ib_entry what = word_entry(dst, offset, doing);
  const verbs_work w = {.local = IB_FETCHED_AT,
                        .remote = dst->base + offset,
                        .value = value,
                        .size = 8,
                        .lkey = q->scratch_key,
                        .rkey = dst->key,
                        .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
  int rc = request(c, q, &what, w, true);
  ib_changed(c, dst);
  return finish(c, q, rc);
}

int ib_update(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value) {
  int rc = ib_follow(c, dst, offset, IB_UPDATE, dst->device);
  return rc ? rc : fetch_add(c, dst, offset, IB_UPDATE, value);
}

int ib_increase(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value) {
  const ib_entry what = word_entry(dst, offset, IB_ADDITION);
  int rc = conflicts(c, c->queues, &what);
  return rc ? rc : fetch_add(c, dst, offset, IB_ADDITION, value);
}

static int settle(ib_conn* c) {
  ib_queue* q = c->queues;
  if (!c->unread && !c->unread_host) return fence(c, q);
  if (ib_room(&q->ledger) < 2) return IB_WAIT;
  const ib_entry what = {.doing = IB_MARKED};
  verbs_work w = {.local = IB_TOUCHED_AT, .size = 1, .lkey = q->scratch_key, .opcode = IBV_WR_RDMA_READ};
  int rc = 0;
  if (c->unread) {
    w.remote = c->anchor_at;
    w.rkey = c->anchor_key;
    rc = request(c, q, &what, w, true);
  }
  if (!rc && c->unread_host) {
    w.remote = c->count_at;
    w.rkey = c->inbox_key;
    rc = request(c, q, &what, w, true);
  }
  c->unread = c->unread_host = false;
  return rc ? rc : post(c, q);
}

int ib_settle(ib_conn* c, ib_mark* mark) {
  for (uint32_t i = 0; i < c->count; i++) {
    // Once the connection has failed no completion comes any more.
    int rc = ib_broken(c) ? 0 : i == 0 ? settle(c) : fence(c, &c->queues[i]);
    if (rc) return rc;
    mark->up_to[i] = c->queues[i].ledger.posted;
  }
  if (mark->up_to[0] == c->news_to) mark->up_to[0] = c->news_from;
  mark->read = c->landing.newest;
  return 0;
}

int ib_reached(ib_conn* c, const ib_mark* mark) {
  for (uint32_t i = 0; i < c->count; i++) {
    ib_queue* q = &c->queues[i];
    if (q->ledger.done >= mark->up_to[i]) continue;
    int rc = poll(c, q);
    if (rc) return rc;
    if (q->ledger.done < mark->up_to[i]) return IB_WAIT;
  }
  return ib_landed(c, mark->read);
}

int ib_landed(ib_conn* c, uint64_t number) {
  ib_landing* l = &c->landing;
  ib_queue* q = c->queues;
  if (l->pushed > l->settled && q->ledger.done < l->until) {
    int rc = poll(c, q);
    if (rc) return rc;
  }
  if (q->ledger.done >= l->until) l->settled = l->pushed;
  if (number <= l->settled) return 0;
  if (ib_broken(c)) return IB_BROKEN;
  if (number <= l->pushed || ib_room(&q->ledger) == 0) return IB_WAIT;
  const ib_entry what = {.doing = IB_LANDED};
  const verbs_work w = {.local = l->at,
                        .remote = c->dump_at,
                        .size = 1,
                        .lkey = l->key,
                        .rkey = c->inbox_key,
                        .opcode = IBV_WR_RDMA_WRITE};
  int rc = request(c, q, &what, w, true);
  l->pushed = number;
  l->until = q->ledger.posted;
  if (!rc) rc = post(c, q);
  return rc ? rc : IB_WAIT;
}
