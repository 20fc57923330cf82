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

// carry pushes `count` triggers from each thread, with 1 to `most` bytes that start at
// each of 16 places in a 16-byte word. The thread writes the bytes before each push to
// its own part of data, which has most + 16 bytes.
extern "C" __global__ void carry(FifoHandle fifo, uint8_t* data, uint64_t most, uint64_t count,
                                 uint32_t* results) {
  uint64_t me = producer();
  uint8_t* part = data + me * (most + 16);
  results[me] = uint32_t(WaitResult::Done);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t n = i < 16 ? most : 1 + mix(me << 32 | i) % most;
    uint8_t* src = part + i % 16;
    for (uint64_t k = 0; k < n; ++k) src[k] = uint8_t(mix(me << 40 | i << 20 | k));
    PushResult pushed = fifo.pushWith(Trigger::user(kFirstUserKind, n, 0, 0, me << 20 | i), src, n);
    if (pushed.result != WaitResult::Done) {
      results[me] = uint32_t(pushed.result);
      return;
    }
  }
}

// startAt has an empty ring begin at a position. One thread.
extern "C" __global__ void startAt(__grid_constant__ const FifoHandle fifo, uint64_t position) {
  fifo.state->head = position;
  fifo.state->popped = position;
}

namespace {

// put stores a trigger as FifoHandle::write does.
MSCCLGO_DEVICE void put(const FifoHandle& fifo, uint64_t position, uint64_t a) {
  constexpr uint64_t top = uint64_t(1) << 63;
  uint64_t tag = (position & fifo.size) != 0 ? 0 : top;
  uint64_t* entry = fifo.entries + (position & (fifo.size - 1)) * 4;
  storeRelaxed16(entry, tag | a, tag);
  storeRelaxed16(entry + 2, tag, tag | uint64_t(kFirstUserKind) << 55);
}

// room waits until a position's entry is free.
MSCCLGO_DEVICE bool room(const FifoHandle& fifo, uint64_t position) {
  if (position - load<Scope::Device, Order::Relaxed>(&fifo.state->popped) < fifo.size) return true;
  detail::Room room{fifo.tail, &fifo.state->popped, &fifo.state->looking, fifo.size};
  return detail::awaitRoom(fifo.watch, room, position) == WaitResult::Done;
}

// pushMany pushes `count` triggers, `Each` at a time, by one thread. Fence says whether one fence
// stands before each of these times, and Owned that the thread has the ring for itself, so that
// it need not ask for a position.
template <uint32_t Each, bool FenceFirst, bool Fence, bool Owned>
MSCCLGO_DEVICE void pushMany(const FifoHandle& fifo, uint64_t count) {
  uint64_t own = fifo.state->head;
  for (uint64_t i = 0; i < count; i += Each) {
    if constexpr (Fence && FenceFirst) fence<Scope::System, Order::Release>();
    uint64_t position = own;
    if constexpr (!Owned) position = fetchAdd<Scope::Device, Order::Relaxed>(&fifo.state->head, Each);
    own += Each;
    if constexpr (Fence && !FenceFirst) fence<Scope::System, Order::Release>();
    if (!room(fifo, position + Each - 1)) return;
#pragma unroll
    for (uint32_t k = 0; k < Each; ++k) put(fifo, position + k, i + k);
  }
  if constexpr (Owned) fifo.state->head = own;
}

}  // namespace

// The ways of BenchmarkPushWays. libraryPushes is push().
extern "C" __global__ void libraryPushes(__grid_constant__ const FifoHandle fifo, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    if (fifo.push(Trigger::user(kFirstUserKind, i)).result != WaitResult::Done) return;
}
#define PUSH_MANY(name, ...)                                                                 \
  extern "C" __global__ void name(__grid_constant__ const FifoHandle fifo, uint64_t count) { \
    pushMany<__VA_ARGS__>(fifo, count);                                                      \
  }
PUSH_MANY(fenceLast, 1, false, true, false)
PUSH_MANY(fenceFirst, 1, true, true, false)
PUSH_MANY(fenceTwo, 2, true, true, false)
PUSH_MANY(fenceFour, 4, true, true, false)
PUSH_MANY(fenceOwned, 1, true, true, true)
PUSH_MANY(relaxedOne, 1, false, false, false)
PUSH_MANY(relaxedFour, 4, false, false, false)
PUSH_MANY(relaxedOwned, 1, false, false, true)
#undef PUSH_MANY
