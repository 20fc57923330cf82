// Sends and receives in a ring: each rank's data goes to the next rank. Any size
// and alignment; not in place.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip. An inbox must hold the data. The barrier costs no extra trip, since its flags
// travel beside the first packets. After it all ranks have begun the call, as inboxes in turns
// need.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  uint32_t next = peer(group, 1), before = peer(group, group.size - 1);
  auto load = [&](uint32_t i) { return packing.load({in, i}); };
  auto send = [&](uint32_t i, const Piece<Packet>& piece) {
    if (next == group.rank) {
      packing.store({out, i}, piece);
    } else {
      inboxes.send(next, i, piece);
    }
  };
  auto receive = [&](uint32_t i) {
    if (before == group.rank) return true;
    Piece<Packet> piece;
    if (!inboxes.receive(before, i, piece)) return false;
    packing.store({out, i}, piece);
    return true;
  };
  inboxes.sendFirst(packing.packets(), load, send);
  if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes.
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

// direct writes the data into the next rank's output, between two barriers. The first orders
// nothing: it only announces that all outputs may be written.
extern "C" __global__ void direct(PARAMETERS) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  copy(out.of<uint8_t>(peer(group, 1)), in.of<const uint8_t>(group.rank), bytes, uint32_t(firstThread()),
       uint32_t(allThreads()));
  group.barrier();  // all outputs are written
}
