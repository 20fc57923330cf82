// All-to-alls with a count for each pair of ranks; gathers and scatters are the cases with most
// counts 0. A rank knows its own counts and where its own data are. It does not know other pairs'
// counts, or where its peers' data are. Any size and alignment; not in place, but a rank's part for
// itself may lie at its place.
#include <mscclgo/collective.cuh>
#include <mscclgo/posts.cuh>

using namespace mscclgo;

namespace {

// Part is the data to a rank, or from it, as bytes of this rank's input or output.
struct Part {
  uint64_t at, bytes;
};

// Parts are the parts of all ranks, in whole lines of the constant bank, like handles (group.cuh).
struct Parts {
  Part ranks[kRanksByValue];  // of the first ranks
  const Part* more;           // of the others, in device memory
  uint64_t unused[7];

  MSCCLGO_DEVICE const Part& of(uint32_t rank) const {
    return !kManyRanks || rank < kRanksByValue ? ranks[rank] : more[rank - kRanksByValue];
  }
};

// kInStore is how many parts go with the parameters of storeParts; partsInStore of slots.go.
constexpr uint32_t kInStore = 240;

// Some is parts for storeParts, and their destination.
struct Some {
  Part* to;
  uint32_t count;
  Part parts[kInStore];
};

// kSlots is how many pieces of a stream may be under way; kSlots of alltoallv.go.
constexpr uint32_t kSlots = 4;

// Lot is what a stream carries of a part, in lines of kLine bytes.
struct Lot {
  uint32_t from, to;  // of the part
  uint32_t piece;     // of a step

  MSCCLGO_DEVICE uint32_t steps() const { return (to - from + piece - 1) / piece; }
};

// Exchange is one rank's view of a call.
//
// Parts of `small` bytes at most go as packets. A larger part is divided among the `streams`
// streams from each rank to each. It goes piece by piece through the stream's slots in the
// receiver's inbox, and the receiver copies it to its place. A stream has a flag in the receiver's
// inbox for the number of pieces that have arrived, and one in the sender's for the number copied.
// Above the count a flag has the call's number, whose 41 bits do not repeat in a job's life: so an
// old flag is not of this call. A part's way depends on its size alone, so both ends agree.
struct Exchange {
  const GroupHandle& group;
  const PeerMemory& inbox;
  const Parts& sends;
  const Parts& receives;
  const uint8_t* in;
  uint8_t* out;
  uint64_t small, slotBytes;
  uint32_t streams, type;  // type: as for Elements::of
  uint32_t epoch = 0;
  uint64_t number = 0;  // of the call among those by slots

  static constexpr uint32_t kCountBits = 23;  // for 256 GiB by one stream in slots of 33 KiB or more

  // awaitParts waits until all parts may be read: the parts in device memory are from a kernel
  // before. Those among the parameters are read while that kernel ends.
  MSCCLGO_DEVICE void awaitParts() const {
    if (kManyRanks && group.size > kRanksByValue) awaitPrevious();
  }

  // begin awaits the kernel before, and reads the call's numbers. Every thread calls it.
  MSCCLGO_DEVICE void begin() {
    awaitPrevious();
    epoch = group.epoch();
    number = numbers()[blockIdx.x] + 1;
  }

  MSCCLGO_DEVICE Lot lot(uint64_t bytes, uint32_t stream) const {
    constexpr uint32_t kLeastLot = (16 << 10) / kLine, kLeastPiece = (8 << 10) / kLine, kPieces = 4;
    if (bytes <= small) return {0, 0, 1};
    uint32_t lines = uint32_t(divideUp(bytes, kLine)), most = uint32_t(slotBytes / kLine);
    uint32_t used = (lines + kLeastLot - 1) / kLeastLot;
    if (used > streams) used = streams;
    uint32_t share = (lines + used - 1) / used, piece = (share + kPieces - 1) / kPieces;
    if (piece < kLeastPiece) piece = kLeastPiece;
    if (piece > most) piece = most;
    uint64_t from = uint64_t(stream) * share;
    if (stream >= used || from >= lines) return {0, 0, piece};
    return {uint32_t(from), share < lines - uint32_t(from) ? uint32_t(from) + share : lines, piece};
  }

