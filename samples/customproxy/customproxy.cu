// Kernels that report to the host, by triggers of their own.
#include <mscclgo/fifo.cuh>

using namespace mscclgo;

// kHits is the kind of trigger that the program's handler knows.
constexpr uint8_t kHits = kFirstUserKind;

namespace {

// random returns a number from 0 up to 1. (xorshift64; Marsaglia, "Xorshift RNGs",
// 2003)
MSCCLGO_DEVICE float random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return float(state >> 40) * 0x1p-24f;
}

}  // namespace

// throwDarts estimates pi: it throws darts at a square and counts those inside
// the circle. After every round, a thread of each block reports to the host how
// many there were. The triggers carry all that the host needs to know, so their push
// need not publish other memory.
extern "C" __global__ void throwDarts(FifoHandle fifo, uint64_t seed, uint32_t rounds, uint32_t dartsEach) {
  __shared__ unsigned int hits;
  uint64_t state = (seed + blockIdx.x * blockDim.x + threadIdx.x + 1) * 0x9e3779b97f4a7c15u;
  for (uint32_t round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) hits = 0;
    __syncthreads();
    unsigned int mine = 0;
    for (uint32_t i = 0; i < dartsEach; ++i) {
      float x = random(state), y = random(state);
      if (x * x + y * y < 1) ++mine;
    }
    atomicAdd(&hits, mine);
    __syncthreads();
    bool ok = true;
    if (threadIdx.x == 0) {
      Trigger report = Trigger::user(kHits, blockIdx.x, hits, uint64_t(dartsEach) * blockDim.x);
      ok = fifo.relaxedPush(report).result == WaitResult::Done;
    }
    if (!blockAll(ok)) return;
  }
}
