// The hierarchical reductions, for ranks on several hosts: threads of a host read and write the
// memory of its ranks, and proxies move data between hosts, over any transport. A host sends one
// sum of its ranks' data, whatever their number.
//
// The compilation sets ELEMENT and OPERATION.
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

constexpr uint32_t kMostBlocks = 4;            // hierBlocks of hier.go
constexpr uint32_t kEveryHost = ~uint32_t(0);  // has the result

// Hosts is one rank's place among the hosts. The first `owners` ranks of every host own a shard of
// the data each, the same on all hosts. They have a channel for each block to the shard's owners on
// the other hosts. Channels are in the order of the peers' ranks, so each shard numbers the hosts
// in the order of its owners' ranks (byTwins of hier.go).
struct Hosts {
  uint32_t hosts, host, owners, ranks;  // ranks on all hosts
  const PortChannelHandle* channels;    // block b's begin at b * (hosts - 1)
  uint8_t* inbox;                       // two halves, each with as many slots as a call needs
  uint32_t* calls;                      // how many calls used the inbox, for each of kMostBlocks blocks
  uint64_t halfBytes, slotBytes;

  // to returns this block's channel to the owner of the shard on another host.
  MSCCLGO_DEVICE const PortChannelHandle& to(uint32_t other) const {
    return channels[uint64_t(blockIdx.x) * (hosts - 1) + (other < host ? other : other - 1)];
  }

  // slot returns the place of a host's sums during a call, as an offset in the inbox of any owner
  // of the shard. Calls use the two halves in turn. A rank that has finished a call has had a
  // signal from all hosts: so all have begun it, and have ended the call before, which used the
  // other half. In a small call a rank or a block may have no part. Block 0 of owner 0 always has
  // one, the host's blocks 0 meet it in barriers before and after, and a launch ends with its last
  // block. So calls of all kinds share the inbox, whatever slots they have. The inbox has a count
  // of its own: other calls of the group use its epochs too, and a host may make such calls alone.
  MSCCLGO_DEVICE uint64_t slot(uint32_t of, uint32_t call) const {
    return call % 2 * halfBytes + of * slotBytes;
  }

  // end counts a call, also for the blocks that were not launched. Every thread calls it
  // once, last.
  MSCCLGO_DEVICE void end(uint32_t call) const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kMostBlocks; b += blockDim.x * gridDim.x)
      calls[b] = call + 1;
  }

  // exchange puts this host's sums, n bytes in its slot from `at` on, into the inboxes of the other
  // hosts, or of the only host with the result, and waits for theirs. Hosts without sums get a
  // signal: slot() needs a signal from each host to each in every call. One thread.
  MSCCLGO_DEVICE bool exchange(uint32_t call, uint64_t at, uint64_t n, uint32_t only = kEveryHost) const {
    const PortChannelHandle* peers = channels + uint64_t(blockIdx.x) * (hosts - 1);
    uint64_t mine = slot(host, call) + at;
    for (uint32_t k = 0; k + 1 < hosts; ++k) {
      bool gets = only == kEveryHost || only == (k < host ? k : k + 1);
      WaitResult result = gets ? peers[k].putWithSignal(mine, mine, n) : peers[k].signal();
      if (result != WaitResult::Done) return false;
    }
    return hear();
  }

  // hear waits for a signal from each other host. One thread.
  MSCCLGO_DEVICE bool hear() const {
    const PortChannelHandle* peers = channels + uint64_t(blockIdx.x) * (hosts - 1);
    for (uint32_t k = 0; k + 1 < hosts; ++k)
      if (peers[k].wait() != WaitResult::Done) return false;
    return true;
  }
};

// sumOfHost reduces a line of this host's inputs, n bytes at `at`.
MSCCLGO_DEVICE Reducer<T, Op, Line> sumOfHost(const GroupHandle& group, const PeerMemory& in, uint64_t at,
                                              uint64_t n) {
  Reducer<T, Op, Line> sum(loadPartial<Line>(in.of<const uint8_t>(0) + at, n));
  for (uint32_t rank = 1; rank < group.size; ++rank)
    sum.add(loadPartial<Line>(in.of<const uint8_t>(rank) + at, n));
  return sum;
}

// Part is a block's part of its rank's shard: the lines from begin to end of the shard, which
// starts at line `first` of the data. It is empty on ranks without a shard.
struct Part {
  uint64_t first, begin, end;