  // range calls use(from, bytes) for a step's share of a part.
  template <class Use>
  MSCCLGO_DEVICE static void range(const Lot& lot, uint32_t step, uint64_t bytes, Use use) {
    uint64_t from = (lot.from + uint64_t(step) * lot.piece) * kLine, end = from + lot.piece * kLine;
    if (end > lot.to * kLine) end = lot.to * kLine;
    if (end > bytes) end = bytes;  // the last line is not whole
    use(from, end - from);
  }

  // arrived and copied are the flags of rank `of` for a stream from a peer and for one to it.
  MSCCLGO_DEVICE uint64_t* arrived(uint32_t of, uint32_t peer, uint32_t stream) const {
    return inbox.of<uint64_t>(of) + stream * group.size + peer;
  }
  MSCCLGO_DEVICE uint64_t* copied(uint32_t of, uint32_t peer, uint32_t stream) const {
    return arrived(of, peer, streams + stream);
  }
  // counted returns where a peer writes for rank `of` what it sends. Calls use two words in turn,
  // like inboxes of packets.
  MSCCLGO_DEVICE uint64_t* counted(uint32_t of, uint32_t peer) const {
    return arrived(of, peer, 2 * streams + number % 2);
  }
  // reported returns this rank's word for reportOnce: the flag of a stream to itself.
  MSCCLGO_DEVICE uint64_t* reported() const { return arrived(group.rank, group.rank, 2 * streams); }
  // numbers returns this rank's count of calls, for each of kMaxBlocks blocks. It follows
  // the flags.
  MSCCLGO_DEVICE uint64_t* numbers() const {
    uint64_t flags = divideUp(uint64_t(streams + 1) * group.size * 2 * sizeof(uint64_t), kLine) * kLine;
    return reinterpret_cast<uint64_t*>(inbox.of<uint8_t>(group.rank) + flags);
  }
  // slot returns where rank `of` gets a piece from a peer. The slots follow the numbers.
  MSCCLGO_DEVICE uint8_t* slot(uint32_t of, uint32_t from, uint32_t stream, uint32_t step) const {
    uint64_t flags = divideUp(uint64_t(streams + 1) * group.size * 2 * sizeof(uint64_t), kLine) * kLine;
    uint64_t which = (uint64_t(stream) * group.size + from) * kSlots + step % kSlots;
    return inbox.of<uint8_t>(of) + flags + kMaxBlocks * sizeof(uint64_t) + which * slotBytes;
  }

