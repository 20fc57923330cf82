// What collectives share: packets from every rank to every rank in the group's scratch,
// and reductions of words in all ranks' memory.
#pragma once

#include <mscclgo/group.cuh>
#include <mscclgo/launch.cuh>
#include <mscclgo/packet.cuh>
#include <mscclgo/reduce.cuh>

namespace mscclgo {

// firstThread returns the calling thread's number in a one-dimensional grid, and
// allThreads the number of threads.
MSCCLGO_DEVICE uint64_t firstThread() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
MSCCLGO_DEVICE uint64_t allThreads() { return uint64_t(gridDim.x) * blockDim.x; }

// checkShape ends the kernel if grid or block has more than one dimension, or the threads of a
// block are not a multiple of `together` (check.cuh).
MSCCLGO_DEVICE void checkShape(const GroupHandle& group, const char* what, uint32_t together = 1,
                               Site site = Site::here()) {
#if defined(MSCCLGO_CHECK)
  if (gridDim.y != 1 || gridDim.z != 1 || blockDim.y != 1 || blockDim.z != 1)
    detail::fault(group.watch, kNoPeer, site, what, " in a grid of ", gridDim, " blocks of ", blockDim,
                  " threads: both must have one dimension");
  if (blockDim.x % together != 0)
    detail::fault(group.watch, kNoPeer, site, what, " in blocks of ", blockDim.x,
                  " threads: the packets need blocks of whole warps, of ", together);
#else
  (void)group, (void)what, (void)together, (void)site;
#endif
}

// divideUp returns a / b, rounded up.
MSCCLGO_DEVICE uint64_t divideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Elements are a number of elements of a type, in one word that ranks compare:
// number of the type << 43 | log2 of its size << 40 | bytes.
struct Elements {
  uint64_t what;

  static constexpr uint32_t kBits = 48;  // the others are 0

  // of returns so many bytes of elements of a type, which is number << 3 | log2 of its size.
  MSCCLGO_DEVICE static Elements of(uint32_t type, uint64_t bytes) { return {uint64_t(type) << 40 | bytes}; }
  MSCCLGO_DEVICE uint64_t bytes() const { return what & ((uint64_t(1) << 40) - 1); }
  // ofAll reports whether they are of a call that all ranks make, and not of a group.
  MSCCLGO_DEVICE bool ofAll() const { return (what >> 47 & 1) != 0; }
  MSCCLGO_DEVICE uint64_t count() const { return bytes() >> (what >> 40 & 7); }
  MSCCLGO_DEVICE const char* type() const {
    switch (what >> 43 & 15) {
      case 0:
        return "f32";
      case 1:
        return "f16";
      case 2:
        return "bf16";
      case 3:
        return "f64";
      case 4:
        return "i32";
      case 5:
        return "i64";
      case 6:
        return "u8";
      case 7:
        return "f8e4m3";
    }
    return "f8e5m2";
  }
};

// peer returns the rank that lies k ahead, where k is at most the number of ranks. Loops over peers
// use it, so that each rank begins with another peer, and no link is crowded.
MSCCLGO_DEVICE uint32_t peer(const GroupHandle& group, uint32_t k) {
  uint32_t to = group.rank + k;
  return to < group.size ? to : to - group.size;
}

// forEachRank divides the blocks of a one-dimensional grid among the ranks, and so serves all at
// the same time. It calls serve(rank, thread, threads): the caller is number `thread` of `threads`
// threads of the rank. Where there are fewer blocks than ranks, a block serves several ranks, one
// after the other. All threads call it.
template <class Serve>
MSCCLGO_DEVICE void forEachRank(const GroupHandle& group, Serve serve, Site site = Site::here()) {
  checkShape(group, "forEachRank", 1, site);
  for (uint32_t k = blockIdx.x % group.size; k < group.size; k += gridDim.x) {
    uint32_t blocks = gridDim.x > k ? (gridDim.x - k - 1) / group.size + 1 : 1;
    serve(peer(group, k), blockIdx.x / group.size * blockDim.x + threadIdx.x, blocks * blockDim.x);
  }
}

// Place is the place of some data, and the number of one of the packets that carry them.
template <class Byte>
struct Place {
  Byte* data;
  uint32_t packet;
};

// Packing is how packets carry data of some size: packet i has the data from byte i * kPayload on,
// and the last packet has the rest. All threads that carry a packet together call it together.
template <class Packet>
class Packing {
 public:
  using Piece = mscclgo::Piece<Packet>;

