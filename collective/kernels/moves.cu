// What only moves parts: all-gathers, all-to-alls, gathers, scatters, broadcasts, and sends to the next
// rank. A file of kernels is compiled for each, MOVE: they differ in the ranks that a rank sends to, in where
// the parts come from, and in their places. Any size and alignment.
#include <mscclgo/collective.cuh>

#ifndef MOVE
#define MOVE AllGather
#endif

using namespace mscclgo;

namespace {

enum Move { AllGather, AllToAll, Gather, Scatter, Broadcast, SendReceive };
constexpr Move kMove = MOVE;
constexpr bool kScattered = kMove == AllToAll || kMove == Scatter;  // the input has a part for each rank
constexpr bool kGathered =
    kMove == AllGather || kMove == AllToAll || kMove == Gather;  // the output one of each
constexpr bool kFromRoot = kMove == Scatter || kMove == Broadcast;
constexpr bool kAll = kMove == AllGather || kMove == AllToAll;  // every rank receives from all others

// Packets: one trip. An inbox must hold a piece. Inboxes take turns, for which all ranks must have begun the
// call when one ends it. So a rank waits for packets of all others, or for a barrier. The barrier costs no
// extra trip, since its flags travel beside the first packets. A rank that sends in the next call but one has
// ended the next call. The ranks that it sends to had begun that one, and so had read this call's packets,
// which have the same place. The parts of an input, and of an output, lie `stride` bytes apart, so that they
// can be moved in pieces of `bytes`.
template <class Packet>
MSCCLGO_DEVICE void packets(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes,
                            uint32_t root, uint64_t stride) {
  using Pieces = typename Inboxes<Packet>::Pieces;
  Inboxes<Packet> inboxes(group);
  Packing<Packet> packing(in, out, bytes, kScattered || kGathered ? stride : bytes);
  const bool atRoot = group.rank == root;
  const bool sends = kAll || (kFromRoot ? atRoot : kMove == Gather ? !atRoot : group.size > 1);
  const bool receives = kAll || (kMove == SendReceive ? group.size > 1 : kFromRoot != atRoot);
  const uint32_t to = kMove == SendReceive ? peer(group, 1) : root;
  const uint32_t from = kMove == SendReceive ? peer(group, group.size - 1) : root;
  // This rank's own part may lie at its place.
  const uint8_t* own = kScattered ? in + group.rank * stride : in;
  uint8_t* place = kGathered ? out + group.rank * stride : out;
  const bool keeps = (kAll || (kMove == SendReceive ? group.size == 1 : atRoot)) && place != own;

  auto partsOf = [&](uint32_t i) {
    return [=](uint32_t rank) { return Place<const uint8_t>{in + rank * stride, i}; };
  };
  auto load = [&](uint32_t i) {
    if constexpr (kScattered) {
      return kAll || sends ? inboxes.loadEach(packing, partsOf(i)) : Pieces{};
    } else {
      return !kFromRoot || sends ? packing.load({in, i}) : Piece<Packet>{};
    }
  };
  using Data = decltype(load(0u));  // NVRTC takes a generic lambda for a function of the host
  auto send = [&](uint32_t i, const Data& data) {
    if constexpr (kScattered) {
      if (sends) inboxes.sendEach(i, packing, partsOf(i), data);
      if (keeps) packing.store({place, i}, packing.load({own, i}));
    } else {
      if constexpr (kMove == AllGather || kMove == Broadcast) {
        if (sends) inboxes.sendToAll(i, data);
      } else {
        if (sends) inboxes.send(to, i, data);
      }
      if (keeps) packing.store({place, i}, data);
    }
  };
  auto receive = [&](uint32_t i) {
    if (!receives) return true;
    if constexpr (kGathered) {
      return inboxes.receiveEach(i, packing, [&](uint32_t rank) {
        return Place<uint8_t>{out + rank * stride, i};
      });
    } else {
      Piece<Packet> piece;
      if (!inboxes.receive(from, i, piece)) return false;
      packing.store({out, i}, piece);
      return true;
    }
  };
  inboxes.sendFirst(packing.packets(), load, send);
  if (!kAll && inboxes.relaxedBarrier() != WaitResult::Done) return;
  if (inboxes.goOn(packing.packets(), load, send, receive)) inboxes.end();
}

}  // namespace

// in and out hold each rank's buffers, of the ranks that have an input, or an output; a part has `bytes`
// bytes.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t bytes, uint32_t root, uint64_t stride

#define PACKET_KERNEL(name, Packet)                                                                    \
  extern "C" __global__ void __launch_bounds__(1024, 1) name(PARAMETERS) {                             \
    packets<Packet>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), bytes, root, \
                    stride);                                                                           \
  }
PACKET_KERNEL(LL8, LL8Packet)
PACKET_KERNEL(LL16, LL16Packet)
PACKET_KERNEL(LL128, LL128Packet)

// direct writes each part to its place, between two barriers. The first orders nothing: it only announces
// that all outputs may be written. The parts of an input lie `stride` bytes apart. A root's links carry the
// data n - 1 times.
extern "C" __global__ void direct(PARAMETERS) {
  awaitPrevious();
  if (group.relaxedBarrier() != WaitResult::Done) return;
  const uint8_t* mine = in.of<const uint8_t>(group.rank);
  if constexpr (kMove == SendReceive) {
    copy(out.of<uint8_t>(peer(group, 1)), mine, bytes, uint32_t(firstThread()), uint32_t(allThreads()));
  } else if (!kFromRoot || group.rank == root) {
    forEachRank(group, [&](uint32_t to, uint32_t thread, uint32_t threads) {
      const uint8_t* part = kScattered ? mine + to * stride : mine;
      uint8_t* place = kGathered ? out.of<uint8_t>(to) + group.rank * bytes : out.of<uint8_t>(to);
      if (place != part) copy(place, part, bytes, thread, threads);
    });
  }
  group.barrier();  // all outputs are written
}
