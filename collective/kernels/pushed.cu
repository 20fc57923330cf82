// Pushed reductions: threads write into the peers' memory and read only their own. Links carry
// writes faster than reads, whose requests go the other way. For large sizes.
//
// The compilation sets ELEMENT and OPERATION.
#include <mscclgo/collective.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;

// Parts are the data of each rank, `bytes` of them. They have the methods of Shards.
struct Parts {
  uint64_t bytes;

  MSCCLGO_DEVICE uint64_t start(uint32_t r) const { return r * bytes; }
  MSCCLGO_DEVICE uint64_t longest() const { return bytes; }
};

// Pushed is one rank's view of a call, for a pair of blocks. Rank r reduces the bytes from
// ranges.start(r) to ranges.start(r + 1), its range. The pushing block of a pair writes its pieces
// of all ranges into their owners' inboxes, one step after the other, and signals the owners'
// reducing blocks of the same pair. These reduce a piece as soon as all ranks' pieces are there. So
// pieces and results are on the links at the same time, and pairs of different numbers never wait
// for each other.
//
// An inbox has a slot for each rank, of `chunk` bytes at most. A range that is longer goes in
// several chunks; a chunk is pushed when the one before has been reduced. In a slot data lie in
// lines of 128 bytes as if a rank's data began `lead` bytes into a line. Usually they do: a warp's
// stores then go over the link in whole lines.
template <class Ranges>
struct Pushed {
  const GroupHandle& group;
  const uint8_t* in;  // this rank's
  const PeerMemory& inbox;
  Ranges ranges;
  uint64_t chunk, piece, lead;  // chunk and piece are multiples of kLine
  uint32_t pair, pairs;

  // begun reports whether the longest range has a chunk c, and stepsIn whether a chunk of
  // it has a step in which pair 0's piece starts at byte `at`.
  MSCCLGO_DEVICE bool begun(uint32_t c) const { return c * chunk < ranges.longest(); }
  MSCCLGO_DEVICE bool stepsIn(uint64_t at) const { return at < chunk && at < ranges.longest(); }
  MSCCLGO_DEVICE uint64_t stepBytes() const { return pairs * piece; }

  // pieceStart returns where the piece of pair `of` starts in the data of rank r's range,
  // in that step of chunk c. It ends where the next pair's starts.
  MSCCLGO_DEVICE uint64_t pieceStart(uint32_t r, uint32_t c, uint64_t step, uint32_t of) const {
    uint64_t inChunk = step + of * piece;
    uint64_t at = ranges.start(r) + c * chunk + (inChunk < chunk ? inChunk : chunk),
             end = ranges.start(r + 1);
    return at < end ? at : end;
  }
  // slot returns where rank `of` has the data that rank `from` pushes: byte `at` of the data is at
  // slot + at.
  MSCCLGO_DEVICE uint8_t* slot(uint32_t of, uint32_t from, uint32_t c) const {
    uint64_t first = ranges.start(of);
    return inbox.of<uint8_t>(of) + from * slotBytes() + (lead + first) % kLine - first - c * chunk;
  }
  MSCCLGO_DEVICE uint64_t slotBytes() const { return chunk + kLine; }

  MSCCLGO_DEVICE void push(uint32_t c, uint64_t step) const {
    for (uint32_t k = 1; k < group.size; ++k) pushTo(peer(group, k), c, step);
  }
  MSCCLGO_DEVICE void pushTo(uint32_t to, uint32_t c, uint64_t step) const {
    uint64_t from = pieceStart(to, c, step, pair), end = pieceStart(to, c, step, pair + 1);
    copy(slot(to, group.rank, c) + from, in + from, end - from, threadIdx.x, blockDim.x);
  }

  // leads reports whether this rank's data are aligned like the slots.
  MSCCLGO_DEVICE bool leads() const { return reinterpret_cast<uintptr_t>(in) % kLine == lead; }

  // reduce reduces the pair's piece of this rank's range, for the Store of reduceRange. If this
  // rank's data are aligned differently, it takes them from its own slot.
  template <class Store>
  MSCCLGO_DEVICE void reduce(uint32_t c, uint64_t step, uint64_t outputs, uint64_t out, Store store) const {
    uint32_t rank = group.rank;
    const uint8_t* slots = slot(rank, 0, c);
    const uint8_t* mine = leads() ? in : slots + rank * slotBytes();
    auto inputs = [&](uint32_t r) { return r == rank ? mine : slots + r * slotBytes(); };
    reduceRange<T, Op, kLoadsOfOwn>(inputs, group.size, pieceStart(rank, c, step, pair),
                                    pieceStart(rank, c, step, pair + 1), Alignment{0, outputs, out - lead},
                                    threadIdx.x, blockDim.x, store);
  }