  // end counts the call, also for the blocks that were not launched. Every thread of every
  // block calls it, last.
  MSCCLGO_DEVICE void end() const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kMaxBlocks; b += blockDim.x * gridDim.x)
      numbers()[b] = number;
    group.nextEpoch(epoch);
  }

  // tell stores a count in a flag, and with it makes visible what the block's threads did before
  // (release at system scope). Every thread of the block calls it.
  MSCCLGO_DEVICE void tell(uint64_t* flag, uint32_t count) const {
    __syncthreads();
    if (threadIdx.x == 0) store<Scope::System, Order::Release>(flag, number << kCountBits | count);
  }
  // heard waits for a count in this rank's flag, stored by a peer (acquire at system scope). Every
  // thread of the block gets the same result: false if the wait failed.
  MSCCLGO_DEVICE bool heard(const uint64_t* flag, uint32_t count, uint32_t peer) const {
    bool ok = true;
    if (threadIdx.x == 0) {
      Watch watch = group.watch;
      watch.peer = peer;
      ok = waitUntil(watch, [&] {
             uint64_t seen = load<Scope::System, Order::Relaxed>(flag);
             return (seen ^ number << kCountBits) >> kCountBits == 0 &&
                    (seen & ((1u << kCountBits) - 1)) >= count;
           }) == WaitResult::Done;
      fence<Scope::System, Order::Acquire>();
    }
    return blockAll(ok);
  }

  // keep copies a step's share of this rank's part for itself.
  MSCCLGO_DEVICE void keep(const Lot& lot, uint32_t step) const {
    const uint8_t* src = in + sends.of(group.rank).at;
    uint8_t* dst = out + receives.of(group.rank).at;
    range(lot, step, sends.of(group.rank).bytes, [&](uint64_t from, uint64_t n) {
      if (dst != src) copy(dst + from, src + from, n, threadIdx.x, blockDim.x);
    });
  }
  // push writes a piece into a peer's inbox.
  MSCCLGO_DEVICE bool push(const Lot& lot, uint32_t to, uint32_t stream, uint32_t step) const {
    if (step >= kSlots && !heard(copied(group.rank, to, stream), step - kSlots + 1, to)) return false;
    range(lot, step, sends.of(to).bytes, [&](uint64_t from, uint64_t n) {
      copy(slot(to, group.rank, stream, step), in + sends.of(to).at + from, n, threadIdx.x, blockDim.x);
    });
    tell(arrived(to, group.rank, stream), step + 1);
    return true;
  }
  // pull copies a piece from this rank's inbox to its place.
  MSCCLGO_DEVICE bool pull(const Lot& lot, uint32_t from, uint32_t stream, uint32_t step) const {
    if (!heard(arrived(group.rank, from, stream), step + 1, from)) return false;
    range(lot, step, receives.of(from).bytes, [&](uint64_t at, uint64_t n) {
      copy(out + receives.of(from).at + at, slot(group.rank, from, stream, step), n, threadIdx.x, blockDim.x);
    });
    tell(copied(from, group.rank, stream), step + 1);
    return true;
  }

  // anyLarge reports whether there is a part for large() to move.
  MSCCLGO_DEVICE bool anyLarge() const {
    for (uint32_t rank = 0; rank < group.size; ++rank)
      if (sends.of(rank).bytes > small || receives.of(rank).bytes > small) return true;
    return false;
  }

  // large moves the parts that are not small. Each block has some of the streams. In a step of its
  // loop it sends a piece of each, and then receives the pieces of the step before. So a block
  // waits only for slower blocks, and the slowest waits for none. Any block of a rank may have a
  // stream, and ranks may have different numbers of blocks.
  //
  // A rank ends when its pieces have been copied, and their slots are free for the next call.
  MSCCLGO_DEVICE bool large() const {
    if (!anyLarge()) return true;  // since the divisions alone take longer than packets
    uint32_t all = streams * group.size, most = 0;
    for (uint32_t s = blockIdx.x; s < all; s += gridDim.x) {
      uint32_t k = s % group.size, stream = s / group.size;
      uint32_t out = lot(sends.of(peer(group, k)).bytes, stream).steps();
      uint32_t in = lot(receives.of(peer(group, group.size - k)).bytes, stream).steps();
      if (out > most) most = out;
      if (in > most) most = in;
    }
    for (uint32_t step = 0; most > 0 && step <= most; ++step) {
      for (uint32_t s = blockIdx.x; s < all; s += gridDim.x) {
        uint32_t to = peer(group, s % group.size), stream = s / group.size;
        Lot l = lot(sends.of(to).bytes, stream);
        if (step >= l.steps()) continue;
        if (to == group.rank) {
          keep(l, step);
        } else if (!push(l, to, stream, step)) {
          return false;
        }
      }
      for (uint32_t s = blockIdx.x; s < all && step > 0; s += gridDim.x) {
        uint32_t from = peer(group, group.size - s % group.size), stream = s / group.size;
        Lot l = lot(receives.of(from).bytes, stream);
        if (step - 1 < l.steps() && from != group.rank && !pull(l, from, stream, step - 1)) return false;
      }
    }
    for (uint32_t s = blockIdx.x; s < all; s += gridDim.x) {
      uint32_t to = peer(group, s % group.size), stream = s / group.size;
      uint32_t steps = lot(sends.of(to).bytes, stream).steps();
      if (steps > 0 && to != group.rank && !heard(copied(group.rank, to, stream), steps, to)) return false;
    }
    return true;
  }
};

