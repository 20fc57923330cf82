// Kernels for the tests and benchmarks of package fifo.
#include <mscclgo/fifo.cuh>

using namespace mscclgo;

// mix spreads the bits of a number, so that every bit of a trigger is tested.
static __device__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

static __device__ uint64_t producer() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// produce pushes `count` triggers from each thread and stores how each thread
// ended and the position of its last trigger.
extern "C" __global__ void produce(FifoHandle fifo, uint64_t count, bool relaxed, uint32_t* results,
                                   uint64_t* positions) {
  uint64_t me = producer();
  results[me] = uint32_t(WaitResult::Done);
  for (uint64_t i = 0; i < count; ++i) {
    Trigger t = Trigger::user(uint8_t(kFirstUserKind + me % 128), me, i, mix(me << 32 | i), mix(i));
    PushResult pushed = relaxed ? fifo.relaxedPush(t) : fifo.push(t);
    positions[me] = pushed.position;
    if (pushed.result != WaitResult::Done) {
      results[me] = uint32_t(pushed.result);
      return;
    }
  }
}

// publish writes a value to memory before it pushes, and syncs.
extern "C" __global__ void publish(FifoHandle fifo, uint64_t* data, uint64_t count, uint32_t* results) {
  uint64_t me = producer();
  for (uint64_t i = 1; i <= count; ++i) {
    data[me] = i;
    PushResult pushed = fifo.push(Trigger::user(kFirstUserKind, me, i));
    WaitResult result = pushed.result;
    if (result == WaitResult::Done) result = fifo.sync(pushed.position);
    if (result == WaitResult::Done && !fifo.poll(pushed.position)) result = WaitResult::TimedOut;
    results[me] = uint32_t(result);
    if (result != WaitResult::Done) return;
  }
}

// roundTrips pushes and syncs `count` times by one thread and stores each time
// in nanoseconds.
extern "C" __global__ void roundTrips(FifoHandle fifo, uint64_t count, bool relaxed, uint32_t* times) {
  for (uint64_t i = 0; i < count; ++i) {
#if defined(MSCCLGO_EMU)
    uint64_t start = nanoseconds();
#else
    uint64_t start = clock64();
#endif
    Trigger t = Trigger::user(kFirstUserKind, i);
    PushResult pushed = relaxed ? fifo.relaxedPush(t) : fifo.push(t);
    if (pushed.result != WaitResult::Done || fifo.sync(pushed.position) != WaitResult::Done) return;
#if defined(MSCCLGO_EMU)
    times[i] = uint32_t(nanoseconds() - start);
#else
    times[i] = uint32_t(clock64() - start);
#endif
  }
}
