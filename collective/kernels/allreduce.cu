// All-reduces, from the least latency to the fewest bytes moved. All reduce in the order of the
// ranks, so that every rank gets the same bits; all take any element count and alignment, in place
// or not.
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

// One shot: every rank sends all its data to all ranks, and reduces everything itself. One trip
// over the links; (n - 1) times the data. An inbox must hold all the data. No barrier: a packet's
// flag shows that it has arrived, and a result needs packets of all ranks, so inboxes may take
// turns (see Inboxes).
template <class Packet>
MSCCLGO_DEVICE void oneShot(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  auto load = [&](uint32_t i) { return packing.load({in, i}); };
  auto send = [&](uint32_t i, const Piece<Packet>& piece) { inboxes.sendToAll(i, piece); };
  auto reduce = [&](uint32_t i) {
    Piece<Packet> piece = packing.load({in, i});
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    packing.store({out, i}, piece);
    return true;
  };
  if (inboxes.exchange(packing.packets(), load, send, reduce)) inboxes.end();
}

// Two shots: all ranks send shard r of their data to rank r, which reduces it and sends the result
// to all. Two trips; 2 (n - 1) / n times the data. An inbox must hold two shards: an input's and a
// result's.
//
// A thread does the same packets of every shard, in a pipeline: while it reduces packet i, it has
// sent some later ones, and has yet to receive some earlier results. In place nothing is
// overwritten before it has been sent.
template <class Packet>
MSCCLGO_DEVICE void twoShot(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes);
  uint32_t packets = packing.packets();
  uint32_t shard = (packets + group.size - 1) / group.size;
  uint32_t mine = group.rank * shard;  // this rank's first packet

  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t to) { return Place<const uint8_t>{in, to * shard + i}; };
  };
  auto load = [&](uint32_t i) { return inboxes.loadEach(packing, partsOf(i), i < shard); };
  auto send = [&](uint32_t i, const typename Inboxes<Packet>::Pieces& pieces) {
    inboxes.sendEach(i, packing, partsOf(i), pieces);
  };
  auto reduce = [&](uint32_t i) {
    if (mine + i >= packets) return true;
    Piece<Packet> piece = packing.load({in, mine + i});
    if (!inboxes.template receiveReduced<T, Op>(i, piece)) return false;
    inboxes.sendToAll(shard + i, piece);
    packing.store({out, mine + i}, piece);
    return true;
  };
  auto receive = [&](uint32_t i) {
    return inboxes.receiveEach(shard + i, packing, [&](uint32_t from) {
      return Place<uint8_t>{out, from * shard + i};
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
  if (inboxes.exchange(shard + lag, load, begin, finish)) inboxes.end();
}

// Direct: rank r reads shard r of all inputs and writes the result into all
// outputs. 2 (n - 1) / n times the data and no flags, but two barriers. In place
// is safe: only rank r reads shard r of any input, each word before it writes
// that word.
MSCCLGO_DEVICE void reduceDirectly(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                                   uint64_t bytes) {
  const uint8_t *input = in.ranks[0], *output = out.ranks[0];
  Alignment alignment{skewOf(in, group.size, input), skewOf(out, group.size, output),
                      uint64_t(output - input)};
  Shards shards(input, bytes, sizeof(T), group.size);
  uint64_t from = shards.start(group.rank), to = shards.start(group.rank + 1);
  auto inputs = [&](uint32_t rank) { return in.of<const uint8_t>(rank); };
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there
  reduceRange<T, Op, kLoadsOfPeers>(inputs, group.size, from, to, alignment, firstThread(), allThreads(),
                                    ToAll{group, out});
  group.barrier();  // all outputs are there
}

}  // namespace

#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes

// The kernels of one and two shots, for each kind of packet. in and out hold
// each rank's buffers, of `bytes` bytes.
#define PACKET_KERNEL(name, algorithm, Packet)                                                           \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                               \
    algorithm<PacketOf<T, Packet>>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), \
                                   bytes);                                                               \
  }
PACKET_KERNEL(oneShotLL8, oneShot, LL8Packet)
PACKET_KERNEL(oneShotLL16, oneShot, LL16Packet)
PACKET_KERNEL(oneShotLL128, oneShot, LL128Packet)
PACKET_KERNEL(twoShotLL16, twoShot, LL16Packet)
PACKET_KERNEL(twoShotLL128, twoShot, LL128Packet)

extern "C" __global__ void __launch_bounds__(1024, 1) direct(PARAMETERS) {
  awaitPrevious();
  reduceDirectly(group, in, out, bytes);
}
