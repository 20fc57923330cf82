// Bulk copies: one thread has the multiprocessor's copy engine, the tensor memory accelerator, move
// kilobytes at a time between global and shared memory. A block then moves several times as much as
// its threads could by loads and stores. So few multiprocessors fill a link, and the others
// compute.
//
//   extern __shared__ uint4 memory[];
//   BulkRing<6> ring(memory, 16 << 10);  // launched with ring.bytes(16 << 10) of dynamic shared memory
//   bulkCopy(ring, dst, src, n, blockIdx.x, gridDim.x);
//   ring.wait();
//   __syncthreads();
//   if (threadIdx.x == 0) channel.signal();
//
// The terms are from the PTX ISA: "Asynchronous copy" and its "Async proxy", "mbarrier", and
// "cp.async.bulk". The engine's accesses are weak, and in the async proxy. The threads' accesses
// are in the generic proxy: only a proxy fence orders the engine's after them. When a thread has
// observed the end of a copy, such a fence is implied.
//
// GPUs before sm_90 have no such engine. There BulkRing and bulkCopy copy by all threads of the
// block, and bulkFence does nothing. MSCCLGO_BULK is not defined, and BulkBarrier, bulkLoad,
// bulkStore and the like are missing. On emulated devices the engine moves a piece at once.
#pragma once

#include <mscclgo/atomic.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/threads.cuh>

#if defined(MSCCLGO_EMU) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define MSCCLGO_BULK
#endif

namespace mscclgo {

// Addresses and sizes of bulk copies are multiples of kBulkUnit bytes (PTX: cp.async.bulk).
constexpr uint32_t kBulkUnit = 16;

// bulkFence orders the thread's loads and stores, and what it has observed by them, before later
// work of the engine for it, or for another thread after a barrier of the block. A thread that
// stores data for the engine calls it before that barrier. Any thread may call it. (PTX:
// fence.proxy.async)
MSCCLGO_DEVICE void bulkFence() {
#if defined(MSCCLGO_BULK) && !defined(MSCCLGO_EMU)
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

#if defined(MSCCLGO_BULK)

// BulkBarrier counts the bytes that bulk copies have brought into the block's shared memory. It is
// in shared memory itself (PTX: mbarrier, of one arrival). It goes through phases, from number 0
// on. A thread announces a phase's bytes, before the copies that bring them, and any threads wait
// for its end.
struct BulkBarrier {
  uint64_t word;  // opaque

  // init makes it. One thread calls it, before all else and at least once in a kernel. That thread
  // calls bulkFence(), and the block has a barrier, before the engine or another thread uses it.
  MSCCLGO_DEVICE void init() {
#if defined(MSCCLGO_EMU)
    store<Scope::Device, Order::Relaxed>(&word, 0);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address()) : "memory");
#endif
  }

  // expect announces how many bytes the copies of this phase bring, once a phase: 0 ends it. One
  // thread calls it. It releases at the scope of the block (PTX: mbarrier.arrive.expect_tx).
  MSCCLGO_DEVICE void expect(uint32_t bytes) {
#if defined(MSCCLGO_EMU)
    fetchAdd<Scope::Device, Order::Release>(&word, bytes);
    brought(0);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                 : "memory");
#endif
  }

  // wait waits until the phase of that parity, 0 or 1, has ended: the current phase, or the one
  // before, which has. The bytes of the copies are then visible to the thread. Any thread may call
  // it. It acquires at the scope of the block.
  //
  // No deadline bounds it: the multiprocessor's own engine reads this GPU's memory or a mapped
  // peer's, as an ordinary load does. (PTX: mbarrier.try_wait)
  MSCCLGO_DEVICE void wait(uint32_t parity) const {
#if defined(MSCCLGO_EMU)
    while ((load<Scope::Device, Order::Acquire>(&word) >> 32 & 1) == parity) {
    }
#else
    uint32_t ended;
    do {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}"
          : "=r"(ended)
          : "r"(address()), "r"(parity)
          : "memory");
    } while (!ended);
#endif
  }

#if defined(MSCCLGO_EMU)
  // brought counts bytes that have come. The word's lower 32 bits are how many bytes are missing,
  // its upper 32 bits how many phases have ended.
  MSCCLGO_DEVICE void brought(uint32_t bytes) {
    uint64_t was = fetchAdd<Scope::Device, Order::Release>(&word, 0 - uint64_t(bytes));
    if (uint32_t(was) == bytes) fetchAdd<Scope::Device, Order::Release>(&word, uint64_t(1) << 32);
  }
