// All-gathers and broadcasts for ranks on several hosts, by rails. A host's data cross the network
// to another host once, divided among its ranks: each rank gets its share from its twin on that
// host, and threads pass it on within their own. Over ports alone each rank would get all of the
// data itself.
#include <mscclgo/collective.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/group.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/wait.cuh>

using namespace mscclgo;

namespace {

constexpr uint64_t kPieces = 8;                // of a range, at most,
constexpr uint64_t kPieceBytes = 128 << 10;    // and at least so large
constexpr uint64_t kMost = uint64_t(1) << 20;  // blocks, and pieces from a twin, of a call: fewer

// Progress is how far a rank's call is, in device memory, for its own blocks. Each word is the
// number of the call, less than 2^44, times kMost, plus a count of that call.
struct Progress {
  uint64_t copied;      // blocks that have done the work before the twins
  uint64_t arrived[1];  // pieces from each twin

  // call returns the number of this call, in blocks that have not counted themselves.
  MSCCLGO_DEVICE uint64_t call() const { return load<Scope::Device, Order::Relaxed>(&copied) / kMost; }

  // count counts this block. Every thread calls it.
  MSCCLGO_DEVICE void count() {
    __syncthreads();
    if (threadIdx.x == 0) add<Scope::Device, Order::Release>(&copied, 1);
  }

  // awaitCopied waits until all blocks but the first have counted themselves. Every thread of a
  // block calls it.
  MSCCLGO_DEVICE bool awaitCopied(const Watch& watch, uint64_t call) const {
    return await(watch, &copied, call * kMost + gridDim.x - 1);
  }

  // await waits until a word of this rank's blocks has a value or more. Its acquire and the block's
  // barrier pass on what came before the store of the word: other blocks' copies, by their barrier
  // and count(), and a twin's puts, which the storing thread has acquired by its wait().
  MSCCLGO_DEVICE static bool await(const Watch& watch, const uint64_t* word, uint64_t value) {
    return blockAll(threadIdx.x != 0 || waitUntil(watch, [&] {
                                          return load<Scope::Device, Order::Acquire>(word) >= value;
                                        }) == WaitResult::Done);
  }
};

// Rails is one rank's place among the hosts. The first `owners` ranks of every host have a
// twin on each other host. Each rank numbers the hosts in the order of its twins' ranks
// (byTwins of hier.go).
struct Rails {
  const PortChannelHandle* twins;  // one for each other host
  const uint32_t* order;           // where the ranks of each host begin and end here, and the ranks
  Progress* progress;
  uint32_t hosts, host, owners;

  // other returns the number of the kth other host.
  MSCCLGO_DEVICE uint32_t other(uint32_t k) const { return k < host ? k : k + 1; }

  // others returns on how many hosts this rank has twins.
  MSCCLGO_DEVICE uint32_t others(const GroupHandle& group) const {
    return group.rank < owners ? hosts - 1 : 0;
  }
};

// Range is a part of the outputs, in the same place on all ranks.
struct Range {
  uint64_t at, bytes;
};

// Cut is how a range of so many bytes is cut into pieces.
struct Cut {
  uint64_t bytes, piece, count;

  MSCCLGO_DEVICE explicit Cut(uint64_t n) : bytes(n) {
    piece = divideUp(divideUp(n, kPieces), kLine) * kLine;
    if (piece < kPieceBytes) piece = kPieceBytes;
    count = divideUp(n, piece);
  }

  // of returns piece i of a range that begins at `start`.
  MSCCLGO_DEVICE Range of(uint64_t start, uint64_t i) const {
    uint64_t at = i * piece;
    return {start + at, at + piece < bytes ? piece : bytes - at};
  }
};

// Gather is what an owner sends in an all-gather: its own part, and some of the parts of ranks
// without twins on its host.
struct Gather {
  const Rails& rails;
  Cut part;
  uint32_t rank;  // of the owner, in its host

  // pieces returns how many pieces an owner gets from its twin on a host.
  MSCCLGO_DEVICE uint64_t pieces(uint32_t host) const {
    uint32_t ranks = rails.order[host + 1] - rails.order[host];
    return rank < ranks ? divideUp(ranks - rank, rails.owners) * part.count : 0;
  }