  MSCCLGO_DEVICE Part(const GroupHandle& group, const Hosts& across, uint64_t bytes) {
    uint64_t lines = divideUp(bytes, sizeof(Line));
    uint64_t shard = divideUp(lines, across.owners);
    uint64_t part = divideUp(shard, gridDim.x);
    begin = blockIdx.x * part;
    end = begin + part < shard ? begin + part : shard;
    first = group.rank * shard;
    if (first + end > lines) end = first < lines ? lines - first : 0;
    if (group.rank >= across.owners || begin > end) end = begin;
  }
};

// deliver writes a line of the result, of n bytes at `at`, into the outputs of all ranks of this host.
MSCCLGO_DEVICE void deliver(const GroupHandle& group, const PeerMemory& out, uint64_t at, const Line& result,
                            uint64_t n) {
  for (uint32_t k = 0; k < group.size; ++k)
    storePartial(out.of<uint8_t>((group.rank + k) % group.size) + at, result, n);
}

// reduce goes in three steps: owner r of a host sums up shard r of the host's inputs; the owners of
// a shard exchange their sums; each adds up the hosts' sums, in the order of the hosts, so that all
// get the same bits, and writes the result into its host's outputs. Between hosts go (hosts - 1)
// times the data, divided among the owners. A block works on its part of the shard, and waits only
// for the blocks of its number.
//
// With a root, which is rank `root` of host `only`, that host alone gets the others'
// sums, and only the root's output is written.
//
// In place is safe: only the owner of a shard reads it, and writes it after. The sums in the slot
// of this host stay until the call after the next. By then all hosts have received them, so no
// flush is needed.
MSCCLGO_DEVICE void reduce(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                           const Hosts& across, uint64_t bytes, uint32_t only = kEveryHost,
                           uint32_t root = 0) {
  uint32_t call = across.calls[blockIdx.x];
  if (group.barrier() != WaitResult::Done) return;  // the host's inputs are there
  auto [first, begin, end] = Part(group, across, bytes);

  if (begin < end) {
    uint8_t* sums = across.inbox + across.slot(across.host, call);
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (first + i) * sizeof(Line);
      storePartial(sums + i * sizeof(HostSum), sumOfHost(group, in, at, bytes - at).unfinished(),
                   sizeof(HostSum));
    }
    __syncthreads();  // the part is there before one thread sends it
    bool ok = true;
    if (threadIdx.x == 0)
      ok = across.exchange(call, begin * sizeof(HostSum), (end - begin) * sizeof(HostSum), only);
    if (!blockAll(ok)) return;
    if (only != kEveryHost && only != across.host) end = begin;  // the result is elsewhere
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (first + i) * sizeof(Line);
      const uint8_t* theirs = across.inbox + i * sizeof(HostSum);
      Reducer<T, Op, Line> sum(loadPartial<HostSum>(theirs + across.slot(0, call), sizeof(HostSum)));
      for (uint32_t host = 1; host < across.hosts; ++host)
        sum.add(loadPartial<HostSum>(theirs + across.slot(host, call), sizeof(HostSum)));
      Line result = sum.get(across.ranks);
      if (only == kEveryHost) {
        deliver(group, out, at, result, bytes - at);
      } else {
        storePartial(out.of<uint8_t>(root) + at, result, bytes - at);
      }
    }
  }
  if (group.barrier() != WaitResult::Done) return;  // the host's outputs are there
  across.end(call);
}

