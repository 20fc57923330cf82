// The staged all-reduce: the hosts' copy engines move the data, faster than threads, and threads
// only reduce. For the largest sizes, on one host.
//
// The compilation sets ELEMENT and OPERATION.
#include <mscclgo/collective.cuh>
#include <mscclgo/port_channel.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;

// Progress is how far this rank's kernel is, in device memory. It is zero between
// calls. done counts the blocks that have reduced a chunk.
constexpr uint32_t kMostChunks = 64;

// kStreams is how many channels a rank has to another for either stage. Chunks take
// them in turn: one is copied while the signal after another is stored.
constexpr uint32_t kStreams = 2;

struct Progress {
  uint64_t arrived;  // chunks of which all ranks' data are there
  uint64_t done[kMostChunks];
};

// Staged is one rank's view of a call. All ranks put shard r into the inbox of rank r, which
// reduces it and puts the result into all outputs. Both stages go in chunks: while chunks of the
// first stage are on their way, earlier ones are reduced, and still earlier ones are on their way
// back. The channels keep the chunks in order.
struct Staged {
  const PortChannelHandle* toInbox;   // from the inputs
  const PortChannelHandle* toOutput;  // from the outputs
  const PeerMemory& in;
  const PeerMemory& out;
  uint8_t* inbox;  // a slot for each rank
  uint64_t slotBytes, chunkBytes, bytes;
  uint32_t rank, ranks;
  Progress* progress;
  Watch watch;

  MSCCLGO_DEVICE uint64_t start(uint32_t r) const {
    return Shards(in.ranks[0], bytes, sizeof(T), ranks).start(r);
  }
  // chunkStart returns where chunk c of shard r starts; after the last one, the
  // shard's end.
  MSCCLGO_DEVICE uint64_t chunkStart(uint32_t r, uint32_t c) const {
    uint64_t at = start(r) + c * chunkBytes, end = start(r + 1);
    return at < end ? at : end;
  }
  MSCCLGO_DEVICE uint32_t chunks(uint32_t r) const {
    return uint32_t(divideUp(start(r + 1) - start(r), chunkBytes));
  }
  // slot returns the offset in rank `of`'s inbox of the data from rank `from`: aligned like that
  // rank's data.
  MSCCLGO_DEVICE uint64_t slot(uint32_t of, uint32_t from) const {
    return from * slotBytes + (reinterpret_cast<uintptr_t>(in.of<uint8_t>(of)) + start(of)) % kLine;
  }
  MSCCLGO_DEVICE uint32_t ahead(uint32_t k) const { return (rank + k) % ranks; }
  // channel returns the channel to a peer for chunk c.
  MSCCLGO_DEVICE const PortChannelHandle& channel(const PortChannelHandle* channels, uint32_t peer,
                                                  uint32_t c) const {
    return channels[c % kStreams * ranks + peer];
  }

  // collect puts this rank's data into the inboxes of their shards' owners, and counts the complete
  // chunks of its own shard for the workers. One warp; its lanes divide the peers.
  MSCCLGO_DEVICE void collect(uint32_t lane) const {
    bool ok = true;
    for (uint32_t c = 0; c < kMostChunks; ++c) {
      for (uint32_t k = lane + 1; k < ranks && ok; k += 32) {
        uint32_t p = ahead(k);
        uint64_t from = chunkStart(p, c), n = chunkStart(p, c + 1) - from;
        if (n > 0)
          ok = channel(toInbox, p, c).putWithSignal(slot(p, rank) + from - start(p), from, n) ==
               WaitResult::Done;
      }
    }
    for (uint32_t c = 0; c < chunks(rank); ++c) {
      for (uint32_t k = lane + 1; k < ranks && ok; k += 32)
        ok = channel(toInbox, ahead(k), c).wait() == WaitResult::Done;
      if (!__all_sync(0xffffffffu, ok)) return;
      // Each lane acquired its peers' chunks. A vote orders no memory, __syncwarp does:
      // with it the waits of all lanes precede lane 0's release.
      __syncwarp();
      if (lane == 0) store<Scope::Device, Order::Release>(&progress->arrived, c + 1);
    }
  }