  MSCCLGO_DEVICE Range piece(uint32_t host, uint64_t i) const {
    uint64_t of = rails.order[rails.order[host] + rank + i / part.count * rails.owners];
    return part.of(of * part.bytes, i % part.count);
  }
};

// Broadcast is what an owner sends in a broadcast, if it is on the root's host: its share.
struct Broadcast {
  uint32_t root;  // the root's host
  uint64_t start;
  Cut share;

  MSCCLGO_DEVICE Broadcast(const Rails& rails, uint32_t host, uint32_t owner, uint64_t bytes)
      : root(host), start(shareOf(rails, owner, bytes).at), share(shareOf(rails, owner, bytes).bytes) {}

  // shareOf returns an owner's share, which begins in its own line.
  MSCCLGO_DEVICE static Range shareOf(const Rails& rails, uint32_t owner, uint64_t bytes) {
    uint64_t size = divideUp(divideUp(bytes, kLine), rails.owners) * kLine, at = owner * size;
    if (owner >= rails.owners || at >= bytes) return {0, 0};
    return {at, at + size < bytes ? size : bytes - at};
  }

  MSCCLGO_DEVICE uint64_t pieces(uint32_t host) const { return host == root ? share.count : 0; }
  MSCCLGO_DEVICE Range piece(uint32_t, uint64_t i) const { return share.of(start, i); }
};

// conduct is block 0's work, with a thread for each twin: it has the host put this owner's pieces
// into the twins' outputs, and counts the twins' puts for the other blocks. A put must not come
// before its reader has begun the call. So each owner first signals to its writers that its output
// may be written. It ends when its own puts have arrived, and their source may change.
template <class Plan>
MSCCLGO_DEVICE void conduct(const GroupHandle& group, const Rails& rails, const Plan& plan) {
  uint32_t others = rails.others(group);
  Progress& progress = *rails.progress;
  uint64_t call = progress.call(), sends = plan.pieces(rails.host);
  bool ok = true;
  for (uint32_t k = threadIdx.x; k < others && ok; k += blockDim.x)
    if (plan.pieces(rails.other(k)) > 0) ok = rails.twins[k].signal() == WaitResult::Done;
  if (!progress.awaitCopied(group.watch, call)) return;
  for (uint32_t k = threadIdx.x; k < others && ok && sends > 0; k += blockDim.x) {
    ok = rails.twins[k].wait() == WaitResult::Done;
    for (uint64_t i = 0; i < sends && ok; ++i) {
      Range p = plan.piece(rails.host, i);
      ok = rails.twins[k].putWithSignal(p.at, p.at, p.bytes) == WaitResult::Done;
    }
  }
  for (uint32_t k = threadIdx.x; k < others && ok; k += blockDim.x) {
    uint64_t n = plan.pieces(rails.other(k));
    for (uint64_t i = 0; i < n && ok; ++i) {
      ok = rails.twins[k].wait() == WaitResult::Done;
      if (ok) store<Scope::Device, Order::Release>(&progress.arrived[k], call * kMost + i + 1);
    }
  }
  for (uint32_t k = threadIdx.x; k < others && ok && sends > 0; k += blockDim.x)
    ok = rails.twins[k].flush() == WaitResult::Done;
  // Relaxed, as only the next kernel of the stream relies on it. That begins once this one has
  // ended.
  if (blockAll(ok) && threadIdx.x == 0)
    store<Scope::Device, Order::Relaxed>(&progress.copied, (call + 1) * kMost);
}

// Copiers are the other blocks of a grid.
struct Copiers {
  uint32_t thread = (blockIdx.x - 1) * blockDim.x + threadIdx.x, threads = (gridDim.x - 1) * blockDim.x;

  MSCCLGO_DEVICE void copyTo(uint8_t* dst, const uint8_t* src, uint64_t n) const {
    if (dst != src) copy(dst, src, n, thread, threads);
  }