// around is the part of reduce() between its barriers, for the result on all hosts, in a ring of
// the owners of a shard. Each host sends 2 (hosts - 1) / hosts times the data. The block's part has
// a segment for each host. In turn t a host works on the segment t before its own. First it adds
// its sum to the one from the host before, and after `hosts` turns it has the result of one
// segment; then results go around. Slot 0 has the sums, slot 1 the results.
//
// When a host ends a call it has a result with a sum of each host, as slot() needs. In place is
// safe: a segment's inputs are read before its result is known, or line by line in the same turn.
MSCCLGO_DEVICE bool around(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                           const Hosts& across, uint32_t call, const Part& part, uint64_t bytes) {
  uint32_t hosts = across.hosts, turns = 2 * hosts - 1;
  uint64_t segment = divideUp(part.end - part.begin, hosts);
  uint64_t sums = across.slot(0, call), results = across.slot(1, call);
  bool ok = true;
  for (uint32_t t = 0; t < turns; ++t) {
    uint64_t begin = part.begin + (across.host + 2 * hosts - t) % hosts * segment;
    uint64_t end = begin + segment < part.end ? begin + segment : part.end;
    if (begin >= end) continue;  // on all hosts
    if (t > 0 && threadIdx.x == 0)
      ok = ok && across.to((across.host + hosts - 1) % hosts).wait() == WaitResult::Done;
    if (!blockAll(ok)) return false;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (part.first + i) * sizeof(Line);
      uint8_t *sumAt = across.inbox + sums + i * sizeof(HostSum),
              *resultAt = across.inbox + results + i * sizeof(Line);
      if (t >= hosts) {
        deliver(group, out, at, loadPartial<Line>(resultAt, sizeof(Line)), bytes - at);
        continue;
      }
      Reducer<T, Op, Line> sum = sumOfHost(group, in, at, bytes - at);
      if (t > 0) sum.add(loadPartial<HostSum>(sumAt, sizeof(HostSum)));
      if (t + 1 < hosts) {
        storePartial(sumAt, sum.unfinished(), sizeof(HostSum));
        continue;
      }
      Line result = sum.get(across.ranks);
      if (hosts > 1) storePartial(resultAt, result, sizeof(Line));  // else there is no slot 1
      deliver(group, out, at, result, bytes - at);
    }
    __syncthreads();  // the segment is there before one thread sends it
    if (threadIdx.x != 0 || t + 1 == turns) continue;
    uint64_t item = t + 1 < hosts ? sizeof(HostSum) : sizeof(Line);
    uint64_t from = (t + 1 < hosts ? sums : results) + begin * item;
    ok = across.to((across.host + 1) % hosts).putWithSignal(from, from, (end - begin) * item) ==
         WaitResult::Done;
  }
  return blockAll(ok);
}

constexpr uint64_t kPieces = 8;        // of a block's part in a tree, at most
constexpr uint64_t kPieceLines = 256;  // at least

// Node is a host's place in a block's binary tree. Hosts with children in the trees of even blocks
// are leaves in the trees of odd blocks, so that all send about as much: Sanders, Speck, Träff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
struct Node {
  uint32_t hosts, number;  // the root is 0; the children of v are 2v + 1 and 2v + 2

  MSCCLGO_DEVICE explicit Node(const Hosts& across) : hosts(across.hosts), number(swap(across.host)) {}

  // swap makes a number of a host, and a host of a number.
  MSCCLGO_DEVICE uint32_t swap(uint32_t v) const { return blockIdx.x % 2 ? hosts - 1 - v : v; }

  MSCCLGO_DEVICE uint32_t parent() const { return swap((number - 1) / 2); }
  MSCCLGO_DEVICE uint32_t children() const {
    uint32_t first = 2 * number + 1;
    return first >= hosts ? 0 : first + 1 < hosts ? 2 : 1;
  }
  MSCCLGO_DEVICE uint32_t child(uint32_t k) const { return swap(2 * number + 1 + k); }
};

