// Kernels of the tests of Device2DeviceSemaphoreHandle and MemoryChannelHandle.
#include <mscclgo/memory_channel.cuh>

using mscclgo::Device2DeviceSemaphoreHandle;
using mscclgo::MemoryChannelHandle;
using mscclgo::WaitResult;

namespace {

// word returns the data that a rank sends in a round.
__device__ uint32_t word(uint32_t rank, uint32_t round, uint32_t i) {
  return (rank + 1) * 0x9e3779b9u + round * 0x85ebca6bu + i;
}

// awaited waits with one thread, and returns the result to every thread of the block.
__device__ bool awaited(const MemoryChannelHandle& channel) {
  bool ok = true;
  if (threadIdx.x == 0) ok = channel.wait() == WaitResult::Done;
  return mscclgo::blockAll(ok);
}

__device__ void signalled(const MemoryChannelHandle& channel) {
  __syncthreads();
  if (threadIdx.x == 0) channel.signal();
}

}  // namespace

// exchange puts a block's words into the peer's buffer and signals, and checks
// what came, again and again in the same memory. Blocks have a channel each. The
// lower half of a buffer is sent, the upper half received, `words` words each. Odd
// rounds get instead of put. wrong counts old data, and 1 << 20 for each block
// whose wait failed.
extern "C" __global__ void exchange(const MemoryChannelHandle* channels, uint32_t rank, uint32_t words,
                                    uint32_t rounds, uint32_t* wrong) {
  const MemoryChannelHandle& channel = channels[blockIdx.x];
  uint32_t* mine = reinterpret_cast<uint32_t*>(channel.local);
  const uint32_t* arrived = mine + words;
  const uint64_t bytes = uint64_t(words) * 4;
  for (uint32_t round = 1; round <= rounds; ++round) {
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) mine[i] = word(rank, round, i);
    __syncthreads();
    bool ok;
    if (round % 2 == 0) {
      channel.put(bytes, 0, bytes, threadIdx.x, blockDim.x);
      signalled(channel);
      ok = awaited(channel);
    } else {
      signalled(channel);
      ok = awaited(channel);
      if (ok) channel.get(0, bytes, bytes, threadIdx.x, blockDim.x);
      __syncthreads();
    }
    if (!ok) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
      if (arrived[i] != word(1 - rank, round, i)) atomicAdd(wrong, 1u);
    signalled(channel);  // through with this round's memory
    if (!awaited(channel)) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
  }
}

// packets sends words as packets each round, without a signal, and checks what
// came. The flag is the round's. Two halves of the packet memory alternate: a peer
// that has sent round n has received round n - 1.
template <class Packet>
__device__ void packets(const MemoryChannelHandle& channel, uint32_t rank, uint32_t words, uint32_t rounds,
                        uint32_t* wrong) {
  uint32_t* mine = reinterpret_cast<uint32_t*>(channel.local);
  const uint32_t* arrived = mine + words;
  const uint64_t bytes = uint64_t(words) * 4, half = mscclgo::packetBytes<Packet>(bytes);
  for (uint32_t round = 1; round <= rounds; ++round) {
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) mine[i] = word(rank, round, i);
    __syncthreads();
    uint64_t at = round % 2 * half;
    channel.putPackets<Packet>(at, 0, bytes, threadIdx.x, blockDim.x, round);
    WaitResult result = channel.unpackPackets<Packet>(at, bytes, bytes, threadIdx.x, blockDim.x, round);
    if (!mscclgo::blockAll(result == WaitResult::Done)) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
      if (arrived[i] != word(1 - rank, round, i)) atomicAdd(wrong, 1u);
    __syncthreads();
  }
}

extern "C" __global__ void packets8(MemoryChannelHandle channel, uint32_t rank, uint32_t words,
                                    uint32_t rounds, uint32_t* wrong) {
  packets<mscclgo::LL8Packet>(channel, rank, words, rounds, wrong);
}
extern "C" __global__ void packets16(MemoryChannelHandle channel, uint32_t rank, uint32_t words,
                                     uint32_t rounds, uint32_t* wrong) {
  packets<mscclgo::LL16Packet>(channel, rank, words, rounds, wrong);
}

// elements writes the peer's elements one by one and reads them back.
extern "C" __global__ void elements(MemoryChannelHandle channel, uint32_t n, uint32_t* wrong) {
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    channel.write<uint16_t>(i, uint16_t(i * 3));
    if (channel.read<uint16_t>(i) != uint16_t(i * 3)) atomicAdd(wrong, 1u);
  }
}

// signals signals `times` times, every second time relaxed. One thread.
extern "C" __global__ void signals(MemoryChannelHandle channel, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) {
    if (i % 2 == 0) {
      channel.signal();
    } else {
      channel.relaxedSignal();
    }
  }
}

// waits waits so many times, every second time relaxed, and tells each result. One
// thread.
extern "C" __global__ void waits(MemoryChannelHandle channel, uint32_t times, uint32_t* results) {
  for (uint32_t i = 0; i < times; ++i)
    results[i] = uint32_t(i % 2 == 0 ? channel.wait() : channel.relaxedWait());
}

// polls polls a number of times and returns how many signals it consumed. One thread.
extern "C" __global__ void polls(MemoryChannelHandle channel, uint32_t times, uint32_t* consumed) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < times; ++i) n += channel.poll();
  *consumed = n;
}

// relay passes a token between two ranks by relaxed signals. One thread.
extern "C" __global__ void relay(Device2DeviceSemaphoreHandle semaphore, uint32_t first, uint32_t rounds,
                                 uint32_t* failed) {
  for (uint32_t i = 0; i < rounds; ++i) {
    if (first) semaphore.relaxedSignal();
    if (semaphore.relaxedWait() != WaitResult::Done) {
      *failed = 1;
      return;
    }
    if (!first) semaphore.relaxedSignal();
  }
}