  // spread puts this rank's results into all outputs, each chunk once the workers
  // have done it, and waits for the other ranks' results. One warp.
  MSCCLGO_DEVICE void spread(uint32_t lane, uint32_t workers) const {
    bool ok = true;
    for (uint32_t c = 0; c < chunks(rank); ++c) {
      ok = ok && waitUntil(watch, [&] {
                   return load<Scope::Device, Order::Acquire>(&progress->done[c]) == workers;
                 }) == WaitResult::Done;
      if (!__all_sync(0xffffffffu, ok)) return;
      uint64_t from = chunkStart(rank, c), n = chunkStart(rank, c + 1) - from;
      for (uint32_t k = lane + 1; k < ranks && ok; k += 32)
        ok = channel(toOutput, ahead(k), c).putWithSignal(from, from, n) == WaitResult::Done;
      if (lane == 0) progress->done[c] = 0;
    }
    // All workers have seen the last arrival.
    if (lane == 0) progress->arrived = 0;
    for (uint32_t k = lane + 1; k < ranks; k += 32) {
      for (uint32_t c = 0; c < chunks(ahead(k)) && ok; ++c)
        ok = channel(toOutput, ahead(k), c).wait() == WaitResult::Done;
    }
    // The output may change once the kernel has ended; the input has been read. A lane flushes
    // another lane's puts.
    __syncwarp();
    for (uint32_t i = lane; i < (ranks - 1) * kStreams && ok; i += 32)
      ok = channel(toOutput, ahead(i / kStreams + 1), i).flush() == WaitResult::Done;
  }

  // ToOutput stores a word of this rank's shard.
  struct ToOutput {
    uint8_t* out;

    template <class Word>
    MSCCLGO_DEVICE void operator()(uint64_t at, Word word) const {
      storeReduced(out + at, word);
    }
  };

  // work reduces a worker's part of each chunk.
  MSCCLGO_DEVICE void work(uint32_t worker, uint32_t workers) const {
    // The others' chunks, as if they were whole data.
    const uint8_t* mine = in.of<const uint8_t>(rank);
    const uint8_t* theirs = inbox + slot(rank, 0) - start(rank);
    auto inputs = [&](uint32_t r) { return r == rank ? mine : theirs + r * slotBytes; };
    // All are aligned like this rank's input; only the output may differ.
    Alignment alignment{0, 0, uint64_t(out.of<uint8_t>(rank) - mine)};
    for (uint32_t c = 0; c < chunks(rank); ++c) {
      bool ok = threadIdx.x != 0 || waitUntil(watch, [&] {
                                      return load<Scope::Device, Order::Acquire>(&progress->arrived) > c;
                                    }) == WaitResult::Done;
      if (!blockAll(ok)) return;
      reduceRange<T, Op, kLoadsOfOwn>(inputs, ranks, chunkStart(rank, c), chunkStart(rank, c + 1), alignment,
                                      uint64_t(worker) * blockDim.x + threadIdx.x,
                                      uint64_t(workers) * blockDim.x, ToOutput{out.of<uint8_t>(rank)});
      __syncthreads();
      if (threadIdx.x == 0) fetchAdd<Scope::Device, Order::Release>(&progress->done[c], 1);
    }
  }
};

}  // namespace

// staged: the first two warps of block 0 look after the channels, the other blocks
// are the workers. The grid has at least two blocks, of at least two warps.
//
// In place is safe, and nothing comes too early: before a rank puts its result for a chunk into an
// output, it has that chunk of the output's rank. So that rank has begun the call, and its chunk
// has been copied. A rank ends when it has all ranks' results, so all have read their inboxes then.
extern "C" __global__ void __launch_bounds__(512, 1)
    staged(const PortChannelHandle* toInbox, const PortChannelHandle* toOutput,
           __grid_constant__ const PeerMemory in, __grid_constant__ const PeerMemory out, uint8_t* inbox,
           uint64_t slotBytes, uint64_t chunkBytes, uint64_t bytes, uint32_t rank, uint32_t ranks,
           Progress* progress, Watch watch) {
  Staged call{toInbox, toOutput, in, out, inbox, slotBytes, chunkBytes, bytes, rank, ranks, progress, watch};
  if (blockIdx.x > 0) {
    call.work(blockIdx.x - 1, gridDim.x - 1);
  } else if (threadIdx.x < 32) {
    call.collect(threadIdx.x);
  } else if (threadIdx.x < 64) {
    call.spread(threadIdx.x - 32, gridDim.x - 1);
  }
}
