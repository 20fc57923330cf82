#include <mscclgo/memory_channel.cuh>

using namespace mscclgo;

// exchange sends `bytes` to the peer and receives as many, `rounds` times, by packets: each
// holds data and a flag, and is written in one store. The channel's remote is the peer's
// inbox; the buffer holds what is sent, and behind it what was received. One block.
extern "C" __global__ void exchange(const MemoryChannelHandle* channel, uint64_t bytes, uint32_t rounds) {
  uint64_t half = packetBytes<LL8Packet>(bytes);
  for (uint32_t round = 0; round < rounds; ++round) {
    uint32_t flag = round + 1;            // 0 is what fresh memory holds
    uint64_t place = (round % 2) * half;  // the peer may still read the packets of the last round
    channel->putPackets<LL8Packet>(place, 0, bytes, threadIdx.x, blockDim.x, flag);
    if (channel->unpackPackets<LL8Packet>(place, bytes, bytes, threadIdx.x, blockDim.x, flag) !=
        WaitResult::Done)
      return;
  }
}
