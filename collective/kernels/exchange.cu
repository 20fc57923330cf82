// The exchange: the hosts' copy engines move parts to their places at the peers. For the largest
// sizes, and wherever peers' memory cannot be mapped. It does every collective that only moves
// data.
#include <mscclgo/copy.cuh>
#include <mscclgo/group.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/wait.cuh>

using namespace mscclgo;

// Peers are `count` ranks in a row; the first lies `first` ahead.
struct Peers {
  uint32_t first, count;
};

// Exchange is one rank's view of a call.
struct Exchange {
  const PortChannelHandle* channels;
  uint32_t rank, ranks;
  Peers to, from;
  uint64_t dst;     // where a part goes in the peers' outputs
  uint64_t src;     // where the parts start in this rank's input,
  uint64_t stride;  // and their distance: the part for rank p is the pth
  uint64_t bytes;   // of a part
  uint64_t lead;    // of a part, which threads move

  MSCCLGO_DEVICE uint32_t peer(Peers peers, uint32_t i) const { return (rank + peers.first + i) % ranks; }

  // move puts the parts but for their leads, by a thread for each rank, and waits for what is put
  // here.
  //
  // A put must not come before its reader has begun the call. So each rank first signals to its
  // writers that its output may be written. Signals of a channel arrive in order, so the second one
  // means data. After a flush of the channel the data have arrived, and may be changed here. The
  // flush goes with the put, since it would take another trip to the host later.
  MSCCLGO_DEVICE void move() const {
    uint32_t i = threadIdx.x;
    if (i < from.count && channels[peer(from, i)].signal() != WaitResult::Done) return;
    if (i < to.count) {
      uint32_t p = peer(to, i);
      const PortChannelHandle& channel = channels[p];
      if (channel.wait() != WaitResult::Done) return;
      uint64_t at = src + p * stride + lead;
      if (channel.putWithSignalAndFlush(dst + lead, at, bytes - lead) != WaitResult::Done) return;
    }
    if (i < from.count) channels[peer(from, i)].wait();
  }
};

// exchange: block 0 has the host move the parts. The other blocks copy this rank's own part, from
// `own` to `place`. Where the peers' memory is mapped, they also write the leads meanwhile, since
// the copy engines start some microseconds later. input is this rank's, out all ranks' outputs.
extern "C" __global__ void exchange(__grid_constant__ const Exchange call, const uint8_t* own, uint8_t* place,
                                    __grid_constant__ const GroupHandle group, const uint8_t* input,
                                    __grid_constant__ const PeerMemory out) {
  if (blockIdx.x == 0) {
    call.move();
    return;
  }
  uint32_t thread = (blockIdx.x - 1) * blockDim.x + threadIdx.x, threads = (gridDim.x - 1) * blockDim.x;
  if (call.lead > 0) {
    if (group.relaxedBarrier() != WaitResult::Done) return;  // all outputs may be written
    for (uint32_t i = 0; i < call.to.count; ++i) {
      uint32_t p = call.peer(call.to, i);
      copy(out.of<uint8_t>(p) + call.dst, input + call.src + p * call.stride, call.lead, thread, threads);
    }
  }
  if (own != place && own != nullptr) copy(place, own, call.bytes, thread, threads);
  if (call.lead > 0) group.barrier();  // all leads are written
}