// Packets moves the parts of more than `above` bytes and at most `upTo`; an inbox of packets must
// hold them.
template <class Packet>
class Packets {
 public:
  MSCCLGO_DEVICE Packets(const Exchange& call, uint64_t above, uint64_t upTo)
      : call_(call), inboxes_(call.group), above_(above), upTo_(upTo) {
    uint64_t most = 0;
    for (uint32_t rank = 0; rank < call.group.size; ++rank) {
      uint64_t out = call.sends.of(rank).bytes, in = call.receives.of(rank).bytes;
      if (rank == call.group.rank) continue;
      if (has(out) && out > most) most = out;
      if (has(in) && in > most) most = in;
    }
    packets_ = uint32_t(divideUp(most, Piece<Packet>::kPayload));
  }

  // begin sends each thread's first packets, and finish goes on. It is false if a wait
  // failed.
  MSCCLGO_DEVICE void begin() {
    inboxes_.sendFirst(
        packets_, [](uint32_t i) { return i; }, [&](uint32_t i, uint32_t) { send(i); });
  }
  MSCCLGO_DEVICE bool finish() const {
    return inboxes_.goOn(
        packets_, [](uint32_t i) { return i; }, [&](uint32_t i, uint32_t) { send(i); },
        [&](uint32_t i) { return receive(i); });
  }

 private:
  MSCCLGO_DEVICE bool has(uint64_t bytes) const { return bytes > above_ && bytes <= upTo_; }

  MSCCLGO_DEVICE void send(uint32_t i) const {
    uint64_t at = uint64_t(i) * Piece<Packet>::kPayload;
    for (uint32_t k = 1; k < call_.group.size; ++k) {
      uint32_t to = peer(call_.group, k);
      const auto& part = call_.sends.of(to);
      if (!has(part.bytes) || at >= part.bytes) continue;
      Piece<Packet> piece;
      piece.load(call_.in + part.at + at, part.bytes - at, inboxes_.lane());
      inboxes_.send(to, i, piece);
    }
  }
  MSCCLGO_DEVICE bool receive(uint32_t i) const {
    uint64_t at = uint64_t(i) * Piece<Packet>::kPayload;
    for (uint32_t k = 1; k < call_.group.size; ++k) {
      uint32_t from = peer(call_.group, k);
      const auto& part = call_.receives.of(from);
      if (!has(part.bytes) || at >= part.bytes) continue;
      Piece<Packet> piece;
      if (!inboxes_.receive(from, i, piece)) return false;
      piece.store(call_.out + part.at + at, part.bytes - at, inboxes_.lane());
    }
    return true;
  }

  const Exchange& call_;
  Inboxes<Packet> inboxes_;
  uint64_t above_, upTo_;
  uint32_t packets_;
};

// mismatch reports that a rank receives other data than another sends to it, in the call of that
// number. `reported` is the word for reportOnce, and peer the other rank of the two.
__device__ __noinline__ void mismatch(const Watch& watch, uint64_t* reported, uint32_t peer, uint32_t from,
                                      Elements sends, uint32_t to, Elements receives, uint64_t number) {
  detail::reportOnce(reported, watch.status, peer, "rank ", from, " sends ", sends.count(), " ", sends.type(),
                     " to rank ", to, ", which receives ", receives.count(), " ", receives.type(),
                     ", in call ", number, " by slots");
}