// upAndDown is the part of reduce() between its barriers, for the result on all hosts, in a tree of
// the owners of a shard. Sums go up to the root and results down, in pieces, one after the other.
// Slot 0 has a host's sums and later the result, slots 1 and 2 the sums of its children. The result
// of a piece takes the place of its sums: it comes from a parent that has received them, or the
// host is the root and sends none.
//
// When a host ends a call it has a result with a sum of each host, as slot() needs. In place is
// safe: a piece's result comes when the root has the sums of all hosts.
MSCCLGO_DEVICE bool upAndDown(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                              const Hosts& across, uint32_t call, const Part& part, uint64_t bytes) {
  Node node(across);
  uint32_t children = node.children();
  uint64_t piece = divideUp(part.end - part.begin, kPieces);
  if (piece < kPieceLines) piece = kPieceLines;
  uint64_t mine = across.slot(0, call);
  bool ok = true;
  for (uint64_t begin = part.begin; begin < part.end; begin += piece) {
    uint64_t end = begin + piece < part.end ? begin + piece : part.end;
    uint64_t base = mine + begin * sizeof(HostSum);  // of the piece, also of its result
    if (threadIdx.x == 0)
      for (uint32_t k = 0; k < children; ++k) ok = ok && across.to(node.child(k)).wait() == WaitResult::Done;
    if (!blockAll(ok)) return false;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (part.first + i) * sizeof(Line);
      Reducer<T, Op, Line> sum = sumOfHost(group, in, at, bytes - at);
      for (uint32_t k = 0; k < children; ++k) {
        const uint8_t* theirs = across.inbox + across.slot(1 + k, call) + i * sizeof(HostSum);
        sum.add(loadPartial<HostSum>(theirs, sizeof(HostSum)));
      }
      if (node.number != 0) {
        storePartial(across.inbox + mine + i * sizeof(HostSum), sum.unfinished(), sizeof(HostSum));
        continue;
      }
      Line result = sum.get(across.ranks);
      storePartial(across.inbox + base + (i - begin) * sizeof(Line), result, sizeof(Line));
      deliver(group, out, at, result, bytes - at);
    }
    __syncthreads();  // the piece is there before one thread sends it
    if (threadIdx.x != 0) continue;
    if (node.number != 0) {
      uint64_t theirs = across.slot(1 + (node.number - 1) % 2, call) + begin * sizeof(HostSum);
      ok = across.to(node.parent()).putWithSignal(theirs, base, (end - begin) * sizeof(HostSum)) ==
           WaitResult::Done;
      continue;
    }
    for (uint32_t k = 0; k < children; ++k)
      ok = ok && across.to(node.child(k)).putWithSignal(base, base, (end - begin) * sizeof(Line)) ==
                     WaitResult::Done;
  }
  if (!blockAll(ok)) return false;
  if (node.number == 0) return true;
  for (uint64_t begin = part.begin; begin < part.end; begin += piece) {
    uint64_t end = begin + piece < part.end ? begin + piece : part.end;
    uint64_t base = mine + begin * sizeof(HostSum);
    if (threadIdx.x == 0) {
      ok = across.to(node.parent()).wait() == WaitResult::Done;
      for (uint32_t k = 0; k < children; ++k)
        ok = ok && across.to(node.child(k)).putWithSignal(base, base, (end - begin) * sizeof(Line)) ==
                       WaitResult::Done;
    }
    if (!blockAll(ok)) return false;
    for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      uint64_t at = (part.first + i) * sizeof(Line);
      const uint8_t* result = across.inbox + base + (i - begin) * sizeof(Line);
      deliver(group, out, at, loadPartial<Line>(result, sizeof(Line)), bytes - at);
    }
  }
  return true;
}

// reduceBy is reduce() with `between` to combine the sums of hosts, such as around().
template <class Between>
MSCCLGO_DEVICE void reduceBy(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                             const Hosts& across, uint64_t bytes, Between between) {
  uint32_t call = across.calls[blockIdx.x];
  if (group.barrier() != WaitResult::Done) return;  // the host's inputs are there
  Part part(group, across, bytes);
  if (part.begin < part.end && !between(group, in, out, across, call, part, bytes)) return;
  if (group.barrier() != WaitResult::Done) return;  // the host's outputs are there
  across.end(call);
}

// Scatter has the further parameters of a reduce-scatter. Owner i of a host does the parts of ranks
// i, i + owners and so on of every host. For other hosts it sends its host's sums to the owner of
// its number there, its twin; for its own host it makes the results. If all hosts have equally many
// ranks, that is its own part alone.
struct Scatter {
  const uint32_t* order;  // where the ranks of each host begin and end here, and the ranks
  uint32_t parts;         // of a host for one owner, at most
  uint64_t apart;         // bytes from a rank's part of an input to the next one's
  uint64_t stride;        // and of its output, in place, else 0

  // slot returns where, in the half of a call, an owner has the sums of host `of` for its part
  // number k; or with `sent`, its own host's sums for its twin on host `of`.
  MSCCLGO_DEVICE uint64_t slot(const Hosts& across, uint32_t call, bool sent, uint32_t of, uint32_t k) const {
    return call % 2 * across.halfBytes +
           ((uint64_t(sent) * across.hosts + of) * parts + k) * across.slotBytes;
  }
};