#else
  MSCCLGO_DEVICE uint32_t address() const { return uint32_t(__cvta_generic_to_shared(&word)); }
#endif
};

// bulkLoad has the engine read global memory into the block's shared memory, and count the
// bytes at a barrier that expects them. Any thread may call it. (PTX: cp.async.bulk, with
// mbarrier::complete_tx)
MSCCLGO_DEVICE void bulkLoad(void* shared, const void* src, uint32_t bytes, BulkBarrier& barrier) {
#if defined(MSCCLGO_EMU)
  assert((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(src) | bytes) % kBulkUnit == 0);
  memcpy(shared, src, bytes);
  barrier.brought(bytes);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          uint32_t(__cvta_generic_to_shared(shared))),
      "l"(detail::global(src)), "r"(bytes), "r"(barrier.address())
      : "memory");
#endif
}

// bulkStore has the engine write shared memory of the block to global memory, also a mapped peer's.
// Any thread may call it, and waits for it itself: bulkCommit() makes a group of the thread's
// stores since its last call, and waits are for groups. (PTX: cp.async.bulk, with bulk_group)
MSCCLGO_DEVICE void bulkStore(void* dst, const void* shared, uint32_t bytes) {
#if defined(MSCCLGO_EMU)
  assert((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(shared) | bytes) % kBulkUnit == 0);
  memcpy(dst, shared, bytes);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(detail::global(dst)),
               "r"(uint32_t(__cvta_generic_to_shared(shared))), "r"(bytes)
               : "memory");
#endif
}