  // Data of `bytes` bytes, which begin at multiples of `bytes` after in or out.
  MSCCLGO_DEVICE Packing(const void* in, const void* out, uint64_t bytes) : Packing(in, out, bytes, bytes) {}
  // Data that begin at multiples of `stride` bytes after in or out.
  MSCCLGO_DEVICE Packing(const void* in, const void* out, uint64_t bytes, uint64_t stride)
      : bytes_(bytes),
        whole_((reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out) | bytes | stride) %
                   sizeof(typename Piece::Word) ==
               0) {}

  // packets returns how many packets there are. 32 bits are enough for any scratch.
  MSCCLGO_DEVICE uint32_t packets() const { return uint32_t(divideUp(bytes_, Piece::kPayload)); }

  // whole reports whether all words are whole and aligned. loadWhole and storeWhole are load and
  // store for such data.
  MSCCLGO_DEVICE bool whole() const { return whole_; }

  // load returns a packet's data, and store puts them in their place.
  MSCCLGO_DEVICE Piece load(Place<const uint8_t> from) const {
    if (whole_) return loadWhole(from);
    Piece piece;
    piece.load(from.data + at(from.packet), left(from.packet), lane());
    return piece;
  }
  MSCCLGO_DEVICE Piece loadWhole(Place<const uint8_t> from) const {
    Piece piece;
    piece.loadWhole(from.data + at(from.packet), left(from.packet), lane());
    return piece;
  }
  MSCCLGO_DEVICE void store(Place<uint8_t> to, const Piece& piece) const {
    if (whole_) return storeWhole(to, piece);
    piece.store(to.data + at(to.packet), left(to.packet), lane());
  }
  MSCCLGO_DEVICE void storeWhole(Place<uint8_t> to, const Piece& piece) const {
    piece.storeWhole(to.data + at(to.packet), left(to.packet), lane());
  }

 private:
  MSCCLGO_DEVICE static uint32_t lane() { return threadIdx.x % Piece::kThreads; }
  MSCCLGO_DEVICE static uint64_t at(uint32_t packet) { return uint64_t(packet) * Piece::kPayload; }
  MSCCLGO_DEVICE uint64_t left(uint32_t packet) const { return bytes_ - at(packet); }

  uint64_t bytes_;
  bool whole_;
};

// Inboxes are the packets of one call: every rank has an inbox for each other rank. All threads of
// a one-dimensional grid make an object, begin the call, use it, and call end().
//
// Calls use the first or the second half of the scratch, by the parity of the epoch, so that no
// call waits until its packets have been read. This is safe if no rank ends a call before every
// rank has begun it. A rank that begins call e then knows that all have begun call e - 1, and have
// ended call e - 2, which used the same half. A collective keeps this rule by itself if each rank's
// result depends on all ranks. Others need a relaxedBarrier() of the group in each call.
//
// LL8 and LL16 packets share the first quarter of the scratch. LL128 packets have the
// rest.
//
// A small call takes the time of its accesses in turn, so accesses that can go together do: the
// loads of the data for several ranks, and the looks at their packets.
template <class Packet>
class Inboxes {
 public:
  using Piece = mscclgo::Piece<Packet>;
  static constexpr uint32_t kThreads = Piece::kThreads;
  // kAtOnce is how many other ranks a thread serves at once, as registers allow.
  static constexpr uint32_t kAtOnce = kThreads > 1 && kOthersAtOnce > 4 ? 4 : kOthersAtOnce;

  // Pieces are the pieces of kAtOnce ranks.
  struct Pieces {
    Piece of[kAtOnce];
  };

  // The inboxes of the group's current call. This accesses no memory, so kernels make it before
  // awaitPrevious().
  MSCCLGO_DEVICE explicit Inboxes(const GroupHandle& group, Site site = Site::here())
      : group_(group), span_(group.watch.trace()) {
    checkShape(group, "Inboxes", kThreads, site);
    uint64_t quarter = group.scratchSize / 4 / sizeof(LL128Packet) * sizeof(LL128Packet);
    uint64_t room = sizeof(Packet) == sizeof(LL128Packet) ? 3 * quarter : quarter;
    uint64_t half = room / 2 / sizeof(Packet);
    start_ = sizeof(Packet) == sizeof(LL128Packet) ? quarter : 0;
    half_ = half * sizeof(Packet);
    // 32 bits are enough for 64 GiB, and divide faster.
    capacity_ = detail::unknown(uint32_t(half) / (group.size > 1 ? group.size - 1 : 1));
#if defined(MSCCLGO_CHECK)
    if (kFourRanks && group.size > 4)
      detail::fault(group.watch, kNoPeer, site, "Inboxes of ", group.size,
                    " ranks in a kernel compiled with MSCCLGO_FOUR_RANKS");
#endif
#if defined(MSCCLGO_EMU)
    site_ = site;
#endif
  }

#if defined(MSCCLGO_EMU)
  // It ends the kernel if the call has not ended though no wait has failed: the next call would
  // read its packets. A group that has failed ends no calls.
  MSCCLGO_DEVICE ~Inboxes() {
    if (epoch_ == 0 || emu::self()->calls != before_) return;
    const GroupStatus* status = group_.watch.status;
    if (status != nullptr && (load<Scope::System, Order::Relaxed>(&status->aborted) != 0 ||
                              load<Scope::System, Order::Relaxed>(&status->faulted) != 0 ||
                              load<Scope::System, Order::Relaxed>(&status->firstFailed) != 0))
      return;
    detail::fault(group_.watch, kNoPeer, site_, "call ", epoch_,
                  " of the group began with Inboxes and has not ended: every thread calls end() of them");
  }
#endif

