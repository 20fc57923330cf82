// Two all-gathers: each rank's data goes to all ranks, which store the parts in
// rank order. Any size and alignment.
#include <mscclgo/group.cuh>
#include <mscclgo/packet.cuh>

using namespace mscclgo;

namespace {

using Packet = LL16Packet;

// inbox gives the packets that `from` has for `to`, in the half of the scratch
// that belongs to this call. Calls take the halves in turn, and that is safe:
// whoever has finished a call has heard from all ranks in it, so all were
// through with the call before, whose half comes next.
MSCCLGO_DEVICE Packet* inbox(const GroupHandle& group, uint32_t to, uint32_t from, uint32_t epoch) {
  uint64_t half = group.scratchSize / 2 / sizeof(Packet) * sizeof(Packet);
  uint64_t slot = half / group.size / sizeof(Packet) * sizeof(Packet);
  return reinterpret_cast<Packet*>(group.scratch(to) + epoch % 2 * half + from * slot);
}

}  // namespace

#define PARAMETERS                                                                                      \
  __grid_constant__ const GroupHandle group, const uint8_t *in, __grid_constant__ const PeerMemory out, \
      uint64_t bytes

// packets sends the data as packets: one trip, no barrier, twice the bytes. For
// small sizes; an inbox must hold the data.
extern "C" __global__ void packets(PARAMETERS) {
  uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  uint32_t epoch = group.epoch();
  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;  // each rank starts elsewhere, so that no link is crowded
    putPackets(inbox(group, peer, group.rank, epoch), in, bytes, thread, threads, epoch);
  }
  uint8_t* mine = out.of<uint8_t>(group.rank);
  if (mine + group.rank * bytes != in) copy(mine + group.rank * bytes, in, bytes, thread, threads);
  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;
    Watch watch = group.watch;
    watch.peer = peer;
    const Packet* theirs = inbox(group, group.rank, peer, epoch);
    if (unpackPackets(mine + peer * bytes, theirs, bytes, thread, threads, epoch, watch) != WaitResult::Done)
      return;
  }
  group.nextEpoch();
}

// direct writes the data straight into all outputs, between two barriers.
extern "C" __global__ void direct(PARAMETERS) {
  uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  if (group.barrier() != WaitResult::Done) return;  // all outputs may be written
  for (uint32_t k = 0; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;
    uint8_t* theirs = out.of<uint8_t>(peer) + group.rank * bytes;
    if (theirs != in) copy(theirs, in, bytes, thread, threads);
  }
  group.barrier();  // all outputs are written
}
