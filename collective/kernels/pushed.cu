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
// goes in several chunks; a chunk is pushed when the one before has been reduced. In
// a slot data lie in lines of 128 bytes as they do in the sender's memory: what a
// warp stores goes over the link in whole lines then.
struct Pushed {
  const GroupHandle& group;
  const PeerMemory& in;
  const PeerMemory& out;
  const PeerMemory& inbox;
  Shards shards;
  uint64_t chunk, piece;  // multiples of kLine
  uint32_t pair, pairs;

  // begun reports whether the longest shard has a chunk c, and stepsIn whether a chunk of
  // it has a step in which pair 0's piece starts at byte `at`.
  MSCCLGO_DEVICE bool begun(uint32_t c) const { return c * chunk < shards.longest(); }
  MSCCLGO_DEVICE bool stepsIn(uint64_t at) const { return at < chunk && at < shards.longest(); }
  MSCCLGO_DEVICE uint64_t stepBytes() const { return pairs * piece; }

  // pieceStart returns where the piece of pair `of` starts in shard r's data, in that
  // step of chunk c. It ends where the next pair's starts.
  MSCCLGO_DEVICE uint64_t pieceStart(uint32_t r, uint32_t c, uint64_t step, uint32_t of) const {
    uint64_t inChunk = step + of * piece;
    uint64_t at = shards.start(r) + c * chunk + (inChunk < chunk ? inChunk : chunk),
             end = shards.start(r + 1);
    return at < end ? at : end;
  }
  // slot returns where rank `of` has what rank `from` pushes, as if all the shard's
  // owner ever got lay there: aligned as its data are, byte `at` of them at slot + at.
  MSCCLGO_DEVICE uint8_t* slot(uint32_t of, uint32_t from, uint32_t c) const {
    uint64_t first = shards.start(of);
    uint64_t lead = (reinterpret_cast<uintptr_t>(in.of<uint8_t>(of)) + first) % kLine;
    return inbox.of<uint8_t>(of) + from * slotBytes() + lead - first - c * chunk;
  }
  MSCCLGO_DEVICE uint64_t slotBytes() const { return chunk + kLine; }

  MSCCLGO_DEVICE void push(uint32_t c, uint64_t step) const {
    const uint8_t* mine = in.of<const uint8_t>(group.rank);
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t to = peer(group, k);
      uint64_t from = pieceStart(to, c, step, pair), end = pieceStart(to, c, step, pair + 1);
      copy(slot(to, group.rank, c) + from, mine + from, end - from, threadIdx.x, blockDim.x);
    }
  }

  MSCCLGO_DEVICE void reduce(uint32_t c, uint64_t step) const {
    uint32_t rank = group.rank;
    const uint8_t* mine = in.of<const uint8_t>(rank);
    const uint8_t* theirs = slot(rank, 0, c);
    auto inputs = [&](uint32_t r) { return r == rank ? mine : theirs + r * slotBytes(); };
    // All inputs are aligned alike.
    Alignment alignment{0, skewOf(out, group.size, out.ranks[0]), uint64_t(out.ranks[0] - mine)};
    reduceRange<T, Op, kLoadsOfOwn>(inputs, group.size, pieceStart(rank, c, step, pair),
                                    pieceStart(rank, c, step, pair + 1), alignment, threadIdx.x, blockDim.x,
                                    ToAll{group, out});
  }
};

}  // namespace

// pushed: inbox holds each rank's, of a slot of chunk + 128 bytes for each rank. The
// grid has an even number of blocks: even ones push, odd ones reduce.
//
// No barrier is needed at the start: a rank writes into an output when it has heard
// of all ranks, and it ended the call before when all had reduced what was in their
// inboxes. In place is safe: a piece is overwritten with its result when its owner
// has it.
extern "C" __global__ void __launch_bounds__(1024, 1)
    pushed(__grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in,
           __grid_constant__ const PeerMemory out, __grid_constant__ const PeerMemory inbox, uint64_t bytes,
           uint64_t chunk, uint64_t piece) {
  awaitPrevious();
  Shards shards(in.ranks[0], bytes, sizeof(T), group.size);
  Pushed call{group, in, out, inbox, shards, chunk, piece, blockIdx.x / 2, gridDim.x / 2};
  Rounds pushes(group, call.pair * 2), results(group, call.pair * 2 + 1);  // a step, a chunk
  uint32_t chunks = 0, steps = 0;
  if (blockIdx.x % 2 == 0) {
    for (; call.begun(chunks); ++chunks) {
      if (chunks > 0 && !results.wait(chunks)) return;
      for (uint64_t step = 0; call.stepsIn(step); step += call.stepBytes()) {
        call.push(chunks, step);
        pushes.signal();
      }
    }
    return;
  }
  for (; call.begun(chunks); ++chunks) {
    for (uint64_t step = 0; call.stepsIn(step); step += call.stepBytes()) {
      if (!pushes.wait(++steps)) return;
      call.reduce(chunks, step);
    }
    results.signal();
  }
  if (!results.wait(chunks)) return;  // all outputs are there
  pushes.end(steps);
  results.end(chunks);
}
