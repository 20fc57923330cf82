// Rooted reductions: the root gets the reduction of all ranks' data, made in the
// order of the ranks. Any element count and alignment, in place at the root or not.
//
// The compilation sets ELEMENT and OPERATION.
#include <mscclgo/collective.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;

// Packets: the others send all their data to the root, which reduces them. One trip. An inbox must
// hold the data. The barrier costs no extra trip, since its flags travel beside the first packets.
// After it all ranks have begun the call, as inboxes in turns need.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  bool receiver = group.rank == root;
  auto load = [&](uint32_t i) { return receiver ? Piece<Packet>{} : packing.load({in, i}); };
  auto send = [&](uint32_t i, const Piece<Packet>& piece) {
    if (!receiver) inboxes.send(root, i, piece);
  };
  auto reduce = [&](uint32_t i) {
    if (!receiver) return true;
    Piece<Packet> piece = packing.load({in, i});
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    packing.store({out, i}, piece);
    return true;
  };
  inboxes.sendFirst(packing.packets(), load, send);
  if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(packing.packets(), load, send, reduce)) inboxes.end();
}

// Two shots: all ranks send shard r to rank r, which reduces it and sends the result to the root.
// Two trips, and each link carries a shard or two; with packets() the root's link carries all data.
// An inbox must hold two shards, and a thread does the same packets of every shard in a pipeline,
// both as in an all-reduce of two shots. The barrier is as in packets().
template <class Packet>
MSCCLGO_DEVICE void twoShot(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  uint32_t packets = packing.packets();
  uint32_t shard = (packets + group.size - 1) / group.size;
  bool receiver = group.rank == root;

  // numberOf returns the packet that is number i of a rank's shard. The last shards may
  // be shorter, or empty.
  auto numberOf = [&](uint32_t rank, uint32_t i) { return rank * shard + i; };

  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t to) { return Place<const uint8_t>{in, to * shard + i}; };
  };
  auto load = [&](uint32_t i) { return inboxes.loadEach(packing, partsOf(i), i < shard); };
  auto send = [&](uint32_t i, const typename Inboxes<Packet>::Pieces& pieces) {
    inboxes.sendEach(i, packing, partsOf(i), pieces);
  };
  auto reduce = [&](uint32_t i) {
    uint32_t mine = numberOf(group.rank, i);
    if (mine >= packets) return true;
    Piece<Packet> piece = packing.load({in, mine});
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    if (receiver) {
      packing.store({out, mine}, piece);
    } else {
      inboxes.send(root, shard + i, piece);
    }
    return true;
  };
  auto receive = [&](uint32_t i) {
    return !receiver || inboxes.receiveEach(shard + i, packing, [&](uint32_t from) {
      return Place<uint8_t>{out, numberOf(from, i)};
    });
  };
  // A result is received kAhead packets after the thread's own packet of the shard.
  uint32_t lag = inboxes.kAhead * inboxes.stride();
  auto begin = [&](uint32_t i, const typename Inboxes<Packet>::Pieces& pieces) {
    if (i < shard) send(i, pieces);
  };
  auto finish = [&](uint32_t i) {
    if (i < shard && !reduce(i)) return false;
    return i < lag || receive(i - lag);
  };
  inboxes.sendFirst(shard + lag, load, begin);
  if (inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(shard + lag, load, begin, finish)) inboxes.end();
}

// Direct: rank r reads shard r of all inputs and writes the result into the root's
// output, between two barriers. In place is safe: only rank r reads shard r of any
// input, each word before it writes that word.
MSCCLGO_DEVICE void reduceDirectly(const GroupHandle& group, const PeerMemory& in, uint8_t* out,
                                   uint64_t bytes) {
  const uint8_t* input = in.ranks[0];
  Alignment alignment{skewOf(in, group.size, input), 0, uint64_t(out - input)};
  Shards shards(input, bytes, sizeof(T), group.size);
  uint64_t from = shards.start(group.rank), to = shards.start(group.rank + 1);
  auto inputs = [&](uint32_t rank) { return in.of<const uint8_t>(rank); };
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there, and the output may be written
  reduceRange<T, Op, kLoadsOfPeers>(inputs, group.size, from, to, alignment, firstThread(), allThreads(),
                                    ToOne{out});
  group.barrier();  // the output is there, and all inputs have been read
}

}  // namespace

// in and out hold each rank's buffers, of `bytes` bytes; only the root's out is
// written.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root

#define PACKET_KERNEL(name, algorithm, Packet)                                                           \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                               \
    algorithm<PacketOf<T, Packet>>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), \
                                   bytes, root);                                                         \
  }
PACKET_KERNEL(LL8, packets, LL8Packet)
PACKET_KERNEL(LL16, packets, LL16Packet)
PACKET_KERNEL(LL128, packets, LL128Packet)
PACKET_KERNEL(twoShotLL128, twoShot, LL128Packet)

extern "C" __global__ void __launch_bounds__(1024, 1) direct(PARAMETERS) {
  awaitPrevious();
  reduceDirectly(group, in, out.of<uint8_t>(root), bytes);
}