// agreed writes to each peer what this rank sends to it, and compares what the peers send with what
// this rank receives: if they differ the group fails. Afterwards all ranks have begun the call, as
// inboxes in turns need. It costs no extra trip, since the counts travel beside the first packets.
// All threads of one block call it and get the same result.
MSCCLGO_DEVICE bool agreed(const Exchange& call) {
  const GroupHandle& group = call.group;
  // 16 bits of the number are enough: the word is of this call or the last but one.
  auto word = [&](const Part& part) {
    return call.number << Elements::kBits | Elements::of(call.type, part.bytes).what;
  };
  bool ok = true;
  for (uint32_t p = threadIdx.x; p < group.size; p += blockDim.x) {
    if (p == group.rank) continue;
    store<Scope::System, Order::Relaxed>(call.counted(p, group.rank), word(call.sends.of(p)));
    Watch watch = group.watch;
    watch.peer = p;
    const uint64_t* theirs = call.counted(group.rank, p);
    uint64_t want = word(call.receives.of(p));
    WaitResult result = waitUntil(watch, [&] {
      uint64_t differs = load<Scope::System, Order::Relaxed>(theirs) ^ want;
      if (differs >> Elements::kBits != 0) return false;  // they have not begun
      if (differs != 0) {                                 // here, where lanes need not wait for the others
        constexpr uint64_t kWhat = (uint64_t(1) << Elements::kBits) - 1;
        mismatch(watch, call.reported(), p, p, {(want ^ differs) & kWhat}, group.rank, {want & kWhat},
                 call.number);
        ok = false;
      }
      return true;
    });
    if (result != WaitResult::Done) ok = false;
  }
  return blockAll(ok);
}

// begun copies small parts of this rank for itself while the first packets travel, and has the
// first block wait for agreement.
MSCCLGO_DEVICE bool begun(const Exchange& call) {
  const auto& own = call.sends.of(call.group.rank);
  const uint8_t* src = call.in + own.at;
  uint8_t* dst = call.out + call.receives.of(call.group.rank).at;
  if (own.bytes <= call.small && dst != src)
    copy(dst, src, own.bytes, uint32_t(firstThread()), uint32_t(allThreads()));
  return blockIdx.x > 0 || agreed(call);
}

// Posted is one rank's view of a call by ports, for ranks on several hosts. A pair's part goes in
// pieces through the pair's posts. A piece begins with the part's Elements and the call's number.
// The receiver compares them before it writes: the group fails if they differ. A call ends when all
// posts are free, so a piece may come before its receiver has begun the call.
struct Posted : Posts {  // whose inbox begins with two words for each rank, zeros before the first call
  uint64_t* numbers;     // of the calls: to each rank, and then from each; the word to
                         // itself is the word for reportOnce
  uint32_t type;         // as for Elements::of

  // If a rank has no part for a peer, or expects none from it, it says so, since the peer might
  // wait for data or for answers: by a word before the peer's posts, on the channel for them. The
  // words are 1 + the number of the call: first the words of ranks that send none.
  static constexpr uint64_t kGrace = 100000000;  // nanoseconds

  MSCCLGO_DEVICE uint64_t pieces(const Part& part) const { return divideUp(part.bytes, room()); }
  // size returns the bytes of a piece.
  MSCCLGO_DEVICE uint64_t size(const Part& part, uint64_t piece) const {
    uint64_t left = part.bytes - piece * room();
    return left < room() ? left : room();
  }

  // tell writes to peers which parts there are not in call `number`. One thread calls it.
  MSCCLGO_DEVICE bool tell(uint32_t to, const Part& send, uint32_t from, const Part& receive,
                           uint64_t number) const {
    constexpr uint64_t kWord = sizeof(uint64_t);
    return (send.bytes > 0 || channel(rank, to).store(rank * kWord, number + 1) == WaitResult::Done) &&
           (receive.bytes > 0 ||
            channel(from, rank).store((ranks + rank) * kWord, number + 1) == WaitResult::Done);
  }

  // await waits for a signal of call `number`, unless the word says that there is none: told is
  // then true. A peer whose word is of a later call has ended this one. Its channel passes on this
  // call's signals before that word, so none comes after it. A relaxed load may still see the word
  // before the signal's count, in other memory. kGrace is far longer than that takes, and the count
  // is read first each time. One thread calls it.
  MSCCLGO_DEVICE WaitResult await(const PortChannelHandle& channel, uint64_t word, uint64_t number,
                                  bool& told) const {
    uint64_t since = 0;
    told = false;
    return channel.base.semaphore.waitUnless([&] {
      uint64_t seen = load<Scope::System, Order::Relaxed>(reinterpret_cast<const uint64_t*>(inbox) + word);
      int64_t ahead = int64_t(seen - (number + 1));
      if (ahead > 0 && since == 0) since = nanoseconds();
      told = ahead == 0 || (ahead > 0 && int64_t(nanoseconds() - since) > int64_t(kGrace));
      return told;
    });
  }

