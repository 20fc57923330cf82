// Kernels of the tests of check.cuh: each does what a check finds.
#include <mscclgo/collective.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/pipe.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// ranges has one thread of one block access memory outside a channel's buffers.
extern "C" __global__ void ranges(MemoryChannelHandle channel, uint32_t which, uint64_t at, uint64_t other,
                                  uint64_t bytes) {
  if (blockIdx.x != 1 || threadIdx.x != 3) return;
  if (which == 0) channel.put(at, other, bytes, 0, 1);
  if (which == 1) channel.get(at, other, bytes, 0, 1);
  if (which == 2) channel.putPackets(at, other, bytes, 0, 1, 1);
  if (which == 3) channel.unpackPackets(at, other, bytes, 0, 1, 1);
  if (which == 4) channel.write<uint64_t>(at, channel.read<uint64_t>(other));
}

// lines has all threads of a block carry LL128 packets.
extern "C" __global__ void lines(MemoryChannelHandle channel, uint32_t first) {
  channel.putPackets<LL128Packet>(0, 0, 480, threadIdx.x + first, blockDim.x, 1);
}

// unpackLines waits for LL128 packets.
extern "C" __global__ void unpackLines(MemoryChannelHandle channel) {
  channel.unpackPackets<LL128Packet>(0, 0, 480, threadIdx.x, blockDim.x, 1);
}

// linesOf is lines without a channel.
extern "C" __global__ void linesOf(LL128Packet* packets, const void* data) {
  putPackets(packets, data, 480, threadIdx.x, blockDim.x, 1);
}

extern "C" __global__ void meet(GroupHandle group) { group.barrier(); }
extern "C" __global__ void number(GroupHandle group) { group.nextEpoch(); }
extern "C" __global__ void count(GroupHandle group, uint32_t block) { Rounds(group, block).end(0); }

// inboxes sends packet `index` of a thread.
extern "C" __global__ void inboxes(GroupHandle group, uint64_t index) {
  Inboxes<LL8Packet> inboxes(group);
  inboxes.begin();
  inboxes.send(peer(group, 1), index, {});
  inboxes.end();
}

// open does not end a call.
extern "C" __global__ void open(GroupHandle group) {
  Inboxes<LL8Packet> inboxes(group);
  inboxes.begin();
}

// one has one thread make a call that is the block's, and the others end, or come to a barrier of theirs.
extern "C" __global__ void one(GroupHandle group, uint32_t which) {
  if (threadIdx.x == 7) {
    if (which < 2) group.barrier();
    if (which == 2) group.nextEpoch();
    if (which == 3) Rounds(group, 0).signal();
  }
  if (which == 1) __syncthreads();
}

extern "C" __global__ void window(GroupHandle group) { *group.window(2) = 1; }

extern "C" __global__ void warps(GroupHandle group) { Inboxes<LL128Packet> inboxes(group); }

extern "C" __global__ void each(GroupHandle group) {
  forEachRank(group, [](uint32_t, uint32_t, uint32_t) {});
}

// chosen uses a channel of a set.
extern "C" __global__ void chosen(MemoryChannelSet set, uint32_t peer, uint32_t channel) {
  set.to(peer, channel).signal();
}

// unmade uses a handle in device memory that nobody has written.
extern "C" __global__ void unmade(const MemoryChannelHandle* memory, const PortChannelHandle* port,
                                  uint32_t which) {
  if (which == 0) memory->signal();
  if (which == 1) port->flush();
}

// peers sends a packet to a rank, or receives one from it.
extern "C" __global__ void peers(GroupHandle group, uint32_t other, uint32_t receives) {
  Inboxes<LL8Packet> inboxes(group);
  inboxes.begin();
  Piece<LL8Packet> piece = {};
  if (receives == 0) inboxes.send(other, 0, piece);
  if (receives == 1) inboxes.receive(other, 0, piece);
  inboxes.end();
}

extern "C" __global__ void memories(PeerMemory memory) { *memory.of<uint8_t>(2) = 1; }

// pipes uses the end of a pipe otherwise than it was made.
extern "C" __global__ void pipes(PipeHandle pipe, uint32_t which) {
  if (which == 0) pipe.send(nullptr, 8);
  if (which == 1) pipe.recvReduce<float, Sum>(nullptr, nullptr, 2, 2);
  if (which == 2) pipe.post(nullptr, 8);
}

__device__ __noinline__ void sendByte(const MemoryChannelHandle& channel, uint64_t at,
                                      Site site = Site::here()) {
  channel.put(at, 0, 1, 0, 1, site);
}

// through gives a function its line.
extern "C" __global__ void through(MemoryChannelHandle channel, uint64_t at) {
  sendByte(channel, 0);
  sendByte(channel, at);
}

#if defined(MSCCLGO_CHECK)
#define TEN "0123456789"
#define FIFTY TEN TEN TEN TEN TEN

// longest has a text that has to make room for the line.
extern "C" __global__ void longest(GroupHandle group) {
  detail::fault(group.watch, kNoPeer, Site::here(), FIFTY FIFTY, FIFTY FIFTY, FIFTY FIFTY);
}
#endif

// elsewhere is in a file whose path is too long.
#line 40000 "/folder/0123456789012345678901234567890123456789012345678901234567890123456789.cu"
extern "C" __global__ void elsewhere(GroupHandle group) { group.barrier(); }
#line 7 "/folder/near.cu"
extern "C" __global__ void nearby(GroupHandle group) { group.barrier(); }
