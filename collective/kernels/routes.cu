// All-to-alls, gathers and scatters for ranks on several hosts, by rails. A rail is the ranks of
// one number on all hosts, which are each other's twins. Each part goes in the stream of one rail,
// over its network cards: a rank reads the parts of its rail from the inputs of its host, and puts
// them to its twin, which writes them into the outputs of its own host. Over ports alone each rank
// of a host would send to each rank of the others.
#include <mscclgo/collective.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

namespace {

// kSlots is how many pieces for a twin the outbox holds, and from it the inbox: routeSlots of routes.go.
constexpr uint32_t kSlots = 8;
// kAhead is how many pieces are sent before the first is awaited, at most kSlots.
constexpr uint32_t kAhead = 4;
constexpr uint32_t kWarp = 32;

// Twin is how far the calls are with a twin, in this rank's device memory. Twins count the same
// pieces, from call to call, so a put need not wait until its reader has begun the call.
struct Twin {
  uint64_t sent, received;     // in the calls before this one
  uint64_t free, arrived;      // in all calls: pieces that the outbox has had room for; that have come
  uint32_t filled[kSlots];     // blocks that have copied their part of what is in a slot of the outbox,
  uint32_t delivered[kSlots];  // and of the inbox; 0 once all have
};

// Progress is how far this rank is, in its device memory.
struct Progress {
  uint32_t ended[4];  // blocks that have ended the call, in the first
  Twin twins[1];      // on each other host
};

// Rails is one rank's place among the hosts. The first `owners` ranks of every host have a
// twin on each other host. Each rank numbers the hosts in the order of its twins' ranks
// (byTwins of hier.go).
struct Rails {
  const PortChannelHandle* channels;  // to each other host, for pieces; then to each, for answers
  const uint32_t* order;              // where the ranks of each host begin and end here, and the ranks
  Progress* progress;
  uint8_t* boxes;  // kSlots slots from each twin, the inbox; and as many to each, the outbox
  uint64_t slot;   // bytes of a slot, and of a piece, but for the last one of a stream
  uint32_t hosts, host, owners;

  // twins returns on how many hosts this rank has twins.
  MSCCLGO_DEVICE uint32_t twins(const GroupHandle& group) const {
    return group.rank < owners ? hosts - 1 : 0;
  }

  // other returns the number of the kth other host.
  MSCCLGO_DEVICE uint32_t other(uint32_t k) const { return k < host ? k : k + 1; }

  // ranks returns how many ranks a host has, and rank the ith of them among all.
  MSCCLGO_DEVICE uint32_t ranks(uint32_t of) const { return order[of + 1] - order[of]; }
  MSCCLGO_DEVICE uint64_t rank(uint32_t of, uint32_t i) const { return order[order[of] + i]; }

  // served returns how many ranks of a host an owner serves: the owners share the ranks without
  // twins.
  MSCCLGO_DEVICE uint64_t served(uint32_t of, uint32_t owner) const {
    return divideUp(ranks(of) - owner, owners);
  }

  // inbox and outbox return where a piece is in the boxes: from the kth other host, and to it.
  MSCCLGO_DEVICE uint64_t inbox(uint32_t k, uint64_t piece) const {
    return (uint64_t(k) * kSlots + piece % kSlots) * slot;
  }
  MSCCLGO_DEVICE uint64_t outbox(uint32_t k, uint64_t piece) const { return inbox(hosts - 1 + k, piece); }
};

// Root is the rank with all parts: number `rank` of host `host`.
struct Root {
  uint32_t host, rank;
};

// Call has the sizes of a call: parts of `bytes` bytes, and a root if there is one.
struct Call {
  const GroupHandle& group;
  const PeerMemory &in, &out;
  const Rails& rails;
  uint64_t bytes;
  Root root;
};

// AllToAll, Gather and Scatter say what streams hold. `parts` returns how many parts go from a host
// to another by this rank's rail. `from` returns the place of part i to a host in an input of this
// host, and `to` the place of part i from a host in an output. `own` copies the data that stay on
// the host.
//
// AllToAll: data for the ranks of an owner go by that owner's rail. Ranks of a host read its inputs
// in different orders, so that no link is crowded.
struct AllToAll : Call {
  MSCCLGO_DEVICE uint64_t parts(uint32_t from, uint32_t to) const {
    return rails.served(to, group.rank) * rails.ranks(from);
  }
  MSCCLGO_DEVICE const uint8_t* from(uint32_t to, uint64_t i) const {
    return in.of<const uint8_t>(sender(rails.host, i)) + rails.rank(to, receiver(rails.host, i)) * bytes;
  }
  MSCCLGO_DEVICE uint8_t* to(uint32_t from, uint64_t i) const {
    return out.of<uint8_t>(receiver(from, i)) + rails.rank(from, sender(from, i)) * bytes;
  }

