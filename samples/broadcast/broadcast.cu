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

// relayed: every link carries the data once. The root writes a share of the data to
// each other rank, straight into its output, and that rank passes it on to the rest.
// Both go step by step, in which a block has a piece of every share, and the next
// steps are on their way while one is passed on. A block waits for the blocks of its
// number only.
extern "C" __global__ void relayed(PARAMETERS) {
  awaitPrevious();
  constexpr uint64_t kSteps = 8, kLeast = 4 << 10, kMost = 32 << 10;
  uint32_t others = group.size > 1 ? group.size - 1 : 1;
  uint64_t all = uint64_t(others) * gridDim.x;  // pieces of a step
  uint64_t piece = divideUp(bytes, kSteps * all * sizeof(uint4)) * sizeof(uint4);
  if (piece < kLeast) piece = kLeast;
  if (piece > kMost) piece = kMost;
  uint32_t steps = uint32_t(divideUp(bytes, piece * all));
  // The piece of the rank that lies `place` behind the root.
  auto start = [&](uint32_t step, uint32_t place) {
    uint64_t at = (step * all + uint64_t(blockIdx.x) * others + place - 1) * piece;
    return at < bytes ? at : bytes;
  };
  auto pass = [&](uint32_t to, const uint8_t* data, uint64_t from, uint64_t end) {
    copy(out.of<uint8_t>(to) + from, data + from, end - from, threadIdx.x, blockDim.x);
  };

  if (group.relaxedBarrier() != WaitResult::Done) return;  // all outputs may be written
  Rounds rounds(group, blockIdx.x);
  uint32_t place = (group.rank + group.size - root) % group.size;
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  const uint8_t* result = out.of<const uint8_t>(group.rank);
  for (uint32_t step = 0; step < steps; ++step) {
    if (place == 0) {
      for (uint32_t p = 1; p < group.size; ++p)
        pass((root + p) % group.size, mine, start(step, p), start(step, p + 1));
      rounds.signal();
      if (result != mine) pass(root, mine, start(step, 1), start(step, others + 1));
    } else {
      if (!rounds.waitFor(root, step + 1)) return;
      for (uint32_t k = 1; k < others; ++k) {
        uint32_t p = 1 + (place - 1 + k) % others;
        pass((root + p) % group.size, result, start(step, place), start(step, place + 1));
      }
      rounds.signal();
    }
  }
  if (rounds.wait(steps)) rounds.end(steps);  // all outputs are written
}