  // begin reads the call's number. Every thread calls it first, after awaitPrevious(), or calls
  // sendFirst(), which does both. It does nothing the second time.
  MSCCLGO_DEVICE void begin(Site site = Site::here()) {
    if (epoch_ != 0) return;
    span_ = detail::Span(group_.watch.trace());
    epoch_ = group_.epoch(site);
    arrived_ = group_.arrived(site);
#if defined(MSCCLGO_EMU)
    before_ = emu::self()->calls;
#endif
  }

  // relaxedBarrier is the group's, for the kernel's first barrier. It waits for no load.
  MSCCLGO_DEVICE WaitResult relaxedBarrier(Site site = Site::here()) const {
    return group_.relaxedBarrier(arrived_, site);
  }

  // first returns the number of a thread's first packet, stride the distance to its next one, and
  // lane the thread's number within a packet.
  MSCCLGO_DEVICE static uint32_t first() { return uint32_t(firstThread()) / kThreads; }
  MSCCLGO_DEVICE static uint32_t stride() { return uint32_t(allThreads()) / kThreads; }
  MSCCLGO_DEVICE static uint32_t lane() { return threadIdx.x % kThreads; }

  // send writes packet `index` of the inbox that rank `to` has for this rank.
  MSCCLGO_DEVICE void send(uint32_t to, uint32_t index, const Piece& piece, Site site = Site::here()) const {
    checkIndex("send of packet ", index, site);
    checkOther("send of a packet to rank ", to, site);
    piece.write(inbox(to, group_.rank, site) + index, lane(), epoch_, site);
  }

  // sendToAll sends to every other rank.
  MSCCLGO_DEVICE void sendToAll(uint32_t index, const Piece& piece, Site site = Site::here()) const {
    forOthers([&](uint32_t base) {
      sendSome(
          base, index, [](uint32_t) { return true; }, [&](uint32_t) -> const Piece& { return piece; }, site);
      return true;
    });
  }

  // loadEach returns the data for the first ranks of sendEach(). With the call's first packet, they
  // are loaded together with the call's number. sent tells whether sendEach() follows: if it does
  // not, nobody looks at the data. A GPU loads them all the same, as that is quicker than to ask. An
  // emulated device does not, as others may write there, and the race finder would report the load.
  template <class PlaceOf>
  MSCCLGO_DEVICE Pieces loadEach(const Packing<Packet>& packing, PlaceOf place, bool sent = true) const {
#if defined(MSCCLGO_EMU)
    if (!sent) return {};
#else
    (void)sent;
#endif
    return loadSome(1, packing, place);
  }

  // sendEach sends each other rank the packet at place(to), unless there is none of that number.
  // pieces are the result of loadEach().
  template <class PlaceOf>
  MSCCLGO_DEVICE void sendEach(uint32_t index, const Packing<Packet>& packing, PlaceOf place,
                               const Pieces& pieces, Site site = Site::here()) const {
    uint32_t packets = packing.packets();
    if (!packing.whole()) {  // one by one, as it is much code
#pragma unroll 1
      for (uint32_t k = 1; k < group_.size; ++k) {
        uint32_t to = peer(group_, k);
        if (place(to).packet < packets) send(to, index, packing.load(place(to)), site);
      }
      return;
    }
    forOthers([&](uint32_t base) {
      Pieces next = base == 0 ? pieces : loadSome(base + 1, packing, place);
      sendSome(
          base, index, [&](uint32_t to) { return place(to).packet < packets; },
          [&](uint32_t k) -> const Piece& { return next.of[k]; }, site);
      return true;
    });
  }

