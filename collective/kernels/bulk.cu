// Collectives that only move data, by bulk copies: a few blocks fill the links, since the
// multiprocessors' copy engines move what takes many threads otherwise. For large sizes, and
// where few multiprocessors may be used. Any size and alignment; in place or not.
#include <mscclgo/bulk.cuh>
#include <mscclgo/collective.cuh>

// STAGES is set to try others.
#ifndef STAGES
#define STAGES 6
#endif

using namespace mscclgo;

namespace {

constexpr uint32_t kStages = STAGES;
using Ring = BulkRing<kStages>;

// Bulk is one rank's view of a call. It writes to `count` ranks, of which the first lies `first`
// ahead.
struct Bulk {
  uint32_t first, count;
  uint64_t dst;     // where a part goes in their outputs
  uint64_t stride;  // that for rank p starts at p * stride in the input; 0 if one part goes to all
  uint64_t bytes;   // of a part
  uint32_t stage;   // bytes of a stage of the ring
};

// Movement is a call with what its kernel has.
struct Movement {
  const GroupHandle& group;
  const PeerMemory& out;
  const Bulk& call;
  const uint8_t* in;

  MSCCLGO_DEVICE uint32_t to(uint32_t k) const { return peer(group, call.first + k); }
  MSCCLGO_DEVICE uint8_t* place(uint32_t k) const { return out.of<uint8_t>(to(k)) + call.dst; }
  MSCCLGO_DEVICE const uint8_t* source(uint32_t k) const { return in + to(k) * call.stride; }

  // byThreads copies what the engine does not: the edges, and what does not lie as the input
  // does.
  MSCCLGO_DEVICE void byThreads(uint32_t k, const BulkSpan& span) const {
    uint8_t* dst = place(k);
    uint32_t thread = uint32_t(firstThread()), threads = uint32_t(allThreads());
    if (dst == span.src) return;  // in place
    if (BulkSpan::alike(dst, span.src)) {
      span.edges(dst, thread, threads);
    } else {
      copy(dst, span.src, call.bytes, thread, threads);
    }
  }

  // one writes one part to all ranks: a piece is read once, and written to each from the stage.
  MSCCLGO_DEVICE void one(Ring& ring) const {
    uint32_t most = bulkPieceBytes<kStages>(call.bytes, ring.stage(), gridDim.x);
    uint8_t* last = place(call.count - 1);  // a peer's, if there are any
    BulkSpan span(BulkSpan::alike(last, in) ? static_cast<void*>(last) : const_cast<uint8_t*>(in), in,
                  call.bytes, most);
    for (uint32_t k = 0; k < call.count; ++k) byThreads(k, span);
    uint64_t pieces = BulkSpan::pieces(call.bytes, most);
    if (blockIdx.x >= pieces) return;
    auto number = [&](uint64_t i) { return blockIdx.x + i * gridDim.x; };
    ring.move((pieces - blockIdx.x - 1) / gridDim.x + 1,
              [&](uint64_t i) {
                return BulkPiece{span.src + span.start(number(i)), span.bytes(number(i))};
              },
              [&](uint64_t i, BulkPut put) {
                uint64_t at = span.start(number(i));
                for (uint32_t k = 1; k <= call.count; ++k) {
                  uint8_t* dst = place(k < call.count ? k : 0);  // peers first
                  if (dst != span.src && BulkSpan::alike(dst, span.src)) put(dst + at);
                }
              });
  }

  // each writes a part to each rank. The blocks begin with different ranks, so that no link is
  // crowded.
  MSCCLGO_DEVICE void each(Ring& ring) const {
    uint32_t most = bulkPieceBytes<kStages>(call.bytes * call.count, ring.stage(), gridDim.x);
    for (uint32_t k = 0; k < call.count; ++k) byThreads(k, BulkSpan(place(k), source(k), call.bytes, most));
    uint64_t pieces = BulkSpan::pieces(call.bytes, most);
    if (blockIdx.x >= pieces) return;
    auto rank = [&](uint64_t i) { return (uint32_t(i) + blockIdx.x) % call.count; };
    auto number = [&](uint64_t i) { return blockIdx.x + uint32_t(i) / call.count * uint64_t(gridDim.x); };
    ring.move(((pieces - blockIdx.x - 1) / gridDim.x + 1) * call.count,
              [&](uint64_t i) {
                BulkSpan span(place(rank(i)), source(rank(i)), call.bytes, most);
                return BulkPiece{span.src + span.start(number(i)), span.bytes(number(i))};
              },
              [&](uint64_t i, BulkPut put) {
                BulkSpan span(place(rank(i)), source(rank(i)), call.bytes, most);
                put(span.dst + span.start(number(i)));
              });
  }
};

}  // namespace

// bulk: between two barriers. The first orders nothing: it only announces that all outputs may
// be written. Before the second, thread 0 of each block waits until what its engine wrote is
// visible to it, and the barrier, which begins with one of the block, releases that.
extern "C" __global__ void bulk(__grid_constant__ const GroupHandle group,
                                __grid_constant__ const PeerMemory in, __grid_constant__ const PeerMemory out,
                                __grid_constant__ const Bulk call) {
  extern __shared__ uint4 memory[];
  awaitPrevious();
  Ring ring(memory, call.stage);
  if (group.relaxedBarrier() != WaitResult::Done) return;
  if (call.count > 0) {
    Movement movement{group, out, call, in.of<const uint8_t>(group.rank)};
    if (call.stride == 0) {
      movement.one(ring);
    } else {
      movement.each(ring);
    }
    ring.wait();
  }
  group.barrier();  // all outputs are written
}
