// All headers as kernels include them that write events for a timeline.
#define MSCCLGO_TRACE
#include <mscclgo/collective.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// record makes a call of each kind that writes an event.
extern "C" __global__ void record(MemoryChannelSet memory, PortChannelSet ports,
                                  __grid_constant__ const GroupHandle group, FifoHandle fifo) {
  const MemoryChannelHandle& channel = memory.to(0);
  const PortChannelHandle& port = ports.to(0);
  channel.put(0, 0, 16, threadIdx.x, blockDim.x);
  channel.get(0, 0, 16, threadIdx.x, blockDim.x);
  channel.putPackets(0, 0, 16, threadIdx.x, blockDim.x, 1);
  channel.unpackPackets(0, 0, 16, threadIdx.x, blockDim.x, 1);
  channel.signal(), channel.relaxedSignal(), channel.wait(), channel.relaxedWait(), channel.semaphore.poll();
  port.put(0, 0, 16), port.signal(), port.wait(), port.poll(), port.flush();
  port.putWithSignalAndFlush(0, 0, 16);
  PushResult pushed = fifo.push(Trigger::user(200));
  fifo.relaxedPush(Trigger::user(200));
  fifo.sync(pushed.position);
  group.barrier();
  Rounds rounds(group, 0);
  rounds.signal();
  rounds.wait(1), rounds.waitFor(0, 1);
  rounds.end(1);
  Inboxes<LL16Packet> inboxes(group);
  inboxes.begin();
  inboxes.end();
}
