// Collectives that only move data, by bulk copies: a few blocks fill the links, since the
// multiprocessors' copy engines replace many threads. For large sizes, and where few
// multiprocessors may be used. Any size and alignment; in place or not.
#include <mscclgo/bulk.cuh>
#include <mscclgo/collective.cuh>

// A compilation may set STAGES to try others.
#ifndef STAGES
#define STAGES 6
#endif

using namespace mscclgo;

namespace {

constexpr uint32_t kStages = STAGES;
using Ring = BulkRing<kStages>;

// Bulk is one rank's view of a call. It writes to the `peers` ranks ahead of it, and, if own is
// set, to its own output.
struct Bulk {
  uint32_t peers, own;
  uint64_t dst;     // where a part goes in their outputs
  uint64_t stride;  // the part for rank p starts at p * stride in the input; 0 if one part goes to all
  uint64_t bytes;   // of a part
  uint32_t stage;   // bytes of a stage of the ring
};

// kDriver is how many threads of a block drive the engine: one warp.
#if defined(MSCCLGO_BULK)
constexpr uint32_t kDriver = 32;
#else
constexpr uint32_t kDriver = 0;
#endif

// Movement is a call, with its kernel's parameters.
struct Movement {
  const GroupHandle& group;
  const PeerMemory& out;
  const Bulk& call;
  const uint8_t* in;

  // to returns the rank that lies k + 1 ahead.
  MSCCLGO_DEVICE uint32_t to(uint32_t k) const { return peer(group, k + 1); }
  MSCCLGO_DEVICE uint8_t* place(uint32_t rank) const { return out.of<uint8_t>(rank) + call.dst; }
  MSCCLGO_DEVICE const uint8_t* source(uint32_t rank) const { return in + rank * call.stride; }

  // byThreads copies what the engine does not: the edges, and data that are not aligned like the
  // input.
  MSCCLGO_DEVICE void byThreads(uint32_t rank, const BulkSpan& span) const {
    uint8_t* dst = place(rank);
    uint32_t thread = uint32_t(firstThread()), threads = uint32_t(allThreads());
    if (BulkSpan::alike(dst, span.src)) {
      span.edges(dst, thread, threads);
    } else {
      copy(dst, span.src, call.bytes, thread, threads);
    }
  }

  // own copies this rank's part, if there are several, by the warps that do not drive the engine.
  // Meanwhile the engine, the limit of a block, moves the peers' parts. In the code it comes after
  // those, for blocks of one warp.
  MSCCLGO_DEVICE void own() const {
    uint8_t* dst = place(group.rank);
    const uint8_t* src = source(group.rank);
    uint32_t before = blockDim.x > kDriver ? kDriver : 0, threads = blockDim.x - before;
    if (!call.own || dst == src || threadIdx.x < before) return;
    constexpr uint32_t kLoads = 8;  // keep up with an engine
    copy<16, kLoads>(dst, src, call.bytes, blockIdx.x * threads + threadIdx.x - before, gridDim.x * threads);
  }

  // one writes one part to all peers and to this rank's own output: a piece is read once, and
  // written to each from the stage.
  MSCCLGO_DEVICE void one(Ring& ring) const {
    uint32_t most = bulkPieceBytes<kStages>(call.bytes, ring.stage(), gridDim.x);
    uint8_t* last = place(to(call.peers - 1));
    BulkSpan span(BulkSpan::alike(last, in) ? static_cast<void*>(last) : const_cast<uint8_t*>(in), in,
                  call.bytes, most);
    uint8_t* mine = call.own ? place(group.rank) : last;
    bool also = call.own && mine != in;
    for (uint32_t k = 0; k < call.peers; ++k) byThreads(to(k), span);
    if (also) byThreads(group.rank, span);
    also = also && BulkSpan::alike(mine, span.src);
    uint64_t pieces = BulkSpan::pieces(call.bytes, most);
    if (blockIdx.x >= pieces) return;
    uint64_t number = blockIdx.x;
    ring.move((pieces - blockIdx.x - 1) / gridDim.x + 1,
              [&] {
                uint64_t at = span.start(number);
                BulkPiece piece{span.src + at, span.bytes(number), at};
                number += gridDim.x;
                return piece;
              },
              [&](uint64_t at, BulkPut put) {
                for (uint32_t k = 0; k < call.peers; ++k) {
                  uint8_t* dst = place(to(k));
                  if (BulkSpan::alike(dst, span.src)) put(dst + at);
                }
                if (also) put(mine + at);
              });
  }

  // each writes a part to each peer. The blocks begin with different peers, so that no link is
  // crowded, and take the next one for each piece.
  MSCCLGO_DEVICE void each(Ring& ring) const {
    uint32_t most = bulkPieceBytes<kStages>(call.bytes * call.peers, ring.stage(), gridDim.x);
    for (uint32_t k = 0; k < call.peers; ++k) byThreads(to(k), part(to(k), most));
    uint64_t pieces = BulkSpan::pieces(call.bytes, most);
    if (blockIdx.x >= pieces) return;
    uint64_t number = blockIdx.x;
    uint32_t first = blockIdx.x % call.peers, k = first;
    BulkSpan span = part(to(k), most);
    ring.move(
        ((pieces - blockIdx.x - 1) / gridDim.x + 1) * call.peers,
        [&] {
          uint64_t at = span.start(number);
          BulkPiece piece{span.src + at, span.bytes(number), reinterpret_cast<uintptr_t>(span.dst + at)};
          k = k + 1 < call.peers ? k + 1 : 0;
          if (k == first) number += gridDim.x;
          if (call.peers > 1) span = part(to(k), most);
          return piece;
        },
        [&](uint64_t dst, BulkPut put) { put(reinterpret_cast<void*>(dst)); });
  }

  MSCCLGO_DEVICE BulkSpan part(uint32_t rank, uint32_t most) const {
    return BulkSpan(place(rank), source(rank), call.bytes, most);
  }
};

}  // namespace

// bulk: between two barriers. The first orders nothing: it only announces that all outputs may be
// written. Before the second, thread 0 of each block waits until its engine's writes are visible to
// it. The barrier begins with one of the block, and releases them.
extern "C" __global__ void bulk(__grid_constant__ const GroupHandle group,
                                __grid_constant__ const PeerMemory in, __grid_constant__ const PeerMemory out,
                                __grid_constant__ const Bulk call) {
  extern __shared__ uint4 memory[];
  awaitPrevious();
  Ring ring(memory, call.stage);
  if (group.relaxedBarrier() != WaitResult::Done) return;
  Movement movement{group, out, call, in.of<const uint8_t>(group.rank)};
  if (call.peers > 0 && call.stride == 0) {
    movement.one(ring);
  } else {
    if (call.peers > 0) movement.each(ring);
    movement.own();
  }
  ring.wait();
  group.barrier();  // all outputs are written
}
