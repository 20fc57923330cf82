// Two ranks send to each other at the same time, by two kinds of channel: the
// hosts' copy engines move the data (PortChannel), or the kernels' threads do
// (MemoryChannel).
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// The buffer holds what goes out; the peer's goes into the inbox.

// port asks the host once a round and waits for the peer's data. One thread.
extern "C" __global__ void port(const PortChannelHandle* channel, uint64_t bytes, uint32_t rounds) {
  for (uint32_t round = 0; round < rounds; ++round) {
    if (channel->putWithSignal(0, 0, bytes) != WaitResult::Done) return;
    if (channel->wait() != WaitResult::Done) return;
  }
  channel->flush();  // the buffer may change once the kernel has ended
}

// memory lets each block copy a part over a channel of its own. Blocks with the same
// number on the two ranks keep step; others may be ahead or behind.
extern "C" __global__ void memory(const MemoryChannelHandle* channels, uint32_t peer, uint64_t bytes,
                                  uint32_t rounds) {
  const MemoryChannelHandle channel = channels[blockIdx.x * 2 + peer];
  uint64_t part = (bytes + gridDim.x - 1) / gridDim.x;
  part = (part + 15) / 16 * 16;  // so that parts are aligned
  uint64_t first = min(blockIdx.x * part, bytes);
  uint64_t mine = min(part, bytes - first);
  for (uint32_t round = 0; round < rounds; ++round) {
    channel.put(first, first, mine, threadIdx.x, blockDim.x);
    __syncthreads();  // all threads have copied before one signals
    bool ok = true;
    if (threadIdx.x == 0) {
      channel.signal();
      ok = channel.wait() == WaitResult::Done;
    }
    if (!blockAll(ok)) return;
  }
}
