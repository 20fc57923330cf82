// What the ranks of a soak do besides collectives.
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// shift puts 1 KiB into a slot of the inbox of the rank to the right and waits for the left
// one's, by memory channels. With mute set it does not signal.
extern "C" __global__ void shift(const MemoryChannelHandle* channels, uint32_t right, uint32_t left,
                                 uint64_t slot, uint64_t source, bool mute) {
  channels[right].put(slot, source, 1024, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!mute) channels[right].signal();
  channels[left].wait();
}

// portShift is shift by port channels.
extern "C" __global__ void portShift(const PortChannelHandle* channels, uint32_t right, uint32_t left,
                                     uint64_t slot, uint64_t source, bool mute) {
  if (!mute) {
    channels[right].putWithSignal(slot, source, 1024);
  } else {
    channels[right].put(slot, source, 1024);
  }
  if (channels[left].wait() == WaitResult::Done) channels[right].flush();
}

// report pushes a trigger of the user's and waits until the host has served it.
extern "C" __global__ void report(__grid_constant__ const FifoHandle fifo, uint32_t step) {
  PushResult pushed = fifo.push(Trigger::user(kFirstUserKind, step));
  if (pushed.result == WaitResult::Done) fifo.sync(pushed.position);
}

// wrong puts to a memory that the service does not know.
extern "C" __global__ void wrong(const PortChannelHandle* channels, uint32_t right) {
  channels[right].base.put(4321, 0, 0, 0, 64);
  channels[right].flush();
}