  // receive waits for packet `index` from rank `from`, and reports whether it came.
  MSCCLGO_DEVICE bool receive(uint32_t from, uint32_t index, Piece& piece, Site site = Site::here()) const {
    checkOther("receive of a packet from rank ", from, site);
    Piece pieces[1];
    if (!receiveSome(slot(group_.rank, from), 1, index, pieces, site)) return false;
    piece = pieces[0];
    return true;
  }

  // receiveEach waits for packet `index` of every other rank and stores it at place(from), unless
  // there is none of that number, as for the last ranks. It reports whether all came.
  template <class PlaceOf>
  MSCCLGO_DEVICE bool receiveEach(uint32_t index, const Packing<Packet>& packing, PlaceOf place,
                                  Site site = Site::here()) const {
    uint32_t packets = packing.packets();
    if (!packing.whole()) {  // as in sendEach
#pragma unroll 1
      for (uint32_t k = 1; k < group_.size; ++k) {
        uint32_t from = peer(group_, k);
        if (place(from).packet >= packets) continue;
        Piece piece;
        if (!receive(from, index, piece, site)) return false;
        packing.store(place(from), piece);
      }
      return true;
    }
    return forOthers([&](uint32_t base) {
      uint32_t n = 0;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        if (base + k + 1 < group_.size && place(rankOf(base + k)).packet < packets) n = k + 1;
      }
      Piece pieces[kAtOnce];
      if (!receiveSome(base, n, index, pieces, site)) return false;
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        if (k < n) packing.storeWhole(place(rankOf(base + k)), pieces[k]);
      }
      return true;
    });
  }

  // receiveReduced replaces this rank's piece by its reduction with packet `index` of all
  // others, and reports whether all came. It reduces in the order of the ranks, so that
  // all ranks get the same bits.
  template <class T, class Op>
  MSCCLGO_DEVICE bool receiveReduced(uint32_t index, Piece& piece, Site site = Site::here()) const {
    using Word = typename Piece::Word;
    static_assert(sizeof(T) <= sizeof(Word), "see PacketOf");
    Reducer<T, Op, Word> sums[Piece::kWords];
#pragma unroll
    for (uint32_t w = 0; w < Piece::kWords; ++w) sums[w] = Reducer<T, Op, Word>(piece.words[w]);
    bool ok = forOthers([&](uint32_t base) {
      uint32_t n = group_.size - 1 - base < kAtOnce ? group_.size - 1 - base : kAtOnce;
      Piece pieces[kAtOnce];
      if (!receiveSome(base, n, index, pieces, site)) return false;
      // This rank's piece goes before the pieces of higher ranks. It is number `own` here, if it is
      // among these, or after the last.
      uint32_t own = group_.rank - base;
      bool among = own < n || (own == n && base + n + 1 == group_.size);
#pragma unroll
      for (uint32_t k = 0; k <= kAtOnce; ++k) {
        if (k >= n + among) break;
#pragma unroll
        for (uint32_t w = 0; w < Piece::kWords; ++w) {
          Word next = pieces[k < kAtOnce ? k : 0].words[w];
          if (among && k > own) next = pieces[k > 0 ? k - 1 : 0].words[w];
          if (among && k == own) next = piece.words[w];
          if (k == 0 && base == 0) {
            sums[w] = Reducer<T, Op, Word>(next);
          } else {
            sums[w].add(next);
          }
        }
      }
      return true;
    });
#pragma unroll
    for (uint32_t w = 0; w < Piece::kWords; ++w) piece.words[w] = sums[w].get(group_.size);
    return ok;
  }

  // exchange calls send(i, load(i)) and receive(i) for each of a thread's packets. It sends kAhead
  // packets ahead, so that some travel while others are received. It returns false as soon as
  // receive() does.
  template <class Load, class Send, class Receive>
  MSCCLGO_DEVICE bool exchange(uint32_t packets, Load load, Send send, Receive receive,
                               Site site = Site::here()) {
    sendFirst(packets, load, send, site);
    return goOn(packets, load, send, receive);
  }

  // sendFirst and goOn are the two parts of exchange, for callers with something to do in between.
  // sendFirst awaits the kernel before (awaitPrevious), and begins the call after the first load. A
  // thread's instructions are issued in order, so the load would otherwise wait for the call's
  // number.
  template <class Load, class Send>
  MSCCLGO_DEVICE void sendFirst(uint32_t packets, Load load, Send send, Site site = Site::here()) {
    uint32_t i = first();
    if (i < packets) {
      awaitPrevious();
      auto data = load(i);
      begin(site);
      send(i, data);
    } else {
      awaitPrevious();
      begin(site);
    }
    for (uint32_t sent = 1; sent < kAhead && (i += stride()) < packets; ++sent) send(i, load(i));
  }

  template <class Load, class Send, class Receive>
  MSCCLGO_DEVICE static bool goOn(uint32_t packets, Load load, Send send, Receive receive) {
    for (uint32_t i = first(); i < packets; i += stride()) {
      uint32_t ahead = i + kAhead * stride();
      if (ahead < packets) send(ahead, load(ahead));
      if (!receive(i)) return false;
    }
    return true;
  }

  // kAhead is how many packets a thread sends before it receives the first. All threads' packets
  // together are more than a link has under way.
  static constexpr uint32_t kAhead = 3;

  // end ends the call. Every thread calls it once, last, unless a wait has failed. An emulated
  // device ends a kernel that does not call it.
  MSCCLGO_DEVICE void end(Site site = Site::here()) const {
    group_.nextEpoch(epoch_, site);
    if (threadIdx.x == 0) span_.end(TraceKind::Packets, group_.watch, 0, epoch_);
  }

 private:
  // forOthers serves the other ranks, kAtOnce at a time: it calls serve(base) with the number of
  // the first of them. If that returns false, it stops and returns false.
  template <class Serve>
  MSCCLGO_DEVICE bool forOthers(Serve serve) const {
    if constexpr (kFourRanks) {
      return serve(0);
    } else {
      for (uint32_t base = 0; base + 1 < group_.size; base += kAtOnce) {
        if (!serve(base)) return false;
      }
      return true;
    }
  }

  // loadSome loads for sendSome.
  template <class PlaceOf>
  MSCCLGO_DEVICE Pieces loadSome(uint32_t ahead, const Packing<Packet>& packing, PlaceOf place) const {
    Pieces pieces = {};
    if (!packing.whole()) return pieces;
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      uint32_t to = ahead + k < group_.size ? peer(group_, ahead + k) : group_.rank;
      if (to != group_.rank && place(to).packet < packing.packets())
        pieces.of[k] = packing.loadWhole(place(to));
    }
    return pieces;
  }

  // sendSome sends piece(k) to the rank that lies base + 1 + k ahead, for each such rank with
  // has(rank). All addresses are made before the first store.
  template <class Has, class PieceOf>
  MSCCLGO_DEVICE void sendSome(uint32_t base, uint32_t index, Has has, PieceOf piece, Site site) const {
    checkIndex("send of packet ", index, site);
    Packet* boxes[kAtOnce];
    uint32_t ahead = detail::unknown(base + 1), some = 0;
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      uint32_t to = ahead + k < group_.size ? peer(group_, ahead + k) : group_.rank;
      boxes[k] = inbox(to, group_.rank, site) + index;
      if (to != group_.rank && has(to)) some |= 1u << k;
    }
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if ((some >> k & 1) != 0) piece(k).write(boxes[k], lane(), epoch_, site);
    }
  }

  // receiveSome waits for packet `index` in n inboxes from number `from` on, and reports whether
  // all came.
  template <uint32_t N>
  MSCCLGO_DEVICE bool receiveSome(uint32_t from, uint32_t n, uint32_t index, Piece (&pieces)[N],
                                  Site site) const {
    checkIndex("receive of packet ", index, site);
    const Packet* packets = inboxes(group_.rank, site) + from * uint64_t(capacity_) + index;
    Watch watch = group_.watch;
    watch.peer = rankOf(from);
    return waitTogether<kThreads>(watch, [&] {
             uint32_t missing = tryReadSome(pieces, packets, capacity_, n, lane(), epoch_);
             if (missing != 0) watch.peer = rankOf(from + __ffs(missing) - 1);
             return missing == 0;
           }) == WaitResult::Done;
  }

  // slot returns the number of rank `from` among the inboxes of rank `to`, which has none from
  // itself. rankOf returns the rank of one of this rank's inboxes.
  MSCCLGO_DEVICE static uint32_t slot(uint32_t to, uint32_t from) { return from <= to ? from : from - 1; }
  MSCCLGO_DEVICE uint32_t rankOf(uint32_t number) const { return number < group_.rank ? number : number + 1; }

  // inboxes returns the packets of rank `of`, and inbox its packets from one rank.
  MSCCLGO_DEVICE Packet* inboxes(uint32_t of, Site site) const {
    return reinterpret_cast<Packet*>(group_.scratch(of, site) + start_ + epoch_ % 2 * half_);
  }
  MSCCLGO_DEVICE Packet* inbox(uint32_t of, uint32_t from, Site site) const {
    return inboxes(of, site) + slot(of, from) * uint64_t(capacity_);
  }

  // checkIndex ends the kernel at a packet that an inbox does not have (check.cuh).
  MSCCLGO_DEVICE void checkIndex(const char* what, uint32_t index, Site site) const {
#if defined(MSCCLGO_CHECK)
    if (epoch_ == 0)
      detail::fault(group_.watch, kNoPeer, site, what, index, " before begin() of the inboxes");
    if (index < capacity_) return;
    detail::fault(group_.watch, kNoPeer, site, what, index, ", and an inbox of the group's scratch has ",
                  uint64_t(capacity_), " of ", uint64_t(sizeof(Packet)), " bytes");
#else
    (void)what, (void)index, (void)site;
#endif
  }

  // checkOther ends it at this rank, and at a rank outside the group.
  MSCCLGO_DEVICE void checkOther(const char* what, uint32_t rank, Site site) const {
#if defined(MSCCLGO_CHECK)
    if (rank < group_.size && rank != group_.rank) return;
    detail::fault(group_.watch, kNoPeer, site, what, rank, " by rank ", group_.rank, " of a group of ",
                  group_.size);
#else
    (void)what, (void)rank, (void)site;
#endif
  }

  const GroupHandle& group_;
  detail::Span span_;
  uint64_t start_, half_;  // where the packets start in the scratch, and the size of a half, bytes
  uint32_t capacity_;      // packets of an inbox
  uint32_t epoch_ = 0;     // the call's number, set by begin()
  uint32_t arrived_ = 0;   // the barriers before it, likewise
