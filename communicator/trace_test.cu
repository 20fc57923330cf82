// Kernels of the tests of timelines.
#include <mscclgo/group.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// everything has each rank put, signal and wait in a ring, in each round once by each means:
// a memory channel, packets, a put of the host's, one of the thread's own, a barrier.
extern "C" __global__ void everything(MemoryChannelSet memory, PortChannelSet ports,
                                      __grid_constant__ const GroupHandle group, uint32_t rounds) {
  uint32_t next = (group.rank + 1) % group.size, previous = (group.rank + group.size - 1) % group.size;
  const MemoryChannelHandle& to = memory.to(next, blockIdx.x);
  const MemoryChannelHandle& from = memory.to(previous, blockIdx.x);
  for (uint32_t round = 0; round < rounds; ++round) {
    to.put(0, 0, 256, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) to.signal();
    if (threadIdx.x == 0) from.wait();
    __syncthreads();
    if (group.barrier() != WaitResult::Done) return;
    to.putPackets(4096 * (blockIdx.x + 1), 0, 256, threadIdx.x, blockDim.x, round + 1);
    from.unpackPackets(4096 * (blockIdx.x + 1), 0, 256, threadIdx.x, blockDim.x, round + 1);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      ports.to(next).putWithSignal(16384, 0, 4096);
      ports.to(previous).wait();
      ports.to(next).flush();
      ports.to(next).put(16384, 0, 64);
      ports.to(next).signal();
      ports.to(previous).wait();
    }
    if (group.barrier() != WaitResult::Done) return;
  }
}

// sendRound has each rank put and signal over a port in a ring.
extern "C" __global__ void sendRound(PortChannelSet ports, uint32_t rank, uint32_t rounds) {
  uint32_t next = (rank + 1) % ports.size, previous = (rank + ports.size - 1) % ports.size;
  for (uint32_t round = 0; round < rounds; ++round) {
    ports.to(next).putWithSignal(0, 0, 1024);
    if (ports.to(previous).wait() != WaitResult::Done) return;
    ports.to(next).flush();
  }
}

// awaitNobody waits for a signal that rank 1 does not send.
extern "C" __global__ void awaitNobody(MemoryChannelSet memory, uint32_t rank) {
  if (rank == 0) memory.to(1).wait();
}
