// What a connection posts and polls, for goroutines and for threads in C alike: whoever calls
// a function has the connection's lock. None waits.
#ifndef MSCCLGO_IB_POST_H
#define MSCCLGO_IB_POST_H

#include "ledger/ledger.h"
#include "native/queue.h"

// What functions return: 0, or one of these.
enum {
  IB_WAIT = 1,    // others must be done first, which polls will find; nothing that counts was posted
  IB_BROKEN = 2,  // the connection has failed: see ib_failure, unless Go has said why
};

// Why a connection failed in C.
enum { IB_BAD_POST = 1, IB_BAD_POLL, IB_BAD_STATUS, IB_BAD_NUMBER, IB_SILENCE };

typedef struct {
  uint32_t why;
  uint32_t queue;   // which queue pair
  int32_t code;     // of a post an errno value, of a poll the driver's
  uint32_t status;  // of a completion
  uint32_t vendor;  // likewise
  uint64_t number;  // of a request that is not under way
  int64_t silent;   // nanoseconds
  ib_entry what;    // the request, or the oldest
} ib_failure;

// ib_memory is a memory as requests of one queue pair name it.
typedef struct {
  uint64_t memory;  // 1 + its number among its rank's; 0 for none
  uint64_t size;    // bytes
  uint64_t base;    // the address of the first
  uint64_t place;   // of the first among all memory of its rank
  uint32_t key;
  bool device;  // a GPU's
} ib_memory;

typedef struct {
  ib_ledger ledger;
  struct ibv_qp* qp;
  struct ibv_cq* cq;
  uint64_t max;          // bytes of a request
  uint32_t scratch_key;  // of the scratch memory of this side
  uint32_t gathered;     // of work: what is to be posted
  verbs_work work[VERBS_BATCH];
} ib_queue;

// ib_landing is what is known of reads into memory of this rank's device. The card announces
// their end in host memory, which may come before the bytes are in the device's: they are
// once the card has read there again, as it does for a write from there.
typedef struct {
  uint64_t newest;  // all these reads are requests below
  uint32_t key;     // where the newest has put its last byte
  uint64_t at;
  uint64_t pushed;   // for the reads below, such a write was posted
  uint64_t until;    // which is done when all requests below are
  uint64_t settled;  // the reads below have landed
} ib_landing;

// IB_QUEUES is the largest number of queue pairs.
enum { IB_QUEUES = 16 };

// IB_SPREAD_FROM is the size from which a write is spread over all queue pairs.
enum { IB_SPREAD_FROM = 256 << 10 };

// ib_mark is a point in a connection's queues: the numbers of the requests before it.
typedef struct {
  uint64_t up_to[IB_QUEUES];
  uint64_t read;  // the number below which are the reads
} ib_mark;

// Threads in C know the keys of IB_WAYS memories of each side whose numbers are equal modulo
// IB_SETS: the ones that Go told them of last.
enum { IB_SETS = 32, IB_WAYS = 4 };

// Offsets in the scratch memory of this side.
enum {
  IB_FETCHED_AT = 0,  // what atomics return; not used
  IB_TOUCHED_AT = 8,  // what reads after writes return; not used
  IB_OUT_AT = 64,     // what is sent from there, for each request that may be under way
  IB_OUT_BYTES = 24,  // each
};

// IB_PARKED is how many requests of threads in C may wait for others.
enum { IB_PARKED = 16 };

// ib_parked is a request of a thread in C, of which it says what is not posted yet.
typedef struct {
  ib_memory dst, src, word;
  uint32_t dst_keys[IB_QUEUES], src_keys[IB_QUEUES];
  uint64_t dst_offset, src_offset, word_offset;
  uint64_t bytes;     // of a copy; 0: none
  uint32_t queue;     // where that goes on
  uint64_t at;        // in the queue's part
  uint64_t value;     // stored
  uint64_t increase;  // of the word
  bool reads, stores, updates;
  uint32_t mark;  // 1 + the mark that is set behind all; 0: none
} ib_parked;

// ib_known is a memory that threads in C know.
typedef struct {
  ib_memory memory;  // for the first queue pair
  uint32_t keys[IB_QUEUES];
} ib_known;

// Who may have a connection's lock.
enum { IB_NOBODY, IB_GOROUTINE, IB_THREAD };