#if defined(MSCCLGO_EMU)
  uint32_t before_ = 0;  // the calls that the thread had ended
  Site site_;            // where the Inboxes were made
#endif
};

namespace detail {

template <class Packet, bool Holds>
struct PacketOf {
  using Type = Packet;
};
template <>
struct PacketOf<LL8Packet, false> {
  using Type = LL16Packet;
};

}  // namespace detail

// PacketOf is Packet, unless an element is larger than a thread's word of it: elements of 8 bytes
// take LL16 packets in place of LL8 packets. Half as many packets then take the same room in an
// inbox.
template <class T, class Packet>
using PacketOf = typename detail::PacketOf<Packet, sizeof(T) <= sizeof(typename Piece<Packet>::Word)>::Type;

namespace detail {

// reduceSome reduces Words words in the memory of Ranks ranks: word i from byte `at` on, and the
// words `threads`, 2 * `threads` and so on after it. It calls store(byte, word).
template <class T, class Op, class Word, uint32_t Ranks, uint32_t Words, class Inputs, class Store>
MSCCLGO_DEVICE void reduceSome(const Inputs& in, uint64_t at, uint64_t i, uint64_t threads, Store store) {
  Word words[Words][Ranks];
#pragma unroll
  for (uint32_t w = 0; w < Words; ++w) {
#pragma unroll
    for (uint32_t r = 0; r < Ranks; ++r)
      words[w][r] = reinterpret_cast<const Word*>(in(r) + at)[i + w * threads];
  }
#pragma unroll
  for (uint32_t w = 0; w < Words; ++w) {
    Reducer<T, Op, Word> sum(words[w][0]);
#pragma unroll
    for (uint32_t r = 1; r < Ranks; ++r) sum.add(words[w][r]);
    store(at + (i + w * threads) * sizeof(Word), sum.get(Ranks));
  }
}

// Reduced are words in a row.
template <class Word, uint32_t Count>
struct Reduced {
  Word words[Count];
};

// reduceNext returns the reduction of Count words in a row, from word i after byte `at`
// on, for any number of ranks.
template <class T, class Op, class Word, uint32_t Count, class Inputs>
MSCCLGO_DEVICE Reduced<Word, Count> reduceNext(const Inputs& in, uint32_t ranks, uint64_t at, uint64_t i) {
  constexpr uint32_t kAtOnce = 4 / Count;  // ranks whose words are under way together
  Reducer<T, Op, Word> sums[Count];
  for (uint32_t base = 0; base < ranks; base += kAtOnce) {
    Word words[kAtOnce][Count];
#pragma unroll
    for (uint32_t r = 0; r < kAtOnce; ++r) {
      if (base + r >= ranks) continue;
      const Word* from = reinterpret_cast<const Word*>(in(base + r) + at) + i;
#pragma unroll
      for (uint32_t w = 0; w < Count; ++w) words[r][w] = from[w];
    }
#pragma unroll
    for (uint32_t r = 0; r < kAtOnce; ++r) {
      if (base + r >= ranks) continue;
#pragma unroll
      for (uint32_t w = 0; w < Count; ++w) {
        if (base + r == 0) {
          sums[w] = Reducer<T, Op, Word>(words[r][w]);
        } else {
          sums[w].add(words[r][w]);
        }
      }
    }
  }
  Reduced<Word, Count> result;
#pragma unroll
  for (uint32_t w = 0; w < Count; ++w) result.words[w] = sums[w].get(ranks);
  return result;
}

// reduceWords reduces n words in all ranks' memory, from byte `at` on. Ranks is the number
// of ranks, or 0 for any.
template <class T, class Op, class Word, uint32_t Ranks, uint32_t Loads, class Inputs, class Store>
MSCCLGO_DEVICE void reduceWords(const Inputs& in, uint32_t ranks, uint64_t at, uint64_t n, uint64_t thread,
                                uint64_t threads, Store store) {
  uint64_t i = thread;
  if constexpr (Ranks == 0) {
    for (; i < n; i += threads)
      store(at + i * sizeof(Word), reduceNext<T, Op, Word, 1>(in, ranks, at, i).words[0]);
  } else {
    constexpr uint32_t kWords = Ranks < Loads ? Loads / Ranks : 1;
    for (; i + (kWords - 1) * threads < n; i += kWords * threads)
      reduceSome<T, Op, Word, Ranks, kWords>(in, at, i, threads, store);
    for (; i < n; i += threads) reduceSome<T, Op, Word, Ranks, 1>(in, at, i, threads, store);
  }
}

// reduceShifted is reduceWords for outputs whose words start `shift` bytes into the inputs' words.
// It stores n - 1 words, each made from two. Neighbouring threads read the second one too, from the
// cache.
template <class T, class Op, class Inputs, class Store>
MSCCLGO_DEVICE void reduceShifted(const Inputs& in, uint32_t ranks, uint64_t at, uint64_t n, uint32_t shift,
                                  uint64_t thread, uint64_t threads, Store store) {
  for (uint64_t i = thread; i + 1 < n; i += threads) {
    Reduced<uint4, 2> pair = reduceNext<T, Op, uint4, 2>(in, ranks, at, i);
    store(at + i * sizeof(uint4) + shift, shifted(pair.words[0], pair.words[1], shift));
  }
}

// reduceElements is reduceWords for n elements of any alignment, one at a time.
template <class T, class Op, class Inputs, class Store>
MSCCLGO_DEVICE void reduceElements(const Inputs& in, uint32_t ranks, uint64_t at, uint64_t n, uint64_t thread,
                                   uint64_t threads, Store store) {
  for (uint64_t i = thread; i < n; i += threads) {
    uint64_t from = at + i * sizeof(T);
    Reducer<T, Op, T> sum(loadPartial<T>(in(0) + from, sizeof(T)));
    for (uint32_t rank = 1; rank < ranks; ++rank) sum.add(loadPartial<T>(in(rank) + from, sizeof(T)));
    store(from, sum.get(ranks));
  }
}

}  // namespace detail

