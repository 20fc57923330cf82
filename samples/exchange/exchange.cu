// The exchange: parts go straight to their places at the peers, moved by the
// hosts' copy engines. For the largest sizes, and wherever peers' memory cannot
// be mapped. It does every collective that only moves data.
#include <mscclgo/copy.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/wait.cuh>

using namespace mscclgo;

// Peers are some ranks in a row: `count`, of which the first lies `first` ahead.
struct Peers {
  uint32_t first, count;
};

// exchange puts `bytes` bytes to each rank of `to`: for rank p, what lies p *
// stride behind `src` in this rank's input goes to `dst` in that rank's output.
// Then it waits for what the ranks of `from` put here. Block 0 has a thread for
// each rank, the others copy what stays on this rank, from `own` to `place`.
//
// A put may come before its reader has begun the call, so each rank first tells
// those that put to it that its output may be written, by a signal; signals of a
// channel arrive in order, so the second one tells of data. What is put has
// arrived when the channel is flushed, and may then be changed here; that is asked
// for with the put, since it takes another trip to the host later.
extern "C" __global__ void exchange(const PortChannelHandle* channels, uint32_t rank, uint32_t ranks,
                                    Peers to, Peers from, uint64_t dst, uint64_t src, uint64_t stride,
                                    uint64_t bytes, const uint8_t* own, uint8_t* place) {
  if (blockIdx.x > 0) {
    uint32_t blocks = gridDim.x - 1;
    if (own != place && own != nullptr)
      copy(place, own, bytes, (blockIdx.x - 1) * blockDim.x + threadIdx.x, blocks * blockDim.x);
    return;
  }
  if (threadIdx.x < from.count) {
    const PortChannelHandle& peer = channels[(rank + from.first + threadIdx.x) % ranks];
    if (peer.signal() != WaitResult::Done) return;
  }
  if (threadIdx.x < to.count) {
    uint32_t p = (rank + to.first + threadIdx.x) % ranks;
    const PortChannelHandle& peer = channels[p];
    if (peer.wait() != WaitResult::Done) return;
    if (peer.putWithSignalAndFlush(dst, src + p * stride, bytes) != WaitResult::Done) return;
  }
  if (threadIdx.x < from.count) {
    channels[(rank + from.first + threadIdx.x) % ranks].wait();
  }
}
