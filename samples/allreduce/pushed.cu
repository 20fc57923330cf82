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

// Pushed is one rank's view of a call. Rank r reduces shard r. A shard is cut into
// steps, and a step into a piece for each block, which the blocks of one number on
// all ranks work on together and with no others. A block pushes its piece of a step
// to the shards' owners, tells them, and meanwhile reduces the piece of the step
// before, which the others pushed here, and writes the result into all outputs.
//
// An inbox has kSlots pieces for each block and rank, which steps take in turn. A
// rank pushes step s when it has waited for step s - 2 of its peers, who signalled
// that when they had reduced step s - 4: four slots are enough.
struct Pushed {
  static constexpr uint32_t kSlots = 4;

  const GroupHandle& group;
  const PeerMemory& in;
  const PeerMemory& out;
  const PeerMemory& inbox;
  uint64_t bytes;
  uint64_t piece;  // bytes of a piece, a multiple of 16; a slot has 16 more

  MSCCLGO_DEVICE uint64_t start(uint32_t r) const {
    return shardStart(in.ranks[0], bytes, sizeof(T), r, group.size);
  }
  MSCCLGO_DEVICE uint32_t steps() const {
    return uint32_t(divideUp(start(1), piece * gridDim.x));  // the first shard is the longest
  }
  // pieceStart gives where this block's piece of a step starts in shard r's data;
  // pieceEnd, where it ends.
  MSCCLGO_DEVICE uint64_t pieceStart(uint32_t r, uint32_t step) const {
    return clamp(r, start(r) + (uint64_t(step) * gridDim.x + blockIdx.x) * piece);
  }
  MSCCLGO_DEVICE uint64_t pieceEnd(uint32_t r, uint32_t step) const {
    return clamp(r, start(r) + (uint64_t(step) * gridDim.x + blockIdx.x + 1) * piece);
  }
  MSCCLGO_DEVICE uint64_t clamp(uint32_t r, uint64_t at) const {
    uint64_t end = start(r + 1);
    return at < end ? at : end;
  }
  // slot gives where rank `of` has this block's piece of a step from rank `from`,
  // aligned as the rank's data are.
  MSCCLGO_DEVICE uint8_t* slot(uint32_t of, uint32_t from, uint32_t step) const {
    uint64_t number = (uint64_t(blockIdx.x) * kSlots + step % kSlots) * group.size + from;
    return inbox.of<uint8_t>(of) + number * (piece + sizeof(uint4)) +
           (reinterpret_cast<uintptr_t>(in.ranks[of]) + start(of)) % sizeof(uint4);
  }

  MSCCLGO_DEVICE void push(uint32_t step) const {
    const uint8_t* mine = in.of<const uint8_t>(group.rank);
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t to = peer(group, k);
      uint64_t from = pieceStart(to, step), end = pieceEnd(to, step);
      copy(slot(to, group.rank, step), mine + from, end - from, threadIdx.x, blockDim.x);
    }
  }

  // ToAll stores a word into all outputs.
  struct ToAll {
    const GroupHandle& group;
    const PeerMemory& out;

    template <class Word>
    MSCCLGO_DEVICE void operator()(uint64_t at, Word word) const {
      for (uint32_t k = 0; k < group.size; ++k)
        storePartial(out.of<uint8_t>(peer(group, k)) + at, word, sizeof(Word));
    }
  };

  MSCCLGO_DEVICE void reduce(uint32_t step, uint64_t skew) const {
    uint32_t rank = group.rank;
    uint64_t from = pieceStart(rank, step), end = pieceEnd(rank, step);
    const uint8_t* mine = in.of<const uint8_t>(rank);
    const uint8_t* theirs = slot(rank, 0, step) - from;
    uint64_t slotBytes = piece + sizeof(uint4);
    auto inputs = [&](uint32_t r) { return r == rank ? mine : theirs + r * slotBytes; };
    reduceRange<T, Op>(inputs, group.size, from, end, skew, threadIdx.x, blockDim.x, ToAll{group, out});
  }
};

}  // namespace

// pushed: inbox holds each rank's, which has room for the grid's pieces. No barrier
// is needed at the start: a rank writes into an output when it has heard of all
// ranks, and at the end of the call before all had reduced what was in the inboxes.
// In place is safe: a piece is overwritten with its result when its owner has it.
extern "C" __global__ void pushed(__grid_constant__ const GroupHandle group,
                                  __grid_constant__ const PeerMemory in,
                                  __grid_constant__ const PeerMemory out,
                                  __grid_constant__ const PeerMemory inbox, uint64_t bytes, uint64_t piece) {
  awaitPrevious();
  Pushed call{group, in, out, inbox, bytes, piece};
  const void* mine = in.ranks[group.rank];
  uint64_t skew = skewOf(out, group.size, mine);
  Rounds rounds(group);
  uint32_t steps = call.steps();
  for (uint32_t step = 0; step <= steps; ++step) {
    if (step < steps) {
      call.push(step);
      rounds.signal();
    }
    if (step == 0) continue;
    if (!rounds.wait(step < steps ? 1 : 0)) return;
    call.reduce(step - 1, skew);
  }
  rounds.signal();  // all outputs are there
  if (rounds.wait(0)) rounds.end();
}