// Alignment is how the memories of a reduction lie in words of 16 bytes.
struct Alignment {
  uint64_t inputs;   // the bits in which the inputs' addresses differ; see skewOf
  uint64_t outputs;  // likewise of the outputs
  uint64_t shift;    // an output's address less an input's
};

// reduceRange reduces the bytes from `from` to `to`, whole elements, of all ranks' inputs, in the
// order of the ranks. The input of rank r is at in(r), a const uint8_t*. `threads` threads call it,
// and the caller is number `thread` of them. It calls store(byte, word) with words of 16 bytes or
// of 4 (8 for elements of 8), aligned in the outputs, or with single elements of any alignment. A
// thread has about Loads loads under way at a time, since each takes a trip to memory; over a link
// there are more than in this device's memory.
template <class T, class Op, uint32_t Loads, class Inputs, class Store>
MSCCLGO_DEVICE void reduceRange(const Inputs& in, uint32_t ranks, uint64_t from, uint64_t to,
                                const Alignment& alignment, uint64_t thread, uint64_t threads, Store store) {
  if (from >= to) return;
  uint64_t start = reinterpret_cast<uintptr_t>(in(0)) + from;
  uint64_t any = alignment.inputs | alignment.outputs | alignment.shift;
  constexpr uint64_t kNarrow = sizeof(T) > 4 ? sizeof(T) : 4;
  uint64_t width = 1;
  if ((alignment.inputs | alignment.outputs) % 16 == 0 && alignment.shift % sizeof(T) == 0) {
    width = 16;
  } else if (any % kNarrow == 0) {
    width = kNarrow;
  }
  uint64_t head = (0 - start) % width;
  if (width == 1 || head % sizeof(T) != 0) {
    detail::reduceElements<T, Op>(in, ranks, from, (to - from) / sizeof(T), thread, threads, store);
    return;
  }
  if (head > to - from) head = to - from;
  uint64_t body = from + head, words = (to - body) / width, tail = body + words * width;
  uint32_t shift = width == 16 ? uint32_t(0 - alignment.shift) % 16 : 0;
  if (width == kNarrow) {
    detail::reduceWords<T, Op, typename detail::Word<kNarrow>::Type, 0, Loads>(in, ranks, body, words, thread,
                                                                               threads, store);
  } else if (shift != 0) {
    detail::reduceShifted<T, Op>(in, ranks, body, words, shift, thread, threads, store);
    if (words > 0) head += shift, tail -= 16 - shift;
  } else if (ranks == 2) {
    detail::reduceWords<T, Op, uint4, 2, Loads>(in, ranks, body, words, thread, threads, store);
  } else if (ranks == 4) {
    detail::reduceWords<T, Op, uint4, 4, Loads>(in, ranks, body, words, thread, threads, store);
  } else if (!kFourRanks && ranks == 8) {
    detail::reduceWords<T, Op, uint4, 8, Loads>(in, ranks, body, words, thread, threads, store);
  } else {
    detail::reduceWords<T, Op, uint4, 0, Loads>(in, ranks, body, words, thread, threads, store);
  }
  // The threads with the least of the body do the few elements around it.
  uint64_t last = threads - 1 - thread;
  detail::reduceElements<T, Op>(in, ranks, from, head / sizeof(T), last, threads, store);
  detail::reduceElements<T, Op>(in, ranks, tail, (to - tail) / sizeof(T), last, threads, store);
}