  template <class Team>
  MSCCLGO_DEVICE void own(const Team& all) const {
    uint64_t mine = rails.rank(rails.host, group.rank);
    all.divide(group.size, [&](uint64_t k, const Team& team) {
      uint32_t to = peer(group, uint32_t(k));
      team.copy(out.of<uint8_t>(to) + mine * bytes,
                in.of<const uint8_t>(group.rank) + rails.rank(rails.host, to) * bytes, bytes);
    });
  }

 private:
  // sender and receiver return the ranks of part i from a host, as numbers in their hosts.
  MSCCLGO_DEVICE uint32_t sender(uint32_t from, uint64_t i) const {
    return uint32_t((group.rank + i) % rails.ranks(from));
  }
  MSCCLGO_DEVICE uint32_t receiver(uint32_t from, uint64_t i) const {
    return group.rank + uint32_t(i / rails.ranks(from)) * rails.owners;
  }
};

// Gather: data of the ranks of an owner go by that owner's rail.
struct Gather : Call {
  MSCCLGO_DEVICE uint64_t parts(uint32_t from, uint32_t to) const {
    return to == root.host ? rails.served(from, group.rank) : 0;
  }
  MSCCLGO_DEVICE const uint8_t* from(uint32_t, uint64_t i) const {
    return in.of<const uint8_t>(group.rank + uint32_t(i) * rails.owners);
  }
  MSCCLGO_DEVICE uint8_t* to(uint32_t from, uint64_t i) const {
    return out.of<uint8_t>(root.rank) + rails.rank(from, group.rank + uint32_t(i) * rails.owners) * bytes;
  }

  template <class Team>
  MSCCLGO_DEVICE void own(const Team& all) const {
    if (rails.host != root.host) return;
    all.copy(out.of<uint8_t>(root.rank) + rails.rank(rails.host, group.rank) * bytes,
             in.of<const uint8_t>(group.rank), bytes);
  }
};

// Scatter: data for the ranks of an owner go by that owner's rail.
struct Scatter : Call {
  MSCCLGO_DEVICE uint64_t parts(uint32_t from, uint32_t to) const {
    return from == root.host ? rails.served(to, group.rank) : 0;
  }
  MSCCLGO_DEVICE const uint8_t* from(uint32_t to, uint64_t i) const {
    return in.of<const uint8_t>(root.rank) + rails.rank(to, group.rank + uint32_t(i) * rails.owners) * bytes;
  }
  MSCCLGO_DEVICE uint8_t* to(uint32_t, uint64_t i) const {
    return out.of<uint8_t>(group.rank + uint32_t(i) * rails.owners);
  }

  template <class Team>
  MSCCLGO_DEVICE void own(const Team& all) const {
    if (rails.host != root.host) return;
    all.copy(out.of<uint8_t>(group.rank),
             in.of<const uint8_t>(root.rank) + rails.rank(rails.host, group.rank) * bytes, bytes);
  }
};

// Team is threads that work together: whole warps.
struct Team {
  uint32_t thread, threads;

  MSCCLGO_DEVICE void copy(uint8_t* dst, const uint8_t* src, uint64_t n) const {
    mscclgo::copy(dst, src, n, thread, threads);
  }

  // divide divides the warps among n tasks, so that all are done at the same time, and calls
  // task(i, team). Where there are fewer warps than tasks, a warp does several, one after the other.
  template <class Task>
  MSCCLGO_DEVICE void divide(uint64_t n, Task task) const {
    uint32_t warp = thread / kWarp, warps = threads / kWarp;
    for (uint64_t i = warp % n; i < n; i += warps) {
      uint32_t team = warps > i ? uint32_t((warps - i - 1) / n) + 1 : 1;
      task(i, Team{uint32_t(warp / n) * kWarp + thread % kWarp, team * kWarp});
    }
  }
};

// last counts a block, and reports whether it is the last of so many: the others' earlier work is
// then done, and the count is 0 again. One thread calls it, after a barrier of the block. It
// releases the work of all the block's threads before the barrier, and the last one acquires the
// work of all blocks.
MSCCLGO_DEVICE bool last(uint32_t* count, uint32_t of) {
  if (fetchAdd<Scope::Device, Order::Release>(count, 1) + 1 < of) return false;
  fence<Scope::Device, Order::Acquire>();
  store<Scope::Device, Order::Relaxed>(count, 0);
  return true;
}

// Moving is one block's part of a call. Block 0 waits for the twins, with a thread for each of its
// tasks, and counts pieces for the other blocks, which copy. The last block to fill a slot puts the
// piece, and the last to read it answers; its place is then free at both ends.
//
// Other hosts access none of the users' memory, and a slot is free only when its piece has arrived.
// So a rank may end the call with puts under way.
template <class Parts>
class Moving {
 public:
  MSCCLGO_DEVICE explicit Moving(const Parts& parts)
      : parts_(parts),
        group_(parts.group),
        rails_(parts.rails),
        bytes_(parts.bytes),
        twins_(rails_.twins(group_)) {
    for (uint32_t k = 0; k < twins_; ++k) {
      if (sends(k) > sends_) sends_ = sends(k);
      if (receives(k) > receives_) receives_ = receives(k);
    }
  }