typedef struct {
  native_queue queue;

  uint32_t claimed;  // the lock: who has it
  uint32_t open;     // threads in C may queue: the peer is greeted
  uint32_t broken;   // Go has said why
  uint32_t failed;   // failure is set, once
  ib_failure failure;

  uint64_t registry, peer_registry;  // whose memories the two sides use

  int64_t timeout;     // nanoseconds for which the peer may acknowledge nothing
  uint8_t* scratch;    // of this side
  uint64_t count_at;   // in the peer's inbox: a word that is always there
  uint64_t dump_at;    // a byte that nobody reads
  uint32_t inbox_key;  // of the peer's
  uint32_t anchor_key;
  uint64_t anchor_at;  // in the memory of the peer's device: a byte that is always there

  // Whether the first queue has changed device memory and not read there since: an update of
  // host memory then has to wait.
  bool touched;
  // Whether it has changed memory of devices and of hosts since a mark last read there.
  bool unread, unread_host;
  ib_landing landing;
  // The newest requests of the first queue that carry news and nothing else. Marks do not wait
  // for them: the peer may have left.
  uint64_t news_from, news_to;

  bool gathers;  // requests are left for ib_post_all to post

  // Of threads in C.
  uint32_t left;  // operations of the newest request that are to come
  // A ring of requests: those from this number on that the queue has taken wait, in order, for those
  // before them. Whatever else is posted in the order of calls comes behind them.
  ib_parked parked[IB_PARKED];
  uint64_t parked_from;
  struct {
    ib_mark mark;
    uint64_t behind;  // it is set once the requests below this number are posted
  } marks[NATIVE_MARKS];
  // By number modulo IB_SETS. Go sets them when it uses the memory, and forgets the peer's, at
  // any time, when that closes them.
  ib_known theirs[IB_SETS][IB_WAYS], own[IB_SETS][IB_WAYS];

  uint32_t count;  // of queues
  ib_queue queues[];
} ib_conn;

// ib_size returns the bytes of a connection with a number of queue pairs of a depth.
uint64_t ib_size(uint32_t count, uint64_t depth);

// ib_init makes a connection of zeros of that size. Go sets the rest.
void ib_init(ib_conn* c, uint32_t count, uint64_t depth);

// ib_request posts a request, for which there is room, with a completion.
int ib_request(ib_conn* c, uint32_t queue, const ib_entry* what, const verbs_work* work);

// ib_post_all posts what was gathered. ib_poll takes completions. ib_fence makes sure that a
// completion will cover all requests posted so far, if necessary by an empty write.
int ib_post_all(ib_conn* c);
int ib_poll(ib_conn* c, uint32_t queue);
int ib_fence(ib_conn* c, uint32_t queue);

// ib_spread returns how many of n bytes queue pair i of a number of them writes, and where they
// begin. All parts but the last are whole pages.
uint64_t ib_spread(uint64_t n, uint32_t i, uint32_t count, uint64_t* begin);

// What follows posts, or gathers while the connection says so. What it returns IB_WAIT for is asked for
// again after a poll.

// ib_pieces returns how many requests n bytes take on a queue pair, of a write or of a read.
uint64_t ib_pieces(const ib_conn* c, uint32_t queue, uint64_t n, bool read);

// ib_fits returns the bytes after which a longer write or read is cut, so that a part fits in an
// empty queue. The parts take as many requests as ib_pieces has for the whole.
uint64_t ib_fits(const ib_conn* c, uint32_t queue, bool read);

// ib_write writes n bytes on a queue pair. If that is not the first, a read of the last byte
// ends it. The read's answer means that all of the queue pair's writes are in place.
int ib_write(ib_conn* c, uint32_t queue, const ib_memory* dst, uint64_t dst_offset, const ib_memory* src,
             uint64_t src_offset, uint64_t n);

// ib_read reads n bytes on the first queue pair. Updates behind it wait for its end.
int ib_read(ib_conn* c, const ib_memory* dst, uint64_t dst_offset, const ib_memory* src, uint64_t src_offset,
            uint64_t n);

// ib_store writes a value.
int ib_store(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value);

// ib_follow has what is posted next on the first queue pair come behind all that was posted
// before. at_device is whether that is ordered with writes to device memory.
int ib_follow(ib_conn* c, const ib_memory* dst, uint64_t offset, uint32_t doing, bool at_device);

// ib_update adds a value to a word behind all that was posted before, ib_increase in the order of
// writes.
int ib_update(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value);
int ib_increase(ib_conn* c, const ib_memory* dst, uint64_t offset, uint64_t value);

// ib_changed notes that the first queue has changed a memory.
void ib_changed(ib_conn* c, const ib_memory* dst);

// ib_settle makes sure that a completion will cover all requests posted on the first queue so
// far, and mean that what they write is in place. It reads in the memory of the peer's device and
// in its inbox, in places that are always there: what was written may be closed by now. The other queues
// end each part of a write with a read. It posts, and sets the mark behind all.
int ib_settle(ib_conn* c, ib_mark* mark);

// ib_reached returns 0 if all before a mark is done and has landed here.
int ib_reached(ib_conn* c, const ib_mark* mark);

// ib_unpark posts what is parked, in order, and sets its marks, as far as it need not wait. It returns
// 0 once nothing is.
int ib_unpark(ib_conn* c);

// ib_broken reports whether the connection has failed or is closed.
static inline bool ib_broken(const ib_conn* c) {
  return c->failed || __atomic_load_n(&c->broken, __ATOMIC_ACQUIRE);
}

// ib_landed returns 0 if the reads below a number, which are done, are in the device's memory.
// If that is not known, it posts a write of their last byte to a byte of the peer's inbox that
// nobody reads. It does not wait.
int ib_landed(ib_conn* c, uint64_t number);

#endif
