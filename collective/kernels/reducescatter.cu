// Reduce-scatters: rank r gets the reduction of part r of all ranks' inputs. All
// reduce in the order of the ranks. Any element count and alignment; a rank's
// output may be its part of the input.
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

// Packets: each rank sends part p to rank p. One trip, no barrier. An inbox must
// hold a part. Inboxes may take turns, since a result needs packets of all ranks.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t to) { return Place<const uint8_t>{in + to * bytes, i}; };
  };
  auto load = [&](uint32_t i) { return inboxes.loadEach(packing, partsOf(i)); };
  auto send = [&](uint32_t i, const typename Inboxes<Packet>::Pieces& pieces) {
    inboxes.sendEach(i, packing, partsOf(i), pieces);
  };
  auto reduce = [&](uint32_t i) {
    Piece<Packet> piece = packing.load({in + group.rank * bytes, i});
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    packing.store({out, i}, piece);
    return true;
  };
  if (inboxes.exchange(packing.packets(), load, send, reduce)) inboxes.end();
}

// Direct: a rank reads its part of all inputs, between two barriers. In place is
// safe: only rank r reads part r of any input, each word before it writes that
// word.
MSCCLGO_DEVICE void reduceDirectly(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                                   uint64_t bytes) {
  uint64_t part = group.rank * bytes;
  uint8_t* mine = out.of<uint8_t>(group.rank);
  // reduceRange's byte `part` of the output is its start.
  Alignment alignment{skewOf(in, group.size, in.ranks[0]), 0, uint64_t(mine - in.ranks[0]) - part};
  auto inputs = [&](uint32_t rank) { return in.of<const uint8_t>(rank); };
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there
  reduceRange<T, Op, kLoadsOfPeers>(inputs, group.size, part, part + bytes, alignment, firstThread(),
                                    allThreads(), ToOne{mine - part});
  group.barrier();  // all inputs have been read
}

}  // namespace

// in and out hold each rank's buffers; a part has `bytes` bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

#define PACKET_KERNEL(name, Packet)                                                                    \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                             \
    packets<PacketOf<T, Packet>>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), \
                                 bytes);                                                               \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)

extern "C" __global__ void __launch_bounds__(1024, 1) direct(PARAMETERS) {
  awaitPrevious();
  reduceDirectly(group, in, out, bytes);
}
