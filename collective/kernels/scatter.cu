// Scatters by packets: part r of the root's data goes to rank r. Any size and alignment; not in
// place, but the root's own part may lie at its place.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip, and a barrier beside it; see gather.cu. The parts of the input lie `stride`
// bytes apart, so that they can be moved in pieces of `bytes`.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root, uint64_t stride) {
  using Pieces = typename Inboxes<Packet>::Pieces;
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes, stride);
  bool sender = group.rank == root;
  const uint8_t* own = in + root * stride;
  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t to) { return Place<const uint8_t>{in + to * stride, i}; };
  };
  auto load = [&](uint32_t i) { return sender ? inboxes.loadEach(packing, partsOf(i)) : Pieces{}; };
  auto send = [&](uint32_t i, const Pieces& pieces) {
    if (!sender) return;
    inboxes.sendEach(i, packing, partsOf(i), pieces);
    if (out != own) packing.store({out, i}, packing.load({own, i}));
  };
  auto receive = [&](uint32_t i) {
    if (sender) return true;
    Piece<Packet> piece;
    if (!inboxes.receive(root, i, piece)) return false;
    packing.store({out, i}, piece);
    return true;
  };
  inboxes.sendFirst(packing.packets(), load, send);
  if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in holds the root's buffer, and out each rank's, of `bytes` bytes; no other rank's in is read.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root, uint64_t stride

#define PACKET_KERNEL(name, Packet)                                                                    \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                             \
    packets<Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, root, \
                    stride);                                                                           \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)
