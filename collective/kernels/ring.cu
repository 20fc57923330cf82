// The ring: each rank exchanges data with its two neighbours only. The hosts' copy engines move
// them, so few blocks are needed. For the largest sizes, and wherever peers' memory cannot be
// mapped.
//
// The compilation sets ELEMENT and OPERATION.
#include <mscclgo/port_channel.cuh>
#include <mscclgo/reduce.cuh>
#include <mscclgo/wait.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;
using Line = uint4;  // 16 bytes

MSCCLGO_DEVICE uint64_t divideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Part is one block's part of one chunk, in bytes.
struct Part {
  uint64_t offset, bytes;
};

// Ring is one rank's place. The data are cut into a chunk for each rank, and a chunk into a part
// for each block. The blocks of one number form a ring, over channels of their own, and need no
// others.
struct Ring {
  uint32_t rank, ranks;
  uint64_t bytes;

  MSCCLGO_DEVICE uint64_t chunkLines() const { return divideUp(divideUp(bytes, sizeof(Line)), ranks); }
  MSCCLGO_DEVICE uint64_t partLines() const { return divideUp(chunkLines(), gridDim.x); }

  // part returns this block's part of the chunk that lies `ahead` ranks ahead.
  MSCCLGO_DEVICE Part part(uint32_t ahead) const {
    uint64_t chunk = (rank + ahead) % ranks * chunkLines();
    uint64_t first = chunk + blockIdx.x * partLines();
    uint64_t last = first + partLines();
    if (last > chunk + chunkLines()) last = chunk + chunkLines();
    uint64_t from = first * sizeof(Line), to = last * sizeof(Line);
    if (from > bytes) from = bytes;
    if (to > bytes) to = bytes;
    return {from, from < to ? to - from : 0};
  }

  // slot returns the place of this block's part of a step's incoming data.
  MSCCLGO_DEVICE uint64_t slot(uint32_t step) const {
    return (step * chunkLines() + blockIdx.x * partLines()) * sizeof(Line);
  }

  // neighbour returns this block's channel to the rank that lies `ahead` ahead.
  MSCCLGO_DEVICE const PortChannelHandle& neighbour(const PortChannelHandle* channels, uint32_t ahead) const {
    return channels[blockIdx.x * ranks + (rank + ahead) % ranks];
  }
};

}  // namespace

// Partial results take the place of data.
static_assert(sizeof(Reducer<T, Op, Line>::Unfinished) == sizeof(Line),
              "this needs sums wider than elements");

// ring reduces the data of all ranks in two laps. In the first, partial results go round into the
// next rank's inbox; chunk c starts at rank c and is complete at the rank before. In the second,
// the complete chunks go round into the outputs. in, out and inbox are this rank's; peers write
// inbox through toInbox and out through toOutput.
//
// Nothing is overwritten too early. A complete chunk reaches a rank only after the rank's partial
// one has gone all the way round. A rank begins the next call when all have finished with their
// inboxes: its last chunk depends on the inbox of the rank ahead of it.
extern "C" __global__ void __launch_bounds__(512, 1)
    ring(const PortChannelHandle* toInbox, const PortChannelHandle* toOutput, uint32_t rank, uint32_t ranks,
         const uint8_t* in, uint8_t* out, const uint8_t* inbox, uint64_t bytes) {
  Ring r{rank, ranks, bytes};
  for (uint32_t ahead = 0; in != out && ahead < r.ranks; ++ahead) {
    Part p = r.part(ahead);
    copy(out + p.offset, in + p.offset, p.bytes, threadIdx.x, blockDim.x);
  }
  __syncthreads();
  for (uint32_t step = 0; step + 1 < r.ranks; ++step) {
    bool ok = true;
    if (threadIdx.x == 0) {
      Part p = r.part(r.ranks - step);
      ok = r.neighbour(toInbox, 1).putWithSignal(r.slot(step), p.offset, p.bytes) == WaitResult::Done &&
           r.neighbour(toInbox, r.ranks - 1).wait() == WaitResult::Done;
    }
    if (!blockAll(ok)) return;
    Part p = r.part(r.ranks - step - 1);
    for (uint64_t at = threadIdx.x * sizeof(Line); at < p.bytes; at += blockDim.x * sizeof(Line)) {
      Reducer<T, Op, Line> sum(loadPartial<Line>(inbox + r.slot(step) + at, p.bytes - at));
      sum.add(loadPartial<Line>(out + p.offset + at, p.bytes - at));
      bool last = step + 2 == r.ranks;
      storePartial(out + p.offset + at, last ? sum.get(r.ranks) : sum.unfinished(), p.bytes - at);
    }
    __syncthreads();  // the whole part is there before one thread sends it
  }
  if (threadIdx.x != 0) return;
  for (uint32_t step = 0; step + 1 < r.ranks; ++step) {
    Part p = r.part(r.ranks + 1 - step);
    if (r.neighbour(toOutput, 1).putWithSignal(p.offset, p.offset, p.bytes) != WaitResult::Done) return;
    if (r.neighbour(toOutput, r.ranks - 1).wait() != WaitResult::Done) return;
  }
  r.neighbour(toOutput, 1).flush();  // the output may change once the kernel has ended
}