  // run does the call. The address of byte 0 of the output is `out`; the other outputs' addresses
  // differ from it in the bits of `outputs`.
  //
  // No barrier is needed at the start. A rank writes into an output only after a signal from all
  // ranks, and it ended the call before only after all had reduced their inboxes' data. In place is
  // safe: a piece is overwritten with its result when its owner has it.
  template <class Store>
  MSCCLGO_DEVICE void run(uint64_t outputs, uint64_t out, Store store) const {
    Rounds pushes(group, pair * 2), results(group, pair * 2 + 1);  // a step, a chunk
    uint32_t chunks = 0, steps = 0;
    if (blockIdx.x % 2 == 0) {
      for (; begun(chunks); ++chunks) {
        if (chunks > 0 && !results.wait(chunks)) return;
        for (uint64_t step = 0; stepsIn(step); step += stepBytes()) {
          push(chunks, step);
          pushes.signal();
        }
      }
      return;
    }
    for (; begun(chunks); ++chunks) {
      for (uint64_t step = 0; stepsIn(step); step += stepBytes()) {
        if (!leads()) pushTo(group.rank, chunks, step);  // for the block itself, which waits next
        if (!pushes.wait(++steps)) return;
        reduce(chunks, step, outputs, out, store);
      }
      results.signal();
    }
    if (!results.wait(chunks)) return;  // all results are there, and all inboxes free
    pushes.end(steps);
    results.end(chunks);
  }
};

// shardsOf returns the shards of data that begin `lead` bytes into a line.
MSCCLGO_DEVICE Shards shardsOf(const GroupHandle& group, uint64_t bytes, uint64_t lead) {
  return Shards(reinterpret_cast<const void*>(lead), bytes, sizeof(T), group.size);
}

template <class Ranges>
MSCCLGO_DEVICE Pushed<Ranges> pushedOf(const GroupHandle& group, const PeerMemory& in,
                                       const PeerMemory& inbox, const Ranges& ranges, uint64_t chunk,
                                       uint64_t piece, uint64_t lead) {
  return {group,        in.of<const uint8_t>(group.rank), inbox, ranges, chunk, piece, lead, blockIdx.x / 2,
          gridDim.x / 2};
}

}  // namespace

// in and out hold each rank's buffers; no peer's input is read. A part, or the data that ranks
// share, has `bytes` bytes. inbox holds each rank's, of a slot of chunk + 128 bytes for each rank.
// The grid has an even number of blocks: even ones push, odd ones reduce. Two blocks fit on a
// multiprocessor, so that a call begins while the one before ends.
#define PARAMETERS                                                                                      \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in,                     \
      __grid_constant__ const PeerMemory out, __grid_constant__ const PeerMemory inbox, uint64_t bytes, \
      uint64_t chunk, uint64_t piece, uint64_t lead

// pushed is an all-reduce: rank r reduces shard r, and writes the result into all outputs.
extern "C" __global__ void __launch_bounds__(512, 2) pushed(PARAMETERS) {
  awaitPrevious();
  pushedOf(group, in, inbox, shardsOf(group, bytes, lead), chunk, piece, lead)
      .run(skewOf(out, group.size, out.ranks[0]), reinterpret_cast<uintptr_t>(out.ranks[0]),
           ToAll{group, out});
}

// pushedScatter is a reduce-scatter: rank r reduces part r into its own output. Peers reach
// neither inputs nor outputs.
extern "C" __global__ void __launch_bounds__(512, 2) pushedScatter(PARAMETERS) {
  awaitPrevious();
  uint8_t* first = out.of<uint8_t>(group.rank) - group.rank * bytes;  // where part 0 would be
  pushedOf(group, in, inbox, Parts{bytes}, chunk, piece, lead)
      .run(0, reinterpret_cast<uintptr_t>(first), ToOne{first});
}

// pushedReduce is a reduction to the root: rank r reduces shard r, and writes the result into
// the root's output.
extern "C" __global__ void __launch_bounds__(512, 2) pushedReduce(PARAMETERS, uint32_t root) {
  awaitPrevious();
  uint8_t* roots = out.of<uint8_t>(root);
  pushedOf(group, in, inbox, shardsOf(group, bytes, lead), chunk, piece, lead)
      .run(0, reinterpret_cast<uintptr_t>(roots), ToOne{roots});
}
