#include <mscclgo/memory_channel.cuh>

using namespace mscclgo;

// send copies the buffer into the peer's and then signals. One block.
extern "C" __global__ void send(const MemoryChannelHandle* channel, uint64_t bytes) {
  channel->put(0, 0, bytes, threadIdx.x, blockDim.x);
  __syncthreads();  // all threads have stored before one signals
  if (threadIdx.x == 0) channel->signal();
}

// receive returns when the peer has signalled. One thread.
extern "C" __global__ void receive(const MemoryChannelHandle* channel) { channel->wait(); }