// reduceScatter goes in the steps of reduce(): see there why nothing comes too early or is
// overwritten too soon. Between hosts go (hosts - 1) times a part for each rank. In place is safe:
// a part of this host's ranks is read by its owner alone, each line before it is written, and the
// other parts are not written.
MSCCLGO_DEVICE void reduceScatter(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                                  const Hosts& across, const Scatter& scatter, uint64_t bytes) {
  uint32_t call = across.calls[blockIdx.x];
  if (group.barrier() != WaitResult::Done) return;  // the host's inputs are there
  uint64_t lines = divideUp(bytes, sizeof(Line));
  uint64_t part = divideUp(lines, gridDim.x);
  uint64_t begin = blockIdx.x * part;
  uint64_t end = begin + part < lines ? begin + part : lines;

  if (group.rank < across.owners && begin < end) {
    bool ok = true;
    uint64_t at = begin * sizeof(HostSum), n = (end - begin) * sizeof(HostSum);
    for (uint32_t ahead = 1; ahead < across.hosts; ++ahead) {
      uint32_t to = (across.host + ahead) % across.hosts, last = scatter.order[to + 1];
      for (uint32_t r = scatter.order[to] + group.rank, k = 0; r < last; r += across.owners, ++k) {
        uint64_t from = scatter.order[r] * scatter.apart, sent = scatter.slot(across, call, true, to, k) + at;
        for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
          uint64_t line = i * sizeof(Line);
          storePartial(across.inbox + sent + (i - begin) * sizeof(HostSum),
                       sumOfHost(group, in, from + line, bytes - line).unfinished(), sizeof(HostSum));
        }
        __syncthreads();  // the sums are there before one thread sends them
        if (threadIdx.x != 0 || !ok) continue;
        uint64_t theirs = scatter.slot(across, call, false, across.host, k) + at;
        const PortChannelHandle& channel = across.to(to);
        ok = (r + across.owners < last ? channel.put(theirs, sent, n)
                                       : channel.putWithSignal(theirs, sent, n)) == WaitResult::Done;
      }
    }
    if (threadIdx.x == 0 && ok) ok = across.hear();
    if (!blockAll(ok)) return;
    uint32_t first = scatter.order[across.host], last = scatter.order[across.host + 1];
    for (uint32_t r = first + group.rank, k = 0; r < last; r += across.owners, ++k) {
      uint64_t from = scatter.order[r] * scatter.apart;
      uint8_t* result = out.of<uint8_t>(r - first) + scatter.order[r] * scatter.stride;
      for (uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        uint64_t line = i * sizeof(Line);
        HostSum mine = sumOfHost(group, in, from + line, bytes - line).unfinished();
        Reducer<T, Op, Line> sum;
        for (uint32_t host = 0; host < across.hosts; ++host) {
          const uint8_t* theirs =
              across.inbox + scatter.slot(across, call, false, host, k) + i * sizeof(HostSum);
          HostSum next = host == across.host ? mine : loadPartial<HostSum>(theirs, sizeof(HostSum));
          if (host == 0) {
            sum = Reducer<T, Op, Line>(next);
          } else {
            sum.add(next);
          }
        }
        storePartial(result + line, sum.get(across.ranks), bytes - line);
      }
    }
  }
  if (group.barrier() != WaitResult::Done) return;  // the host's outputs are there
  across.end(call);
}

}  // namespace

// group, in and out are for the host's ranks; `ranks` is the number of all hosts' ranks.
#define PARAMETERS                                                                            \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in,           \
      __grid_constant__ const PeerMemory out, uint32_t hosts, uint32_t host, uint32_t owners, \
      uint32_t ranks, const PortChannelHandle *channels, uint8_t *inbox, uint32_t *calls,     \
      uint64_t halfBytes, uint64_t slotBytes, uint64_t bytes
#define HOSTS \
  Hosts { hosts, host, owners, ranks, channels, inbox, calls, halfBytes, slotBytes }

extern "C" __global__ void __launch_bounds__(512, 1) hier(PARAMETERS) {
  reduce(group, in, out, HOSTS, bytes);
}

extern "C" __global__ void __launch_bounds__(512, 1) hierRing(PARAMETERS) {
  reduceBy(group, in, out, HOSTS, bytes, around);
}

extern "C" __global__ void __launch_bounds__(512, 1) hierTree(PARAMETERS) {
  reduceBy(group, in, out, HOSTS, bytes, upAndDown);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    hierReduce(PARAMETERS, uint32_t rootHost, uint32_t root) {
  reduce(group, in, out, HOSTS, bytes, rootHost, root);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    hierScatter(PARAMETERS, const uint32_t* order, uint32_t parts, uint64_t apart, uint64_t stride) {
  reduceScatter(group, in, out, HOSTS, Scatter{order, parts, apart, stride}, bytes);
}