  // deliver writes a piece of this rank's output into the outputs of the other ranks of its host,
  // but for `has`.
  MSCCLGO_DEVICE void deliver(const GroupHandle& group, const PeerMemory& out, Range p, uint32_t has) const {
    const uint8_t* own = out.of<uint8_t>(group.rank) + p.at;
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t to = (group.rank + k) % group.size;
      if (to != has) copyTo(out.of<uint8_t>(to) + p.at, own, p.bytes);
    }
  }

  // counted ends the work before the twins: the blocks of this number have done it on all of the
  // host's ranks. Every block does another part of that work, so awaitCopied() comes before the use
  // of all of it.
  MSCCLGO_DEVICE static bool counted(const GroupHandle& group, const Rails& rails) {
    if (group.barrier() != WaitResult::Done) return false;
    rails.progress->count();
    return true;
  }

  // pass passes on the twins' pieces, and ends when the host's outputs are there.
  template <class Plan>
  MSCCLGO_DEVICE void pass(const GroupHandle& group, const PeerMemory& out, const Rails& rails,
                           const Plan& plan, uint64_t call) const {
    uint32_t others = rails.others(group);
    bool more = others > 0;
    for (uint64_t i = 0; more; ++i) {  // the hosts' pieces come side by side
      more = false;
      for (uint32_t k = 0; k < others; ++k) {
        if (i >= plan.pieces(rails.other(k))) continue;
        more = true;
        if (!Progress::await(rails.twins[k].base.semaphore.watch, &rails.progress->arrived[k],
                             call * kMost + i + 1))
          return;
        deliver(group, out, plan.piece(rails.other(k), i), group.rank);
      }
    }
    group.barrier();
  }
};

}  // namespace

// group and out are for the host's ranks, in is this rank's input.
#define PARAMETERS                                                                   \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory out, \
      __grid_constant__ const Rails rails, const uint8_t *in, uint64_t bytes

// railGather: bytes is the size of a rank's part, which is `rank`th in the outputs.
extern "C" __global__ void __launch_bounds__(512, 1) railGather(PARAMETERS, uint32_t rank) {
  Gather plan{rails, Cut(bytes), group.rank};
  if (blockIdx.x == 0) return conduct(group, rails, plan);
  uint64_t call = rails.progress->call();
  Copiers copiers;
  if (group.relaxedBarrier() != WaitResult::Done) return;  // the host's outputs may be written
  for (uint32_t k = 0; k < group.size; ++k)
    copiers.copyTo(out.of<uint8_t>((group.rank + k) % group.size) + rank * bytes, in, bytes);
  if (!Copiers::counted(group, rails)) return;
  copiers.pass(group, out, rails, plan, call);
}

// railBroadcast: the root is rank `root` of host `rootHost`, by its ranks' own numbers of hosts. It
// gives each owner of its host a share to pass on.
extern "C" __global__ void __launch_bounds__(512, 1)
    railBroadcast(PARAMETERS, uint32_t rootHost, uint32_t root) {
  Broadcast plan(rails, rootHost, group.rank, bytes);
  if (blockIdx.x == 0) return conduct(group, rails, plan);
  uint64_t call = rails.progress->call();
  Copiers copiers;
  bool here = rails.host == rootHost;
  if (group.relaxedBarrier() != WaitResult::Done) return;  // the host's outputs may be written
  if (here && group.rank == root) {
    for (uint32_t k = 1; k < group.size; ++k) {
      uint32_t to = (root + k) % group.size;
      Range share = Broadcast::shareOf(rails, to, bytes);
      copiers.copyTo(out.of<uint8_t>(to) + share.at, in + share.at, share.bytes);
    }
    copiers.copyTo(out.of<uint8_t>(root), in, bytes);
  }
  if (!Copiers::counted(group, rails)) return;
  if (here && group.rank < rails.owners) {
    if (!rails.progress->awaitCopied(group.watch, call)) return;
    copiers.deliver(group, out, Broadcast::shareOf(rails, group.rank, bytes), root);
  }
  copiers.pass(group, out, rails, plan, call);
}
