// All-to-alls: part p of rank r's input becomes part r of rank p's output. Any
// size and alignment; not in place.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip, no barrier. An inbox must hold a part. Inboxes may take
// turns, since every rank waits for all others' packets.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  uint64_t own = group.rank * bytes;
  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t to) { return Place<const uint8_t>{in + to * bytes, i}; };
  };
  auto load = [&](uint32_t i) { return inboxes.loadEach(packing, partsOf(i)); };
  auto send = [&](uint32_t i, const typename Inboxes<Packet>::Pieces& pieces) {
    inboxes.sendEach(i, packing, partsOf(i), pieces);
    packing.store({out + own, i}, packing.load({in + own, i}));
  };
  auto receive = [&](uint32_t i) {
    return inboxes.receiveEach(i, packing, [&](uint32_t from) {
      return Place<uint8_t>{out + from * bytes, i};
    });
  };
  if (inboxes.exchange(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers; a part has `bytes` bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

#define PACKET_KERNEL(name, Packet)                                                               \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                        \
    packets<Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes); \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)

// direct writes each part to its place, between two barriers. The first orders nothing: it only
// announces that all outputs may be written. The parts of an input lie `stride` bytes apart, so
// that they can be moved in pieces.
extern "C" __global__ void direct(PARAMETERS, uint64_t stride) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  forEachRank(group, [&](uint32_t to, uint32_t thread, uint32_t threads) {
    copy(out.of<uint8_t>(to) + group.rank * bytes, mine + to * stride, bytes, thread, threads);
  });
  group.barrier();  // all outputs are written
}
