// The pushed all-reduce: threads write into the peers' memory and read only their
// own, since links carry writes faster than reads, for which requests go the other
// way. For large sizes.
//
// ELEMENT and OPERATION are set when this is compiled.
#include <mscclgo/collective.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;

// Pushed is one rank's view of a call, for a pair of blocks. Rank r reduces shard r.
// The pushing block of a pair writes its pieces of all shards into their owners'
// inboxes, one step after the other, and tells the owners' reducing blocks of the
// same pair. These reduce a piece as soon as all ranks' are there, and write the
// result into all outputs. So pieces and results are on the links at the same time,
// and pairs of different numbers never wait for each other.
//
// An inbox has a slot for each rank, of `chunk` bytes at most. A shard that is longer
// goes in several chunks; a chunk is pushed when the one before has been reduced.
struct Pushed {
  const GroupHandle& group;
  const PeerMemory& in;
  const PeerMemory& out;
  const PeerMemory& inbox;
  uint64_t bytes, chunk, piece;  // chunk and piece are multiples of 16
  uint32_t pair, pairs;

  MSCCLGO_DEVICE uint64_t start(uint32_t r) const {
    return shardStart(in.ranks[0], bytes, sizeof(T), r, group.size);
  }
  // The first shard is the longest.
  MSCCLGO_DEVICE uint32_t chunks() const { return uint32_t(divideUp(start(1), chunk)); }
  MSCCLGO_DEVICE uint32_t steps() const {
    return uint32_t(divideUp(start(1) < chunk ? start(1) : chunk, pairs * piece));
  }
  // pieceStart gives where this pair's piece of a step of a chunk starts in shard r's
  // data. The piece ends where the next pair's starts.
  MSCCLGO_DEVICE uint64_t pieceStart(uint32_t r, uint32_t c, uint32_t step, uint32_t of) const {
    uint64_t inChunk = (uint64_t(step) * pairs + of) * piece;
    uint64_t at = start(r) + c * chunk + (inChunk < chunk ? inChunk : chunk), end = start(r + 1);
    return at < end ? at : end;
  }
  // slot gives where rank `of` has what rank `from` pushes, as if all the shard's
  // owner ever got lay there: aligned as its data are, byte `at` of them at slot + at.
  MSCCLGO_DEVICE uint8_t* slot(uint32_t of, uint32_t from, uint32_t c) const {
    uint64_t first = start(of);
    uint64_t lead = (reinterpret_cast<uintptr_t>(in.ranks[of]) + first) % sizeof(uint4);
    return inbox.of<uint8_t>(of) + from * slotBytes() + lead - first - c * chunk;
  }
  MSCCLGO_DEVICE uint64_t slotBytes() const { return chunk + sizeof(uint4); }

  MSCCLGO_DEVICE void push(uint32_t c, uint32_t step) const {
    const uint8_t* mine = in.of<const uint8_t>(group.rank);
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t to = peer(group, k);
      uint64_t from = pieceStart(to, c, step, pair), end = pieceStart(to, c, step, pair + 1);
      copy(slot(to, group.rank, c) + from, mine + from, end - from, threadIdx.x, blockDim.x);
    }
  }

  MSCCLGO_DEVICE void reduce(uint32_t c, uint32_t step) const {
    uint32_t rank = group.rank;
    const uint8_t* mine = in.of<const uint8_t>(rank);
    const uint8_t* theirs = slot(rank, 0, c);
    auto inputs = [&](uint32_t r) { return r == rank ? mine : theirs + r * slotBytes(); };
    uint64_t skew = skewOf(out, group.size, mine);  // all inputs are aligned alike
    reduceRange<T, Op>(inputs, group.size, pieceStart(rank, c, step, pair),
                       pieceStart(rank, c, step, pair + 1), skew, threadIdx.x, blockDim.x, ToAll{group, out});
  }
};

}  // namespace

// pushed: inbox holds each rank's, of a slot of chunk + 16 bytes for each rank. The
// grid has an even number of blocks: even ones push, odd ones reduce.
//
// No barrier is needed at the start: a rank writes into an output when it has heard
// of all ranks, and it ended the call before when all had reduced what was in their
// inboxes. In place is safe: a piece is overwritten with its result when its owner
// has it.
extern "C" __global__ void pushed(__grid_constant__ const GroupHandle group,
                                  __grid_constant__ const PeerMemory in,
                                  __grid_constant__ const PeerMemory out,
                                  __grid_constant__ const PeerMemory inbox, uint64_t bytes, uint64_t chunk,
                                  uint64_t piece) {
  awaitPrevious();
  Pushed call{group, in, out, inbox, bytes, chunk, piece, blockIdx.x / 2, gridDim.x / 2};
  uint32_t steps = call.steps(), chunks = call.chunks();
  Rounds pushes(group, call.pair * 2), results(group, call.pair * 2 + 1);  // a step, a chunk
  if (blockIdx.x % 2 == 0) {
    for (uint32_t c = 0; c < chunks; ++c) {
      if (!results.wait(c)) return;
      for (uint32_t step = 0; step < steps; ++step) {
        call.push(c, step);
        pushes.signal();
      }
    }
    return;
  }
  for (uint32_t c = 0; c < chunks; ++c) {
    for (uint32_t step = 0; step < steps; ++step) {
      if (!pushes.wait(c * steps + step + 1)) return;
      call.reduce(c, step);
    }
    results.signal();
  }
  if (!results.wait(chunks)) return;  // all outputs are there
  pushes.end(chunks * steps);
  results.end(chunks);
}
