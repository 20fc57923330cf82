#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// The root writes its buffer to a peer's, and the peer waits for it: by the threads of a
// block where memory is mapped, and by the host elsewhere. One block.
extern "C" __global__ void sendMapped(const MemoryChannelHandle* channel, uint64_t bytes) {
  channel->put(0, 0, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) channel->signal();
}
extern "C" __global__ void sendPort(const PortChannelHandle* channel, uint64_t bytes) {
  if (threadIdx.x == 0) channel->putWithSignalAndFlush(0, 0, bytes);
}
extern "C" __global__ void receiveMapped(const MemoryChannelHandle* channel) {
  if (threadIdx.x == 0) channel->wait();
}
extern "C" __global__ void receivePort(const PortChannelHandle* channel) {
  if (threadIdx.x == 0) channel->wait();
}