// kLoadsOfPeers and kLoadsOfOwn are how many loads a thread has under way from peers' memory and
// from this device's memory.
constexpr uint32_t kLoadsOfPeers = 8, kLoadsOfOwn = 4;

// storeReduced stores a word for reduceRange. Words of 16 bytes are known to be aligned.
template <class Word>
MSCCLGO_DEVICE void storeReduced(uint8_t* dst, Word word) {
  if constexpr (sizeof(Word) == 16) {
    *reinterpret_cast<Word*>(dst) = word;
  } else {
    storePartial(dst, word, sizeof(Word));
  }
}

// ToAll stores a word into the outputs of all ranks, for reduceRange.
struct ToAll {
  const GroupHandle& group;
  const PeerMemory& out;

  template <class Word>
  MSCCLGO_DEVICE void operator()(uint64_t at, Word word) const {
    for (uint32_t k = 0; k < group.size; ++k) storeReduced(out.of<uint8_t>(peer(group, k)) + at, word);
  }
};

// ToOne stores a word into one output, for reduceRange. Byte 0 of the inputs goes to `out`, though
// the range may not have it.
struct ToOne {
  uint8_t* out;

  template <class Word>
  MSCCLGO_DEVICE void operator()(uint64_t at, Word word) const {
    storeReduced(out + at, word);
  }
};