// bulkCommit makes a group of the thread's bulkStore()s since its last call. (PTX:
// cp.async.bulk.commit_group)
MSCCLGO_DEVICE void bulkCommit() {
#if !defined(MSCCLGO_EMU)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// bulkWait waits until all but the last Pending groups of the thread have ended. Their writes are
// done and visible to the thread. A release by it orders them, or after a barrier one by another
// thread of the block. (PTX: cp.async.bulk.wait_group)
template <uint32_t Pending>
MSCCLGO_DEVICE void bulkWait() {
#if !defined(MSCCLGO_EMU)
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

// bulkWaitRead waits until all but the last Pending groups of the thread have read their shared
// memory, so that it may be overwritten. (PTX: cp.async.bulk.wait_group.read)
template <uint32_t Pending>
MSCCLGO_DEVICE void bulkWaitRead() {
#if !defined(MSCCLGO_EMU)
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
#endif
}

#endif  // MSCCLGO_BULK

// BulkPiece is the source of a bulk copy: an address and a number of bytes, both multiples of
// kBulkUnit. By `where` its user finds the destinations.
struct BulkPiece {
  const void* src;
  uint32_t bytes;
  uint64_t where;
};

// BulkPut writes a piece to a place, by the engine or, where there is none, by the threads of
// the block. BulkRing makes it.
struct BulkPut {
  const void* from;
  uint32_t bytes;

  MSCCLGO_DEVICE void operator()(void* dst) const {
#if defined(MSCCLGO_BULK)
    bulkStore(dst, from, bytes);
#else
    copy(dst, from, bytes, BlockThreads::thread(), BlockThreads::threads());
#endif
  }
};

// BulkRing is a block's ring of Stages stages in shared memory. Pieces go through them: up to half
// of the stages are being written to their destinations, while the others fill.
template <uint32_t Stages>
class BulkRing {
 public:
  static_assert(Stages >= 2 && Stages <= 16, "a ring has 2 to 16 stages");

  // bytes returns the size of the shared memory of a ring with stages of so many bytes.
  MSCCLGO_DEVICE static constexpr uint32_t bytes(uint32_t stage) { return kHead + Stages * stage; }

  // A ring in shared memory, aligned to 16 bytes, which the kernel uses for nothing else, before or
  // after. stage is the bytes of a stage, a multiple of 128, and at least 128. All threads of the
  // block make one.
  MSCCLGO_DEVICE BulkRing(void* memory, uint32_t stage)
      : memory_(static_cast<uint8_t*>(memory)), stage_(stage), slot_(0), parity_(0) {
#if defined(MSCCLGO_BULK)
    if (BlockThreads::thread() != 0) return;
    for (uint32_t s = 0; s < Stages; ++s) slot(s).barrier.init();
#endif
  }

  // stage returns the bytes of a stage: the most of a piece.
  MSCCLGO_DEVICE uint32_t stage() const { return stage_; }

  // move moves n pieces. piece() returns the next one to read, a BulkPiece of at most a stage's
  // bytes, perhaps 0. stores(where, put), with the `where` of that piece, calls put(dst) for each
  // destination, a multiple of kBulkUnit. piece() is called n times in order, and stores() some
  // pieces later, in order, for each piece with bytes. One thread calls them; without an engine all
  // threads do. Their time bounds the block's speed: they should not divide.
  //
  // All threads of the block call move(). Only thread 0 takes time, so that others can do something
  // else meanwhile. It orders the reads after what thread 0 has observed, as by a barrier of the
  // group or from earlier kernels. For the block's own stores see bulkFence(). The writes are under
  // way when it returns; see wait().
  template <class Piece, class Stores>
  MSCCLGO_DEVICE void move(uint64_t n, Piece piece, Stores stores) {
#if defined(MSCCLGO_BULK)
    if (BlockThreads::thread() != 0) return;
    bulkFence();  // also of the barriers, before their first use
    // A piece's stage is read until kWriting groups later: only then may the next piece fill it.
    constexpr uint32_t kWriting = Stages / 2;
    uint64_t unread = n;
    uint32_t next = slot_;  // of the next piece to read
    auto fill = [&] {
      BulkPiece p = piece();
      Slot& to = slot(next);
      to.barrier.expect(p.bytes);
      if (p.bytes > 0) bulkLoad(data(next), p.src, p.bytes, to.barrier);
      to.where = p.where, to.bytes = p.bytes;
      next = after(next), --unread;
    };
    for (uint32_t s = 0; s < Stages - kWriting && unread > 0; ++s) fill();
    for (; n > 0; --n) {
      const Slot& from = slot(slot_);
      uint64_t where = from.where;
      uint32_t bytes = from.bytes;
      from.barrier.wait(parity_);
      if (bytes > 0) stores(where, BulkPut{data(slot_), bytes});
      bulkCommit();
      slot_ = after(slot_);
      if (slot_ == 0) parity_ ^= 1;
      if (unread > 0) {
        bulkWaitRead<kWriting>();
        fill();
      }
    }
    bulkWaitRead<0>();  // the next call fills stages at once
#else
    for (; n > 0; --n) {
      BulkPiece p = piece();
      if (p.bytes > 0) stores(p.where, BulkPut{p.src, p.bytes});
    }
#endif
  }

  // wait waits until the writes of move() are done. All threads of the block call it. After a
  // barrier of the block, a release by any of them orders the writes. (PTX:
  // cp.async.bulk.wait_group makes them visible to the thread that waits, and the block's barrier
  // passes that on: causality order)
  //
  // No deadline bounds it: it waits for writes to memory of this GPU and of mapped peers, as a
  // fence waits for ordinary stores.
  MSCCLGO_DEVICE void wait() const {
#if defined(MSCCLGO_BULK)
    if (BlockThreads::thread() == 0) bulkWait<0>();
#endif
  }

 private:
#if defined(MSCCLGO_BULK)
  // Slot is thread 0's record of the piece in a stage.
  struct Slot {
    BulkBarrier barrier;
    uint64_t where;
    uint32_t bytes;
  };
  static_assert(sizeof(Slot) == 24, "see kHead");
#endif

  static constexpr uint32_t kHead = (Stages * 24 + 127) / 128 * 128;  // the slots; stages start at lines

  MSCCLGO_DEVICE static uint32_t after(uint32_t slot) { return slot + 1 < Stages ? slot + 1 : 0; }
  MSCCLGO_DEVICE uint8_t* data(uint32_t slot) const { return memory_ + kHead + slot * stage_; }
#if defined(MSCCLGO_BULK)
  MSCCLGO_DEVICE Slot& slot(uint32_t number) const { return reinterpret_cast<Slot*>(memory_)[number]; }
#endif

  uint8_t* memory_;
  uint32_t stage_;
  uint32_t slot_, parity_;  // of the next piece to write
};

// BulkSpan divides a copy of n bytes, of any alignment and size, into pieces for the engine and
// edges for threads. All pieces but the last end at lines of the destination, as links carry whole
// lines best.
struct BulkSpan {
  uint8_t* dst;
  const uint8_t* src;
  uint64_t head;  // bytes before the pieces, at most 15
  uint64_t body;  // bytes of the pieces
  uint64_t tail;  // bytes after them, at most 15
  uint32_t skew;  // bytes from a line to where the pieces start
  uint32_t most;  // bytes of a piece, a multiple of a line

  // A copy whose pieces have at most `most` bytes, a multiple of 128. If dst and src are not alike,
  // it has no pieces, and all of it is its head.
  MSCCLGO_DEVICE BulkSpan(void* to, const void* from, uint64_t n, uint32_t most)
      : dst(static_cast<uint8_t*>(to)),
        src(static_cast<const uint8_t*>(from)),
        head((0 - reinterpret_cast<uintptr_t>(to)) % kBulkUnit),
        most(most) {
    if (head > n || !alike(to, from)) head = n;
    body = (n - head) / kBulkUnit * kBulkUnit;
    tail = n - head - body;
    skew = uint32_t((reinterpret_cast<uintptr_t>(to) + head) % kLineOfBulk);
  }

  // alike reports whether the engine can copy between two addresses: both are as many bytes
  // from a multiple of kBulkUnit.
  MSCCLGO_DEVICE static bool alike(const void* a, const void* b) {
    return (reinterpret_cast<uintptr_t>(a) ^ reinterpret_cast<uintptr_t>(b)) % kBulkUnit == 0;
  }

  // pieces returns the number of pieces of a copy of n bytes, at most: some may have 0 bytes.
  MSCCLGO_DEVICE static uint64_t pieces(uint64_t n, uint32_t most) {
    return (n + kLineOfBulk + most - 1) / most;
  }

  // start returns where a piece starts, and bytes its size.
  MSCCLGO_DEVICE uint64_t start(uint64_t i) const { return head + at(i); }
  MSCCLGO_DEVICE uint32_t bytes(uint64_t i) const { return uint32_t(at(i + 1) - at(i)); }

  // edges copies the bytes before and after the pieces to a place, which may differ from dst.
  // `threads` threads call it, and the caller is number `thread` of them.
  MSCCLGO_DEVICE void edges(void* to, uint32_t thread, uint32_t threads) const {
    uint8_t* place = static_cast<uint8_t*>(to);
    copy(place, src, head, thread, threads);
    copy(place + head + body, src + head + body, tail, thread, threads);
  }

 private:
  static constexpr uint32_t kLineOfBulk = 128;

  MSCCLGO_DEVICE uint64_t at(uint64_t i) const {
    uint64_t end = i * most;
    end = end > skew ? end - skew : 0;
    return end < body ? end : body;
  }
};

// bulkPieceBytes returns the size of pieces for `blocks` blocks with rings of Stages stages: a
// stage, or less, so that each block has a few pieces.
template <uint32_t Stages>
MSCCLGO_DEVICE uint32_t bulkPieceBytes(uint64_t n, uint32_t stage, uint32_t blocks) {
  constexpr uint64_t kLeast = 2 << 10, kLine = 128;
  uint64_t each = n / (uint64_t(blocks) * Stages) / kLine * kLine + kLine;
  if (each < kLeast) each = kLeast;
  return each < stage ? uint32_t(each) : stage;
}

// bulkCopy copies n bytes between ranges that do not overlap, of any alignment and size. `blocks`
// blocks call it, with all threads, and the caller's is number `block` of them. Where dst and src
// lie alike in words of 16 bytes the engine moves all but the edges. Its reads are ordered, and its
// writes are under way when it returns, as with move() of BulkRing.
template <uint32_t Stages>
MSCCLGO_DEVICE void bulkCopy(BulkRing<Stages>& ring, void* dst, const void* src, uint64_t n, uint32_t block,
                             uint32_t blocks) {
  uint32_t most = bulkPieceBytes<Stages>(n, ring.stage(), blocks);
  BulkSpan span(dst, src, n, most);
  span.edges(dst, block * BlockThreads::threads() + BlockThreads::thread(), blocks * BlockThreads::threads());
  uint64_t pieces = BulkSpan::pieces(n, most);
  if (span.body == 0 || block >= pieces) return;
  uint64_t i = block;
  ring.move((pieces - block - 1) / blocks + 1,
            [&] {
              uint64_t at = span.start(i);
              BulkPiece piece{span.src + at, span.bytes(i), at};
              i += blocks;
              return piece;
            },
            [&](uint64_t at, BulkPut put) { put(span.dst + at); });
}

}  // namespace mscclgo
