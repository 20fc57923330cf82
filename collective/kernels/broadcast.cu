// Broadcasts that ranks pass on: the root's data goes to all ranks. Any size and alignment; in place
// or not.
#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Relays number the ranks from the root on: place 0 is the root, and the ranks at places 1 to
// `others` have a share of the data each. The root sends a share to its rank alone, and this passes
// it on to the rest. So every link carries the data once.
struct Relays {
  uint32_t ranks, root, place, others;

  MSCCLGO_DEVICE Relays(const GroupHandle& group, uint32_t root)
      : ranks(group.size),
        root(root),
        place((group.rank + group.size - root) % group.size),
        others(group.size > 1 ? group.size - 1 : 1) {}

  MSCCLGO_DEVICE uint32_t rankAt(uint32_t p) const { return (root + p) % ranks; }

  // next returns the place of a rank, not the root, k places after this one, where k is less than
  // `others`. Loops over them use it, so that no link is crowded.
  MSCCLGO_DEVICE uint32_t next(uint32_t k) const { return 1 + (place - 1 + k) % others; }
};

// relayedPackets: two trips. The shares' packets alternate: packet i is of the share of place 1 + i
// % others, and has number i / others in inboxes: first in the relay's, from the root, and then in
// the others', from the relay. An inbox must hold a share. A relay joins the barrier before it
// waits for its first packets; see moves.cu.
template <class Packet>
MSCCLGO_DEVICE void relayedPackets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                                   uint32_t root) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  Relays relays(group, root);
  uint32_t me = relays.place;
  bool ok = true;
  Piece<Packet> piece;
  auto relayOf = [&](uint32_t i) { return 1 + i % relays.others; };
  auto indexOf = [&](uint32_t i) { return i / relays.others; };
  auto load = [&](uint32_t i) { return me == 0 ? packing.load({in, i}) : Piece<Packet>{}; };
  auto send = [&](uint32_t i, const Piece<Packet>& mine) {
    uint32_t relay = relayOf(i), index = indexOf(i);
    if (me == 0) {
      if (relays.ranks > 1) inboxes.send(relays.rankAt(relay), index, mine);
      if (out != in) packing.store({out, i}, mine);
    } else if (me == relay && ok) {
      ok = inboxes.receive(root, index, piece);
      if (!ok) return;
      for (uint32_t k = 1; k < relays.others; ++k) inboxes.send(relays.rankAt(relays.next(k)), index, piece);
      packing.store({out, i}, piece);
    }
  };
  auto receive = [&](uint32_t i) {
    uint32_t relay = relayOf(i);
    if (me == 0 || me == relay || !ok) return ok;
    ok = inboxes.receive(relays.rankAt(relay), indexOf(i), piece);
    if (ok) packing.store({out, i}, piece);
    return ok;
  };
  uint32_t packets = packing.packets();
  if (me == 0) {
    inboxes.sendFirst(packets, load, send);
    if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  } else {
    awaitPrevious();
    inboxes.begin();
    if (inboxes.relaxedBarrier() != WaitResult::Done) return;
    inboxes.sendFirst(packets, load, send);
  }
  if (inboxes.goOn(packets, load, send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes; only the root's in is read.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root, uint64_t

extern "C" __global__ void __launch_bounds__(1024, 1) relayedLL128(PARAMETERS) {
  relayedPackets<LL128Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes,
                              root);
}

// relayed: the root writes the shares into the outputs of their relays, and these write them into
// the others' outputs. All go step by step; in a step a block has a piece of every share. A relay's
// block waits only for the root's block of its number, and the root for none, so that the next
// steps are on their way while one is passed on. The root's blocks begin with different relays: a
// relay's link also carries what other relays pass on, and would be full if all blocks wrote to one
// relay. Long steps signal less often, but the relays wait for the first step, and their last one
// goes alone. So a block's bytes in a step are bounded, and a part of the rest.
//
// A relay's threads see the root's writes: one of them acquires the root's signal, and the block's
// barrier passes that on (PTX: causality order). A rank ends when it has acquired the signals of
// all writers of its output: the root for its own share, the relays for their shares.
extern "C" __global__ void __launch_bounds__(1024, 1) relayed(PARAMETERS) {
  awaitPrevious();
  constexpr uint64_t kPart = 2, kLeast = 8 << 10, kStep = 64 << 10;
  Relays relays(group, root);
  const uint64_t most = kStep / relays.others / kLine * kLine;
  uint64_t pieces = uint64_t(relays.others) * gridDim.x;  // of a step
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  const uint8_t* result = out.of<const uint8_t>(group.rank);
  auto write = [&](uint32_t to, const uint8_t* data, uint64_t from, uint64_t end) {
    copy(out.of<uint8_t>(to) + from, data + from, end - from, threadIdx.x, blockDim.x);
  };

  Rounds rounds(group, blockIdx.x);  // that a rank has begun, and the steps
  rounds.signal();
  if (!rounds.wait(1)) return;  // all outputs may be written
  uint32_t steps = 0, first = blockIdx.x % relays.others;
  for (uint64_t at = 0, piece; at < bytes; at += pieces * piece) {
    piece = divideUp(bytes - at, kPart * pieces * kLine) * kLine;
    if (piece < kLeast) piece = kLeast;
    if (piece > most) piece = most;
    // The piece of a place starts where the piece of the place before ends.
    auto start = [&](uint32_t place) {
      uint64_t from = at + (uint64_t(blockIdx.x) * relays.others + place - 1) * piece;
      return from < bytes ? from : bytes;
    };
    ++steps;
    if (relays.place == 0) {
      for (uint32_t k = 0; k + 1 < relays.ranks; ++k) {
        uint32_t p = 1 + (first + k < relays.others ? first + k : first + k - relays.others);
        write(relays.rankAt(p), mine, start(p), start(p + 1));
      }
      rounds.signal();
      if (result != mine) write(root, mine, start(1), start(relays.others + 1));
    } else {
      if (!rounds.waitFor(root, 1 + steps)) return;
      for (uint32_t k = 1; k < relays.others; ++k)
        write(relays.rankAt(relays.next(k)), result, start(relays.place), start(relays.place + 1));
    }
  }
  if (relays.place != 0) rounds.signal(steps);
  if (rounds.wait(1 + steps)) rounds.end(1 + steps);  // all outputs are written
}