// kLine is the bytes that a link carries best: part of a line takes as long.
constexpr uint64_t kLine = 128;

// Shards divide data among the ranks. The first shard starts where the data do, the
// others at lines of kLine bytes. All hold whole elements.
class Shards {
 public:
  // data is any rank's, of elements of `element` bytes.
  MSCCLGO_DEVICE Shards(const void* data, uint64_t bytes, uint64_t element, uint32_t ranks)
      : bytes_(bytes),
        head_((0 - reinterpret_cast<uintptr_t>(data)) % kLine / element * element),
        share_(divideUp(divideUp(bytes, kLine), ranks) * kLine) {}

  // start returns the byte where rank r's shard starts. If r is the number of ranks, that is the
  // end of the data.
  MSCCLGO_DEVICE uint64_t start(uint32_t r) const {
    uint64_t at = r == 0 ? 0 : head_ + r * share_;
    return at < bytes_ ? at : bytes_;
  }

  // longest returns the bytes of the longest shard.
  MSCCLGO_DEVICE uint64_t longest() const { return start(1); }

 private:
  uint64_t bytes_, head_, share_;
};

// skewOf returns the bits in which the addresses of the ranks' memory differ from one address.
MSCCLGO_DEVICE uint64_t skewOf(const PeerMemory& memory, uint32_t ranks, const void* address,
                               Site site = Site::here()) {
  uint64_t skew = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    skew |= uint64_t(reinterpret_cast<uintptr_t>(memory.of<uint8_t>(rank, site)) ^
                     reinterpret_cast<uintptr_t>(address));
  return skew;
}

}  // namespace mscclgo
