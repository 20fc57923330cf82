// Two ranks send data to and fro: straight into the peer's memory with a signal
// behind it, or as packets that need none.
#include <mscclgo/memory_channel.cuh>

using namespace mscclgo;

// The local buffer holds what rank 0 sends, then, from `bytes` on, what arrives.
// Rank 1 sends back what arrived. One block.

// put copies and signals. The channel's remote is the peer's buffer.
extern "C" __global__ void put(const MemoryChannelHandle* channel, uint32_t rank, uint64_t bytes,
                               uint32_t rounds) {
  uint64_t outgoing = rank == 0 ? 0 : bytes;
  for (uint32_t round = 0; round < rounds; ++round) {
    bool ok = true;
    if (rank == 1) {
      if (threadIdx.x == 0) ok = channel->wait() == WaitResult::Done;
      if (!blockAll(ok)) return;
    }
    channel->put(bytes, outgoing, bytes, threadIdx.x, blockDim.x);
    __syncthreads();  // all threads have copied before one signals
    if (threadIdx.x == 0) channel->signal();
    if (rank == 0) {
      if (threadIdx.x == 0) ok = channel->wait() == WaitResult::Done;
      if (!blockAll(ok)) return;
    }
  }
}

namespace {

// A thread sends back the packets that it received itself, so it waits for no
// other thread. Rank 0 sends a packet again only when it is back, so an inbox is
// never overrun.
template <class Packet>
MSCCLGO_DEVICE void packets(const MemoryChannelHandle* channel, uint32_t rank, uint64_t bytes,
                            uint32_t rounds, uint32_t flag) {
  for (uint32_t round = 0; round < rounds; ++round, ++flag) {
    if (rank == 0) channel->putPackets<Packet>(0, 0, bytes, threadIdx.x, blockDim.x, flag);
    if (channel->unpackPackets<Packet>(0, bytes, bytes, threadIdx.x, blockDim.x, flag) != WaitResult::Done)
      return;
    if (rank == 1) channel->putPackets<Packet>(0, bytes, bytes, threadIdx.x, blockDim.x, flag);
  }
}

}  // namespace

// ll8 and ll16 send packets. The channel's remote is the peer's inbox. flag is
// the first of `rounds` flags that were not used before.
extern "C" __global__ void ll8(const MemoryChannelHandle* channel, uint32_t rank, uint64_t bytes,
                               uint32_t rounds, uint32_t flag) {
  packets<LL8Packet>(channel, rank, bytes, rounds, flag);
}
extern "C" __global__ void ll16(const MemoryChannelHandle* channel, uint32_t rank, uint64_t bytes,
                                uint32_t rounds, uint32_t flag) {
  packets<LL16Packet>(channel, rank, bytes, rounds, flag);
}
