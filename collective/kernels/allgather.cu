// All-gathers: each rank's data goes to all ranks, which store the parts in rank
// order. Any size and alignment; a rank's input may be its place in the output.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip, no barrier. An inbox must hold a piece. Inboxes may take
// turns, since every rank waits for all others' packets. The parts of an output lie `stride`
// bytes apart, so that they can be moved in pieces of `bytes`.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint64_t stride) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes, stride);
  uint8_t* place = out + group.rank * stride;
  auto load = [&](uint32_t i) { return packing.load({in, i}); };
  auto send = [&](uint32_t i, const Piece<Packet>& piece) {
    inboxes.sendToAll(i, piece);
    if (place != in) packing.store({place, i}, piece);
  };
  auto receive = [&](uint32_t i) {
    return inboxes.receiveEach(i, packing, [&](uint32_t from) {
      return Place<uint8_t>{out + from * stride, i};
    });
  };
  if (inboxes.exchange(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers; a part has `bytes` bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

#define PACKET_KERNEL(name, Packet)                                                                       \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS, uint64_t stride) {               \
    packets<Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, stride); \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)

// direct writes the data into all outputs, between two barriers. The first orders nothing: it only
// announces that all outputs may be written.
extern "C" __global__ void direct(PARAMETERS) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  forEachRank(group, [&](uint32_t to, uint32_t thread, uint32_t threads) {
    uint8_t* place = out.of<uint8_t>(to) + group.rank * bytes;
    if (place != mine) copy(place, mine, bytes, thread, threads);
  });
  group.barrier();  // all outputs are written
}
