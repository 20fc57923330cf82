// The hierarchical all-reduce, for ranks on several hosts: threads of a host read
// and write each other's memory, and the hosts' proxies move between hosts what
// cannot be mapped, over whatever transport there is.
//
// ELEMENT and OPERATION are set when this is compiled.
#include <mscclgo/group.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/reduce.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

namespace {

using T = ELEMENT;
using Op = OPERATION;
using Line = uint4;                                // 16 bytes
using HostSum = Reducer<T, Op, Line>::Unfinished;  // a host's, of a line

MSCCLGO_DEVICE uint64_t divideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

constexpr uint32_t kMostBlocks = 4;  // hierBlocks of hier.go

// Hosts is one rank's place among the hosts. The first `owners` ranks of every
// host own a shard of the data each, the same on all hosts, and have a channel
// for each block to the owners of that shard on the other hosts.
struct Hosts {
  uint32_t hosts, host, owners, ranks;  // ranks on all hosts
  const PortChannelHandle* channels;    // those of block b begin at b * (hosts - 1)
  uint8_t* inbox;                       // two halves, each with a slot for each host
  uint32_t* calls;                      // how many calls used the inbox, for each of kMostBlocks blocks
  uint64_t slotBytes;

  // slot returns where a host's sums are kept during a call, as an offset in the inbox of
  // any owner of the shard. Calls use the halves in turn: a rank that has finished a call
  // has heard from all hosts, which have thus begun it and have ended the call before,
  // whose half comes next. The inbox has a count of its own: other calls of the group,
  // which a host may make alone, use its epochs too.
  MSCCLGO_DEVICE uint64_t slot(uint32_t of, uint32_t call) const {
    return (uint64_t(call % 2) * hosts + of) * slotBytes;
  }

  // end counts a call, also for the blocks that were not launched. Every thread calls it
  // once, last.
  MSCCLGO_DEVICE void end(uint32_t call) const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kMostBlocks; b += blockDim.x * gridDim.x)
      calls[b] = call + 1;
  }

  // exchange puts this host's sums, n bytes in its slot from `at` on, into the
  // other hosts' inboxes and waits for theirs. One thread.
  MSCCLGO_DEVICE bool exchange(uint32_t call, uint64_t at, uint64_t n) const {
    const PortChannelHandle* peers = channels + uint64_t(blockIdx.x) * (hosts - 1);
    uint64_t mine = slot(host, call) + at;
    for (uint32_t k = 0; k + 1 < hosts; ++k)
      if (peers[k].putWithSignal(mine, mine, n) != WaitResult::Done) return false;
    for (uint32_t k = 0; k + 1 < hosts; ++k)
      if (peers[k].wait() != WaitResult::Done) return false;
    return true;
  }
};

// reduce goes in three steps: owner r of a host sums up shard r of the host's
// inputs; the owners of a shard exchange their sums; each adds up the hosts' sums,
// in the order of the hosts, so that all get the same bits, and writes the result
// into its host's outputs. Between hosts go (hosts - 1) times the data, divided
// among the owners. A block works on its part of the shard and meets only the
// blocks of its number.
//
// In place is safe: only the owner of a shard reads it, and writes it after. The
// sums in the slot of this host stay until the call after the next, and by then
// all hosts have received them, so that no flush is needed.
MSCCLGO_DEVICE void reduce(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                           const Hosts& across, uint64_t bytes) {
  uint32_t call = across.calls[blockIdx.x];
  if (group.barrier() != WaitResult::Done) return;  // the host's inputs are there
  uint64_t lines = divideUp(bytes, sizeof(Line));
  uint64_t shard = divideUp(lines, across.owners);
  uint64_t part = divideUp(shard, gridDim.x);
  uint64_t begin = blockIdx.x * part;  // in the shard
  uint64_t end = begin + part < shard ? begin + part : shard;
  uint64_t first = group.rank * shard;
  if (first + end > lines) end = first < lines ? lines - first : 0;

  if (group.rank < across.owners && begin < end) {
    uint8_t* sums = across.inbox + across.slot(across.host, call);
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (first + i) * sizeof(Line);
      Reducer<T, Op, Line> sum(loadPartial<Line>(in.of<const uint8_t>(0) + at, bytes - at));
      for (uint32_t rank = 1; rank < group.size; ++rank)
        sum.add(loadPartial<Line>(in.of<const uint8_t>(rank) + at, bytes - at));
      storePartial(sums + i * sizeof(HostSum), sum.unfinished(), sizeof(HostSum));
    }
    __syncthreads();  // the part is there before one thread sends it
    bool ok = true;
    if (threadIdx.x == 0)
      ok = across.exchange(call, begin * sizeof(HostSum), (end - begin) * sizeof(HostSum));
    if (!blockAll(ok)) return;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (first + i) * sizeof(Line);
      const uint8_t* theirs = across.inbox + i * sizeof(HostSum);
      Reducer<T, Op, Line> sum(loadPartial<HostSum>(theirs + across.slot(0, call), sizeof(HostSum)));
      for (uint32_t host = 1; host < across.hosts; ++host)
        sum.add(loadPartial<HostSum>(theirs + across.slot(host, call), sizeof(HostSum)));
      Line result = sum.get(across.ranks);
      for (uint32_t k = 0; k < group.size; ++k) {
        uint32_t peer = (group.rank + k) % group.size;
        storePartial(out.of<uint8_t>(peer) + at, result, bytes - at);
      }
    }
  }
  if (group.barrier() != WaitResult::Done) return;  // the host's outputs are there
  across.end(call);
}

}  // namespace

// group, in and out are those of the host's ranks; `ranks` counts all hosts'.
extern "C" __global__ void __launch_bounds__(512, 1)
    hier(__grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in,
         __grid_constant__ const PeerMemory out, uint32_t hosts, uint32_t host, uint32_t owners,
         uint32_t ranks, const PortChannelHandle* channels, uint8_t* inbox, uint32_t* calls,
         uint64_t slotBytes, uint64_t bytes) {
  reduce(group, in, out, Hosts{hosts, host, owners, ranks, channels, inbox, calls, slotBytes}, bytes);
}
