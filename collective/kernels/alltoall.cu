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
  uint32_t lane = inboxes.lane();
  auto send = [&](uint64_t i) {
    uint64_t at = i * Piece<Packet>::kPayload;
    for (uint32_t k = 1; k <= group.size; ++k) {
      uint32_t to = peer(group, k);
      Piece<Packet> piece;
      piece.load(in + to * bytes + at, bytes - at, lane);
      if (to == group.rank) {
        piece.store(out + to * bytes + at, bytes - at, lane);
      } else {
        inboxes.send(to, i, piece);
      }
    }
  };
  auto receive = [&](uint64_t i) {
    uint64_t at = i * Piece<Packet>::kPayload;
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t from = peer(group, k);
      Piece<Packet> piece;
      if (!inboxes.receive(from, i, piece)) return false;
      piece.store(out + from * bytes + at, bytes - at, lane);
    }
    return true;
  };
  if (inboxes.exchange(inboxes.packets(bytes), send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers; a part has `bytes` bytes.
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

// direct writes each part straight to its place, between two barriers. The first
// orders nothing: it only announces that all outputs may be written. The parts of an
// input lie `stride` bytes apart, so that they can be moved in pieces.
extern "C" __global__ void direct(PARAMETERS, uint64_t stride) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  forEachRank(group, [&](uint32_t to, uint32_t thread, uint32_t threads) {
    copy(out.of<uint8_t>(to) + group.rank * bytes, mine + to * stride, bytes, thread, threads);
  });
  group.barrier();  // all outputs are written
}
