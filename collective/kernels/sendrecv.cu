// Sends and receives in a ring: each rank's data goes to the next rank. Any size
// and alignment; not in place.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip. An inbox must hold the data. The barrier costs no trip more,
// since its flags travel beside the first packets; it makes every rank hear of
// every other before it ends, which inboxes need that take turns.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  uint32_t lane = inboxes.lane(), next = peer(group, 1), before = peer(group, group.size - 1);
  auto send = [&](uint64_t i) {
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(in + at, bytes - at, lane);
    if (next == group.rank) {
      piece.store(out + at, bytes - at, lane);
    } else {
      inboxes.send(next, i, piece);
    }
  };
  auto receive = [&](uint64_t i) {
    if (before == group.rank) return true;
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    if (!inboxes.receive(before, i, piece)) return false;
    piece.store(out + at, bytes - at, lane);
    return true;
  };
  inboxes.sendFirst(inboxes.packets(bytes), send);
  if (group.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(inboxes.packets(bytes), send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

extern "C" __global__ void LL8(PARAMETERS) {
  awaitPrevious();
  packets<LL8Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}
extern "C" __global__ void LL16(PARAMETERS) {
  awaitPrevious();
  packets<LL16Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}
extern "C" __global__ void LL128(PARAMETERS) {
  awaitPrevious();
  packets<LL128Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes);
}

// direct writes the data straight into the next rank's output, between two
// barriers. The first orders nothing: it only announces that all outputs may be
// written.
extern "C" __global__ void direct(PARAMETERS) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  copy(out.of<uint8_t>(peer(group, 1)), in.of<const uint8_t>(group.rank), bytes, uint32_t(firstThread()),
       uint32_t(allThreads()));
  group.barrier();  // all outputs are written
}
