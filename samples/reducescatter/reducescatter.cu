// Reduce-scatters: rank r gets the reduction of part r of all ranks' inputs. All
// reduce in the order of the ranks. Any element count and alignment; a rank's
// output may be its part of the input.
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

// Packets: each rank sends part p to rank p. One trip, no barrier. An inbox must
// hold a part. Inboxes may take turns, since a result needs packets of all ranks.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  uint32_t lane = inboxes.lane();
  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t to = peer(group, k);
    for (uint64_t i = inboxes.first(); i < inboxes.packets(bytes); i += inboxes.stride()) {
      uint64_t at = i * Piece<Packet>::kPayload;
      Piece<Packet> piece;
      piece.load(in + to * bytes + at, bytes - at, lane);
      inboxes.send(to, i, piece);
    }
  }
  const uint8_t* mine = in + group.rank * bytes;
  for (uint64_t i = inboxes.first(); i < inboxes.packets(bytes); i += inboxes.stride()) {
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(mine + at, bytes - at, lane);
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return;
    piece.store(out + at, bytes - at, lane);
  }
  inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers; a part has `bytes` bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

extern "C" __global__ void LL8(PARAMETERS) {
  packets<LL8Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}
extern "C" __global__ void LL16(PARAMETERS) {
  packets<LL16Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}
extern "C" __global__ void LL128(PARAMETERS) {
  packets<LL128Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}

// direct reads this rank's part of all inputs, between two barriers. In place is
// safe: only rank r reads part r of any input, each word before it writes that
// word.
extern "C" __global__ void direct(PARAMETERS) {
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there
  uint64_t part = group.rank * bytes;
  uint8_t* mine = out.of<uint8_t>(group.rank);
  // What reduceRange calls byte `part` of the output is its start.
  uint64_t skew = skewOf(in, group.size, in.ranks[0]) |
                  (reinterpret_cast<uintptr_t>(mine) - part ^ reinterpret_cast<uintptr_t>(in.ranks[0]));
  reduceRange<T, Op>(in, group.size, part, part + bytes, skew,
                     [&](uint64_t at, auto word) { storePartial(mine + (at - part), word, sizeof(word)); });
  group.barrier();  // all inputs have been read
}