  // run does all of it. Every thread calls it.
  MSCCLGO_DEVICE void run() {
    if (!(blockIdx.x == 0 ? conduct() : carry())) return;
    // The next kernel of the stream reads the counts of this call, and other blocks may do so until they end.
    if (!blockAll(threadIdx.x != 0 || last(rails_.progress->ended, gridDim.x))) return;
    for (uint32_t k = threadIdx.x; k < twins_; k += blockDim.x) {
      twin(k).sent += sends(k);
      twin(k).received += receives(k);
    }
  }

 private:
  // conduct is block 0's work. A thread with several tasks does step i of each, before step i + 1
  // of any. It looks for room before it waits for pieces, as other ranks' pieces may wait for that.
  MSCCLGO_DEVICE bool conduct() const {
    uint64_t steps = sends_ > receives_ ? sends_ : receives_;
    bool ok = true;
    for (uint64_t i = 0; i < steps; ++i) {
      for (uint32_t task = threadIdx.x; task < 2 * twins_ && ok; task += blockDim.x) {
        bool room = task < twins_;
        uint32_t k = room ? task : task - twins_;
        if (room && i < sends(k)) {
          uint64_t piece = twin(k).sent + i;
          ok = piece < kSlots || answers(k).wait() == WaitResult::Done;
          if (ok) store<Scope::Device, Order::Release>(&twin(k).free, piece + 1);
        } else if (!room && i < receives(k)) {
          ok = pieces(k).wait() == WaitResult::Done;
          if (ok) store<Scope::Device, Order::Release>(&twin(k).arrived, twin(k).received + i + 1);
        }
      }
    }
    return blockAll(ok);
  }

  // carry is the other blocks' work. All blocks of all ranks go in these steps, so that no two wait
  // for each other: a piece waits for room, and others make room in earlier steps.
  MSCCLGO_DEVICE bool carry() const {
    if (group_.barrier() != WaitResult::Done) return false;  // the host's inputs are there, its outputs free
    for (uint64_t i = 0; i <= kAhead || i < sends_ || i < receives_ + kAhead; ++i) {
      if (i == kAhead) parts_.own(team());
      if (i >= kAhead && !receive(i - kAhead)) return false;
      if (!send(i)) return false;
    }
    return group_.barrier() == WaitResult::Done;  // the inputs are read, and the outputs there
  }

  // send fills a slot for piece i to each twin, and puts it.
  MSCCLGO_DEVICE bool send(uint64_t i) const {
    if (i >= sends_) return true;
    bool ok = true;
    for (uint32_t k = threadIdx.x; k < twins_ && ok; k += blockDim.x)
      if (i < sends(k)) ok = await(answers(k), &twin(k).free, twin(k).sent + i + 1);
    if (!blockAll(ok)) return false;
    team().divide(twins_, [&](uint64_t k, const Team& team) {
      if (i >= sends(uint32_t(k))) return;
      uint8_t* slot = rails_.boxes + rails_.outbox(uint32_t(k), twin(uint32_t(k)).sent + i);
      uint32_t to = rails_.other(uint32_t(k));
      forEachPart(parts_.parts(rails_.host, to), i, team, [&](uint64_t part, Range r, const Team& some) {
        some.copy(slot + r.inSlot, parts_.from(to, part) + r.inPart, r.bytes);
      });
    });
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < twins_ && ok; k += blockDim.x) {
      uint64_t piece = twin(k).sent + i;
      if (i >= sends(k) || !last(&twin(k).filled[piece % kSlots], gridDim.x - 1)) continue;
      uint32_t to = rails_.other(k), there = rails_.host < to ? rails_.host : rails_.host - 1;
      uint64_t begin = i * rails_.slot, end = parts_.parts(rails_.host, to) * bytes_;
      ok = pieces(k).putWithSignal(rails_.inbox(there, piece), rails_.outbox(k, piece),
                                   end - begin < rails_.slot ? end - begin : rails_.slot) == WaitResult::Done;
    }
    return blockAll(ok);
  }