  // answered waits until a piece to a rank has been read in call `number`. One thread calls it.
  MSCCLGO_DEVICE bool answered(uint32_t to, const Part& part, uint64_t number) const {
    const PortChannelHandle& out = channel(rank, to);
    bool none;
    WaitResult result = await(out, ranks + to, number, none);
    if (none)
      mismatch(out.base.semaphore.watch, numbers + rank, to, rank, Elements::of(type, part.bytes), to,
               Elements::of(type, 0), number + 1);
    return result == WaitResult::Done;
  }

  // matches waits for a piece of call `number`, and compares the words before its data. One thread
  // calls it.
  MSCCLGO_DEVICE bool matches(uint32_t from, const Part& part, uint64_t piece, uint64_t number) const {
    const PortChannelHandle& in = channel(from, rank);
    bool none;
    if (await(in, from, number, none) != WaitResult::Done && !none) return false;
    Elements receives = Elements::of(type, part.bytes), sends = Elements::of(type, 0);
    uint64_t call = number;
    if (!none) {
      const uint64_t* head = arrived(from, piece);  // the wait acquires it
      sends.what = head[0], call = head[1];
      if (sends.what == receives.what && call == number) return true;
      // A piece is of another call if one of the two ranks has none in the earlier call.
      if (int64_t(call - number) > 0) sends = Elements::of(type, 0), call = number;
      if (int64_t(call - number) < 0) receives = Elements::of(type, 0);
    }
    mismatch(in.base.semaphore.watch, numbers + rank, from, from, sends, rank, receives, call + 1);
    return false;
  }

  // send sends a piece of call `number`, once its post is free. All threads of the block call it
  // and get the same result.
  MSCCLGO_DEVICE bool send(uint32_t to, const uint8_t* in, const Part& part, uint64_t piece,
                           uint64_t number) const {
    if (!blockAll(threadIdx.x != 0 || piece < kPosts || answered(to, part, number))) return false;
    return put<BlockThreads>(to, piece, Elements::of(type, part.bytes).what, number,
                             in + part.at + piece * room(), size(part, piece));
  }

  // receive waits for a piece of call `number` and copies it to its place. All threads of the block
  // call it and get the same result.
  MSCCLGO_DEVICE bool receive(uint32_t from, uint8_t* out, const Part& part, uint64_t piece,
                              uint64_t number) const {
    if (!blockAll(threadIdx.x != 0 || matches(from, part, piece, number))) return false;
    return take<BlockThreads>(from, piece, out + part.at + piece * room(), size(part, piece));
  }

  // exchange sends a part to one rank, kPosts pieces ahead, and receives one from another. All
  // threads of the block call it.
  MSCCLGO_DEVICE bool exchange(uint32_t to, const uint8_t* in, const Part& send, uint32_t from, uint8_t* out,
                               const Part& receive) const {
    uint64_t sent = 0, sends = pieces(send), receives = pieces(receive);
    uint64_t sending = numbers[to], receiving = numbers[ranks + from];
    for (; sent < sends && sent < kPosts; ++sent)
      if (!this->send(to, in, send, sent, sending)) return false;
    bool none = sends == 0 || receives == 0;
    if (none && !blockAll(threadIdx.x != 0 || tell(to, send, from, receive, sending))) return false;
    for (uint64_t got = 0; got < receives || sent < sends; ++got) {
      if (got < receives && !this->receive(from, out, receive, got, receiving)) return false;
      if (sent < sends && !this->send(to, in, send, sent++, sending)) return false;
    }
    bool ok = true;
    for (uint64_t i = 0; threadIdx.x == 0 && ok && i < sends && i < kPosts; ++i)
      ok = answered(to, send, sending);
    if (!blockAll(ok)) return false;
    if (threadIdx.x == 0) {  // all have read them
      numbers[to] = sending + 1;
      numbers[ranks + from] = receiving + 1;
    }
    return true;
  }
};

}  // namespace

