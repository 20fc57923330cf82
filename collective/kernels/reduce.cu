// Rooted reductions: the root gets the reduction of all ranks' data, made in the
// order of the ranks. Any element count and alignment, in place at the root or not.
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

// Packets: the others send all their data to the root, which reduces them. One trip.
// An inbox must hold the data. The barrier costs no trip more, since its flags travel
// beside the first packets; it makes every rank hear of every other before it ends,
// which inboxes need that take turns.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root) {
  Inboxes<Packet> inboxes(group);
  uint32_t lane = inboxes.lane();
  bool receiver = group.rank == root;
  auto send = [&](uint64_t i) {
    if (receiver) return;
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(in + at, bytes - at, lane);
    inboxes.send(root, i, piece);
  };
  auto reduce = [&](uint64_t i) {
    if (!receiver) return true;
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(in + at, bytes - at, lane);
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    piece.store(out + at, bytes - at, lane);
    return true;
  };
  inboxes.sendFirst(inboxes.packets(bytes), send);
  if (group.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(inboxes.packets(bytes), send, reduce)) inboxes.end();
}

// ToRoot stores a word into the root's output.
struct ToRoot {
  uint8_t* out;

  template <class Word>
  MSCCLGO_DEVICE void operator()(uint64_t at, Word word) const {
    storeReduced(out + at, word);
  }
};

// Direct: rank r reads shard r of all inputs and writes the result into the root's
// output, between two barriers. In place is safe: only rank r reads shard r of any
// input, each word before it writes that word.
MSCCLGO_DEVICE void reduceDirectly(const GroupHandle& group, const PeerMemory& in, uint8_t* out,
                                   uint64_t bytes) {
  const uint8_t* input = in.ranks[0];
  Alignment alignment{skewOf(in, group.size, input), 0, uint64_t(out - input)};
  Shards shards(input, bytes, sizeof(T), group.size);
  uint64_t from = shards.start(group.rank), to = shards.start(group.rank + 1);
  auto inputs = [&](uint32_t rank) { return in.of<const uint8_t>(rank); };
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there, and the output may be written
  reduceRange<T, Op, kLoadsOfPeers>(inputs, group.size, from, to, alignment, firstThread(), allThreads(),
                                    ToRoot{out});
  group.barrier();  // the output is there, and all inputs have been read
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes; only the root's out is
// written.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root

#define PACKET_KERNEL(name, Packet)                                                                    \
  extern "C" __global__ void __launch_bounds__(1024) name(PARAMETERS) {                                \
    awaitPrevious();                                                                                   \
    packets<PacketOf<T, Packet>>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), \
                                 bytes, root);                                                         \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)

extern "C" __global__ void __launch_bounds__(1024, 1) direct(PARAMETERS) {
  awaitPrevious();
  reduceDirectly(group, in, out.of<uint8_t>(root), bytes);
}
