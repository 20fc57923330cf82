// An all-reduce in place by rings of pipes: partial sums go once round a ring, and then results.
// samples/pipe has the simplest such kernel; this one divides the data evenly and along lines.
#include <mscclgo/pipe.cuh>

using namespace mscclgo;

namespace {

constexpr uint64_t kLine = 128 / sizeof(__half);  // elements; slots hold whole lines

// Round is what a block does at a time: elements of the data, cut into one piece a rank.
struct Round {
  __half* data;
  uint64_t count, piece;
  uint32_t place, ranks;  // this rank's place in the ring

  // of returns the piece that began its way so many ranks behind this one.
  MSCCLGO_DEVICE __half* of(uint32_t behind) const { return data + first(behind); }
  MSCCLGO_DEVICE uint64_t length(uint32_t behind) const { return min(piece, count - first(behind)); }
  MSCCLGO_DEVICE uint64_t first(uint32_t behind) const {
    return min((place + 2 * ranks - behind) % ranks * piece, count);
  }
};

// reduce is the all-reduce of a round.
__device__ WaitResult reduce(const PipeHandle& next, const PipeHandle& previous, const Round& round) {
  const uint32_t last = round.ranks - 1;
  WaitResult r = next.sendToReduce<__half, Sum>(round.of(0), round.length(0));
  for (uint32_t i = 1; i < last && r == WaitResult::Done; ++i)
    r = previous.recvReduceSend<__half, Sum>(next, round.of(i), round.length(i));
  if (r == WaitResult::Done)
    r = previous.recvReduceCopySend<__half, Sum>(next, round.of(last), round.of(last), round.length(last),
                                                 round.ranks);
  for (uint32_t i = last + 1; i < 2 * last && r == WaitResult::Done; ++i)
    r = previous.recvCopySend(next, round.of(i), round.length(i) * sizeof(__half));
  if (r == WaitResult::Done) r = previous.recv(round.of(2 * last), round.length(2 * last) * sizeof(__half));
  return r;
}

}  // namespace

// rings adds up the data of all ranks, at least two. Each block has pipes of its own, of at
// least two slots. With two ways every other block's ring goes the other way: the first peer is
// then the rank after this one, and the second the rank before it. Blocks begin in waves, `apart`
// nanoseconds one after another: the bytes of a wave are on the wire while the others wait for what
// they need next, which all together would do with the wire idle.
extern "C" __global__ void __launch_bounds__(512)
    rings(PipeSet pipes, uint32_t ways, uint32_t waves, uint64_t apart, uint32_t rank, uint32_t ranks,
          __half* data, uint64_t count) {
  // Handles are read anew after each wait, here without a trip to memory.
  __shared__ PipeHandle next, previous;
  const uint32_t way = blockIdx.x % ways;
  if (threadIdx.x == 0) {
    next = pipes.to(way, blockIdx.x / ways);
    previous = pipes.from(way, blockIdx.x / ways);
    const uint64_t start = nanoseconds(), rest = blockIdx.x / ways % waves * apart;
    while (nanoseconds() - start < rest) {
    }
  }
  __syncthreads();
  const uint64_t lines = (count + kLine - 1) / kLine;
  const uint64_t begin = lines * blockIdx.x / gridDim.x, end = lines * (blockIdx.x + 1) / gridDim.x;
  // All ranks send before they receive, so a piece leaves a slot free.
  const uint64_t most = next.slotBytes / sizeof(__half) / kLine * (next.slotCount - 1) * ranks;
  const uint64_t rounds = (end - begin + most - 1) / most;
  if (rounds == 0) return;
  const uint64_t piece = (end - begin + rounds * ranks - 1) / (rounds * ranks);
  for (uint64_t at = begin; at < end; at += ranks * piece) {
    const uint64_t first = at * kLine, n = min(min(at + ranks * piece, end) * kLine, count) - first;
    const Round round{data + first, n, piece * kLine, way == 0 ? rank : ranks - 1 - rank, ranks};
    if (reduce(next, previous, round) != WaitResult::Done) return;  // the host learns of it
  }
}