// storeParts writes parts to device memory that do not fit the parameters of a call's kernel. That
// kernel comes next in the stream, and so sees them. One block of any threads.
extern "C" __global__ void storeParts(__grid_constant__ const Some some) {
  for (uint32_t i = threadIdx.x; i < some.count; i += blockDim.x) some.to[i] = some.parts[i];
}

// sends and receives are the parts of this rank's in and out; its parts to and from itself are
// equal. inbox holds each rank's inbox, of zeros before its first call. It has two words of 8 bytes
// for each rank, and for each of `streams` streams to it, up to a whole line; then a word for each
// of kMaxBlocks blocks; then kSlots slots for each stream, of slotBytes bytes, whole lines too.
// Ranks agree on the kernel, tiny, small, slotBytes and streams, and may differ in their numbers of
// blocks. A part has fewer than 256 GiB.
#define PARAMETERS                                                                                    \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory inbox,                \
      __grid_constant__ const Parts sends, __grid_constant__ const Parts receives, const uint8_t *in, \
      uint8_t *out, uint64_t tiny, uint64_t small, uint64_t slotBytes, uint32_t streams, uint32_t type

// slotsLL16 takes LL16 packets for small parts.
extern "C" __global__ void __launch_bounds__(1024, 1) slotsLL16(PARAMETERS) {
  Exchange call{group, inbox, sends, receives, in, out, small, slotBytes, streams, type};
  (void)tiny;
  call.awaitParts();
  Packets<LL16Packet> packets(call, 0, small);
  call.begin();
  packets.begin();
  if (begun(call) && blockAll(packets.finish()) && call.large()) call.end();
}

// slotsLL128 takes LL8 packets for tiny parts, and LL128 packets for small ones.
extern "C" __global__ void __launch_bounds__(1024, 1) slotsLL128(PARAMETERS) {
  Exchange call{group, inbox, sends, receives, in, out, small, slotBytes, streams, type};
  call.awaitParts();
  Packets<LL8Packet> few(call, 0, tiny);
  Packets<LL128Packet> more(call, tiny, small);
  call.begin();
  few.begin();
  more.begin();
  if (begun(call) && blockAll(few.finish()) && blockAll(more.finish()) && call.large()) call.end();
}

// posts is for ranks on several hosts. sends, receives, in and out are as above. Block b sends to
// the ranks that lie 1 + b, 1 + b + gridDim.x and so on ahead, and receives from the ranks as far
// behind. All ranks go through their peers in this order, so that no two wait for each other,
// whatever their numbers of blocks. Ranks agree on postBytes, a multiple of 16.
extern "C" __global__ void __launch_bounds__(512, 1)
    posts(const PortChannelHandle* channels, uint8_t* outbox, const uint8_t* inbox, uint64_t* numbers,
          uint64_t postBytes, uint32_t rank, uint32_t ranks, __grid_constant__ const Parts sends,
          __grid_constant__ const Parts receives, const uint8_t* in, uint8_t* out, uint32_t type) {
  Posted call{{channels, outbox, inbox, 2 * ranks * sizeof(uint64_t), postBytes, rank, ranks}, numbers, type};
  const uint8_t* src = in + sends.of(rank).at;
  uint8_t* dst = out + receives.of(rank).at;
  if (src != dst) copy(dst, src, sends.of(rank).bytes, uint32_t(firstThread()), uint32_t(allThreads()));
  for (uint32_t k = 1 + blockIdx.x; k < ranks; k += gridDim.x) {
    uint32_t to = (rank + k) % ranks, from = (rank + ranks - k) % ranks;
    if (!call.exchange(to, in, sends.of(to), from, out, receives.of(from))) return;
  }
}
