// Gathers by packets: each rank's data goes to the root, which stores the parts in rank order. Any
// size and alignment; not in place, but the root's own part may lie at its place.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip. An inbox must hold a piece. The barrier costs no extra trip, since its flags
// travel beside the first packets. After it all ranks have begun the call, as inboxes in turns
// need: a rank that sends in the next call but one has ended the next call. The root had begun that
// one, and so had read this call's packets, which have the same place. The parts of the output lie
// `stride` bytes apart, so that they can be moved in pieces of `bytes`.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root, uint64_t stride) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes, stride);
  bool receiver = group.rank == root;
  uint8_t* place = out + root * stride;
  auto load = [&](uint32_t i) { return packing.load({in, i}); };
  auto send = [&](uint32_t i, const Piece<Packet>& piece) {
    if (!receiver) {
      inboxes.send(root, i, piece);
    } else if (place != in) {
      packing.store({place, i}, piece);
    }
  };
  auto receive = [&](uint32_t i) {
    return !receiver || inboxes.receiveEach(i, packing, [&](uint32_t from) {
      return Place<uint8_t>{out + from * stride, i};
    });
  };
  inboxes.sendFirst(packing.packets(), load, send);
  if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in holds each rank's buffer, of `bytes` bytes, and out the root's; no other rank's is read.
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