  // receive delivers piece i of each twin, and answers it.
  MSCCLGO_DEVICE bool receive(uint64_t i) const {
    if (i >= receives_) return true;
    bool ok = true;
    for (uint32_t k = threadIdx.x; k < twins_ && ok; k += blockDim.x)
      if (i < receives(k)) ok = await(pieces(k), &twin(k).arrived, twin(k).received + i + 1);
    if (!blockAll(ok)) return false;
    team().divide(twins_, [&](uint64_t k, const Team& team) {
      if (i >= receives(uint32_t(k))) return;
      const uint8_t* slot = rails_.boxes + rails_.inbox(uint32_t(k), twin(uint32_t(k)).received + i);
      uint32_t from = rails_.other(uint32_t(k));
      forEachPart(parts_.parts(from, rails_.host), i, team, [&](uint64_t part, Range r, const Team& some) {
        some.copy(parts_.to(from, part) + r.inPart, slot + r.inSlot, r.bytes);
      });
    });
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < twins_ && ok; k += blockDim.x) {
      uint64_t piece = twin(k).received + i;
      if (i < receives(k) && last(&twin(k).delivered[piece % kSlots], gridDim.x - 1))
        ok = answers(k).signal() == WaitResult::Done;
    }
    return blockAll(ok);
  }

  // Range is a piece's part of a part.
  struct Range {
    uint64_t inSlot, inPart, bytes;
  };

  // forEachPart divides a team among the parts in piece i of a stream of so many parts.
  template <class Copy>
  MSCCLGO_DEVICE void forEachPart(uint64_t parts, uint64_t i, const Team& team, Copy copy) const {
    uint64_t begin = i * rails_.slot, end = parts * bytes_;
    if (end - begin > rails_.slot) end = begin + rails_.slot;
    uint64_t first = begin / bytes_;
    team.divide((end - 1) / bytes_ - first + 1, [&](uint64_t more, const Team& some) {
      uint64_t part = first + more, from = part * bytes_, to = from + bytes_;
      uint64_t start = from > begin ? from : begin, stop = to < end ? to : end;
      copy(part, Range{start - begin, start - from, stop - start}, some);
    });
  }

  // await waits until block 0 has counted so many pieces. Its acquire and the block's barrier pass
  // them on. A long wait is for the twin.
  MSCCLGO_DEVICE static bool await(const PortChannelHandle& of, const uint64_t* count, uint64_t value) {
    return waitUntil(of.base.semaphore.watch,
                     [&] { return load<Scope::Device, Order::Acquire>(count) >= value; }) == WaitResult::Done;
  }

  // team returns all threads that copy.
  MSCCLGO_DEVICE Team team() const {
    return {(blockIdx.x - 1) * blockDim.x + threadIdx.x, (gridDim.x - 1) * blockDim.x};
  }

  // sends and receives return how many pieces the streams to and from the kth other host have.
  MSCCLGO_DEVICE uint64_t sends(uint32_t k) const { return cut(parts_.parts(rails_.host, rails_.other(k))); }
  MSCCLGO_DEVICE uint64_t receives(uint32_t k) const {
    return cut(parts_.parts(rails_.other(k), rails_.host));
  }
  MSCCLGO_DEVICE uint64_t cut(uint64_t parts) const { return divideUp(parts * bytes_, rails_.slot); }

  MSCCLGO_DEVICE Twin& twin(uint32_t k) const { return rails_.progress->twins[k]; }
  MSCCLGO_DEVICE const PortChannelHandle& pieces(uint32_t k) const { return rails_.channels[k]; }
  MSCCLGO_DEVICE const PortChannelHandle& answers(uint32_t k) const { return rails_.channels[twins_ + k]; }

  const Parts parts_;
  const GroupHandle& group_;
  const Rails& rails_;
  uint64_t bytes_;
  uint32_t twins_;
  uint64_t sends_ = 0, receives_ = 0;  // of the longest streams
};

}  // namespace

// group, in and out are for the host's ranks; a part has `bytes` bytes. Blocks have whole warps.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, __grid_constant__ const Rails rails, uint64_t bytes

extern "C" __global__ void __launch_bounds__(512, 1) routedAllToAll(PARAMETERS) {
  Moving<AllToAll>(AllToAll{{group, in, out, rails, bytes, {}}}).run();
}

// The root is rank `root` of host `rootHost`, by its ranks' own numbers of hosts.
extern "C" __global__ void __launch_bounds__(512, 1)
    routedGather(PARAMETERS, uint32_t rootHost, uint32_t root) {
  Moving<Gather>(Gather{{group, in, out, rails, bytes, {rootHost, root}}}).run();
}

extern "C" __global__ void __launch_bounds__(512, 1)
    routedScatter(PARAMETERS, uint32_t rootHost, uint32_t root) {
  Moving<Scatter>(Scatter{{group, in, out, rails, bytes, {rootHost, root}}}).run();
}
