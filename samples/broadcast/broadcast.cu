// Broadcasts: the root's data goes to all ranks. Any size and alignment; in place
// or not.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Packets: one trip. An inbox must hold the data. The barrier costs no trip more,
// since its flags travel beside the first packets; it makes every rank hear of
// every other before it ends, which inboxes need that take turns.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root) {
  Inboxes<Packet> inboxes(group);
  uint32_t lane = inboxes.lane();
  bool sender = group.rank == root;
  auto send = [&](uint64_t i) {
    if (!sender) return;
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(in + at, bytes - at, lane);
    inboxes.sendToAll(i, piece);
    if (out != in) piece.store(out + at, bytes - at, lane);
  };
  auto receive = [&](uint64_t i) {
    if (sender) return true;
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    if (!inboxes.receive(root, i, piece)) return false;
    piece.store(out + at, bytes - at, lane);
    return true;
  };
  inboxes.sendFirst(inboxes.packets(bytes), send);
  if (group.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(inboxes.packets(bytes), send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes; only the root's in is
// read.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root

extern "C" __global__ void LL8(PARAMETERS) {
  awaitPrevious();
  packets<LL8Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, root);
}
extern "C" __global__ void LL16(PARAMETERS) {
  awaitPrevious();
  packets<LL16Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, root);
}
extern "C" __global__ void LL128(PARAMETERS) {
  awaitPrevious();
  packets<LL128Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, root);
}

// direct: the root writes into all outputs, between two barriers. Its links carry
// the data n - 1 times.
extern "C" __global__ void direct(PARAMETERS) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;  // all outputs may be written
  if (group.rank == root) {
    const uint8_t* mine = in.of<const uint8_t>(root);
    forEachRank(group, [&](uint32_t to, uint32_t thread, uint32_t threads) {
      uint8_t* theirs = out.of<uint8_t>(to);
      if (theirs != mine) copy(theirs, mine, bytes, thread, threads);
    });
  }
  group.barrier();  // all outputs are written
}

// relayed: every link carries the data once. The root sends each other rank a
// share, which that rank passes on to the rest. So that both go on at the same
// time, blocks cut the data into rounds: in a round the root sends shares of this
// one while the others pass on those of the one before, and a barrier of the
// blocks of one number ends it. A block's rounds meet no other block's. They are
// short, so that the first and the last, in which half of the links are idle, are
// a small part; but not so short that a barrier counts.
extern "C" __global__ void relayed(PARAMETERS) {
  awaitPrevious();
  constexpr uint64_t kRounds = 8, kLeast = 4 << 10, kMost = 64 << 10;
  uint32_t others = group.size - 1;
  uint64_t share = divideUp(bytes, kRounds * (others + 1) * gridDim.x * sizeof(uint4)) * sizeof(uint4);
  if (share < kLeast) share = kLeast;
  if (share > kMost) share = kMost;
  uint64_t round = share * others * gridDim.x;
  uint64_t rounds = others == 0 ? 0 : divideUp(bytes, round);
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  uint8_t* result = out.of<uint8_t>(group.rank);
  uint32_t myPlace = (group.rank + group.size - root) % group.size;  // 0 is the root, place p has share p - 1

  if (group.relaxedBarrier() != WaitResult::Done) return;  // all outputs may be written
  if (others == 0 && result != mine)
    copy(result, mine, bytes, uint32_t(firstThread()), uint32_t(allThreads()));
  for (uint64_t r = 0; others > 0 && r <= rounds; ++r) {
    if (myPlace == 0 && r < rounds) {
      for (uint32_t place = 1; place <= others; ++place) {
        uint64_t at = r * round + (uint64_t(blockIdx.x) * others + place - 1) * share;
        if (at >= bytes) break;
        uint64_t n = bytes - at < share ? bytes - at : share;
        copy(out.of<uint8_t>((root + place) % group.size) + at, mine + at, n, threadIdx.x, blockDim.x);
        if (result != mine) copy(result + at, mine + at, n, threadIdx.x, blockDim.x);
      }
    }
    if (myPlace != 0 && r > 0) {
      uint64_t at = (r - 1) * round + (uint64_t(blockIdx.x) * others + myPlace - 1) * share;
      uint64_t n = at >= bytes ? 0 : bytes - at < share ? bytes - at : share;
      for (uint32_t k = 1; k < others; ++k) {
        uint32_t place = 1 + (myPlace - 1 + k) % others;
        copy(out.of<uint8_t>((root + place) % group.size) + at, result + at, n, threadIdx.x, blockDim.x);
      }
    }
    if (group.barrier() != WaitResult::Done) return;
  }
}
