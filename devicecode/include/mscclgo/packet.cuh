// LL packets carry data and a flag in one store, so that a receiver needs no signal.
//
// LL8 and LL16 packets hold words of 8 bytes, half data and half flag. An 8-byte access is
// single-copy atomic (PTX, "Memory Consistency Model"; so is each element of a vector access), so a
// thread that reads the expected flag in a word also reads the data stored with it. No other memory
// is ordered. The price is that half of the bytes moved are flags.
//
// LL128 packets hold lines of 128 bytes, 120 of data and 8 of flag, and rely on more
// than PTX guarantees: see LL128Packet.
//
// A flag must differ from every flag that the same packet held before, as the epochs of a
// group do (group.cuh). Memory for packets is zeroed at first, and 0 is never a flag. LL8
// and LL16 packets may share memory, since every 8 bytes of either end in a flag. LL128
// packets need memory of their own.
#pragma once

#include <mscclgo/check.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/wait.cuh>

namespace mscclgo {

// LL8Packet carries 4 bytes in 8.
struct alignas(8) LL8Packet {
  using Payload = uint32_t;

  uint64_t word;

  // write stores data and flag. Any thread may call it. It is relaxed at system scope.
  MSCCLGO_DEVICE void write(Payload data, uint32_t flag) {
    store<Scope::System, Order::Relaxed>(&word, uint64_t(flag) << 32 | data);
  }

  // tryRead reports whether the packet holds the flag, and sets data. Any thread may call
  // it.
  MSCCLGO_DEVICE bool tryRead(uint32_t flag, Payload& data) const {
    uint64_t found[2];
    fetch(0, found);
    return unpack(found, flag, data);
  }

  // fetch and unpack are the two parts of tryRead: the load, and the look at its words. Readers of
  // several packets make all loads before the first look.
  MSCCLGO_DEVICE void fetch(uint32_t, uint64_t (&found)[2]) const {
    found[0] = load<Scope::System, Order::Relaxed>(&word);
  }
  MSCCLGO_DEVICE static bool unpack(const uint64_t (&found)[2], uint32_t flag, Payload& data) {
    data = uint32_t(found[0]);
    return uint32_t(found[0] >> 32) == flag;
  }
};

// LL16Packet carries 8 bytes in 16.
struct alignas(16) LL16Packet {
  using Payload = uint2;

  uint64_t words[2];

  // write stores data and flag. Any thread may call it. It is relaxed at system scope.
  MSCCLGO_DEVICE void write(Payload data, uint32_t flag) {
    uint64_t high = uint64_t(flag) << 32;
    storeRelaxed16(words, high | data.x, high | data.y);
  }

  // tryRead reports whether both words hold the flag, and sets data. Any thread may call
  // it.
  MSCCLGO_DEVICE bool tryRead(uint32_t flag, Payload& data) const {
    uint64_t found[2];
    fetch(0, found);
    return unpack(found, flag, data);
  }

  // fetch and unpack do what LL8Packet's do.
  MSCCLGO_DEVICE void fetch(uint32_t, uint64_t (&found)[2]) const {
    loadRelaxed16(words, found[0], found[1]);
  }
  MSCCLGO_DEVICE static bool unpack(const uint64_t (&found)[2], uint32_t flag, Payload& data) {
    data = make_uint2(uint32_t(found[0]), uint32_t(found[1]));
    return uint32_t(found[0] >> 32) == flag && uint32_t(found[1] >> 32) == flag;
  }
};

// LL128Packet carries 480 bytes in 512: four lines of 128 bytes, each of 120 bytes of data
// and then 8 of flag. One warp writes it and one warp reads it: eight lanes a line, with
// 16 bytes each.
//
// PTX does not guarantee that a line's data arrive before or with its flag. It does where a warp's
// store of a whole, aligned line travels and arrives as one: in a GPU's own memory, and between
// GPUs of one generation over NVLink, from Volta on. It does not over PCIe.
//
// A warp's access is one if its lanes are together when they make it. Otherwise a lane could load
// its part before the line arrives, and the lane with the flag load after that; or the flag could
// be stored before the rest. A vote after the loads would not show it. So write() begins with a
// __syncwarp(), since the lanes of a partial packet read its data by different branches.
// waitTogether() begins with one too; after it each poll ends in a vote of all lanes, and they go
// on alike. PTX (bar.warp.sync, vote.sync) does not promise that lanes are together after these,
// but nothing comes in between to separate them. NVIDIA's compilers leave WARPSYNC out only where
// they know that the lanes are together. NCCL loads the line again once all lanes have seen the
// flag, which costs a trip to memory for each packet.
struct alignas(128) LL128Packet {
  uint64_t words[64];

#if defined(MSCCLGO_EMU_RACE)
  // As on a GPU: a flag orders its line alone, also for the race finder.
  static constexpr Order kStoreFlag = Order::Relaxed, kLoadFlag = Order::Relaxed;
#elif defined(MSCCLGO_EMU)
  static constexpr Order kStoreFlag = Order::Release, kLoadFlag = Order::Acquire;
#endif

  // flagged reports whether a lane's second word is its line's flag.
  MSCCLGO_DEVICE static bool flagged(uint32_t lane) { return lane % 8 == 7; }

  // write stores a lane's two words, or a flagged lane's first word and the flag. All lanes of a
  // warp call it together. It is relaxed at system scope.
  MSCCLGO_DEVICE void write(uint32_t lane, uint64_t first, uint64_t second, uint32_t flag,
                            Site site = Site::here()) {
    detail::checkTogether("LL128Packet::write", site);
    uint64_t* at = words + 2 * lane;
    if (flagged(lane)) second = uint64_t(flag) << 32 | flag;
#if defined(MSCCLGO_EMU)
    // Lanes run one after the other, so the flags are stored last.
    store<Scope::System, Order::Relaxed>(at, first);
    if (!flagged(lane)) store<Scope::System, Order::Relaxed>(at + 1, second);
    __syncwarp();
    if (flagged(lane)) store<Scope::System, kStoreFlag>(at + 1, second);
#else
    __syncwarp();
    storeRelaxed16(at, first, second);
#endif
  }

  // tryRead reports to all lanes whether all lines hold the flag, and sets each lane's two words.
  // All lanes of a warp call it together, as waitTogether() does.
  MSCCLGO_DEVICE bool tryRead(uint32_t lane, uint32_t flag, uint64_t& first, uint64_t& second) const {
    const uint64_t* at = words + 2 * lane;
    uint64_t want = uint64_t(flag) << 32 | flag;
#if defined(MSCCLGO_EMU)
    // Lanes load one after the other, so each looks at the flag of its line first. It then has the
    // words that arrived with the flag, though the flag's load does not acquire.
    bool there = load<Scope::System, kLoadFlag>(words + lane / 8 * 16 + 15) == want;
    first = second = 0;
    if (there) {
      first = emu::loadWord<MSCCLGO_EMU_NEWEST, MSCCLGO_EMU_SYSTEM>(at);
      second = emu::loadWord<MSCCLGO_EMU_NEWEST, MSCCLGO_EMU_SYSTEM>(at + 1);
    }
#else
    loadRelaxed16(at, first, second);
    bool there = !flagged(lane) || second == want;
#endif
    return __all_sync(0xffffffffu, there) != 0;
  }

  // fetch and arrived are the parts of tryRead for tryReadSome: a lane's load, and whether a
  // flagged lane found the flag. All of these have to find it.
  MSCCLGO_DEVICE void fetch(uint32_t lane, uint64_t (&found)[2]) const {
    loadRelaxed16(words + 2 * lane, found[0], found[1]);
  }
  MSCCLGO_DEVICE static bool arrived(const uint64_t (&found)[2], uint32_t lane, uint32_t flag) {
    return !flagged(lane) || found[1] == (uint64_t(flag) << 32 | flag);
  }
};

// Piece is one thread's part of a packet: all of it, or a lane's part of an LL128Packet. Code for
// pieces works with every kind of packet. `lane` is the thread's number among the kThreads that
// carry a packet together. Those threads, a warp if there are several, make every call together.
template <class Packet>
struct Piece {
  using Word = typename Packet::Payload;
  static constexpr uint32_t kThreads = 1;             // that carry a packet together
  static constexpr uint32_t kWords = 1;               // of a thread
  static constexpr uint32_t kPayload = sizeof(Word);  // bytes of a packet

  Word words[kWords];

  // load reads the packet's data from src, where n bytes are left, at least 1, of any alignment.
  // The rest of the packet is 0.
  MSCCLGO_DEVICE void load(const uint8_t* src, uint64_t n, uint32_t) { words[0] = loadPartial<Word>(src, n); }

  // store writes them to dst, where n bytes are left, at least 1, of any alignment.
  MSCCLGO_DEVICE void store(uint8_t* dst, uint64_t n, uint32_t) const { storePartial(dst, words[0], n); }

  // loadWhole and storeWhole are load and store for an address and an n that are multiples of a
  // word's size.
  MSCCLGO_DEVICE void loadWhole(const uint8_t* src, uint64_t, uint32_t) {
    words[0] = *reinterpret_cast<const Word*>(src);
  }
  MSCCLGO_DEVICE void storeWhole(uint8_t* dst, uint64_t, uint32_t) const {
    *reinterpret_cast<Word*>(dst) = words[0];
  }

  // write and tryRead call the packet's.
  MSCCLGO_DEVICE void write(Packet* packet, uint32_t, uint32_t flag, Site = {}) const {
    packet->write(words[0], flag);
  }
  MSCCLGO_DEVICE bool tryRead(const Packet* packet, uint32_t, uint32_t flag) {
    return packet->tryRead(flag, words[0]);
  }
  // unpack sets the words from what fetch() of the packet found, and reports whether the flag was
  // there.
  MSCCLGO_DEVICE bool unpack(const uint64_t (&found)[2], uint32_t, uint32_t flag) {
    return Packet::unpack(found, flag, words[0]);
  }
};

// The first words of all lanes are 256 bytes in a row. The second words are the 224 bytes after
// them; flagged lanes have none. So a warp's accesses to the data are dense.
template <>
struct Piece<LL128Packet> {
  using Word = uint2;
  static constexpr uint32_t kThreads = 32;
  static constexpr uint32_t kWords = 2;
  static constexpr uint32_t kPayload = 480;

  Word words[kWords];

  MSCCLGO_DEVICE void load(const uint8_t* src, uint64_t n, uint32_t lane) {
#pragma unroll
    for (uint32_t w = 0; w < kWords; ++w) {
      uint32_t at = offset(lane, w);
      words[w] = has(lane, w) && at < n ? loadPartial<Word>(src + at, n - at) : make_uint2(0, 0);
    }
  }
  MSCCLGO_DEVICE void store(uint8_t* dst, uint64_t n, uint32_t lane) const {
#pragma unroll
    for (uint32_t w = 0; w < kWords; ++w) {
      uint32_t at = offset(lane, w);
      if (has(lane, w) && at < n) storePartial(dst + at, words[w], n - at);
    }
  }
  MSCCLGO_DEVICE void loadWhole(const uint8_t* src, uint64_t n, uint32_t lane) {
#pragma unroll
    for (uint32_t w = 0; w < kWords; ++w) {
      uint32_t at = offset(lane, w);
      words[w] = make_uint2(0, 0);
      if (has(lane, w) && at < n) words[w] = *reinterpret_cast<const Word*>(src + at);
    }
  }
  MSCCLGO_DEVICE void storeWhole(uint8_t* dst, uint64_t n, uint32_t lane) const {
#pragma unroll
    for (uint32_t w = 0; w < kWords; ++w) {
      uint32_t at = offset(lane, w);
      if (has(lane, w) && at < n) *reinterpret_cast<Word*>(dst + at) = words[w];
    }
  }
  MSCCLGO_DEVICE void write(LL128Packet* packet, uint32_t lane, uint32_t flag,
                            Site site = Site::here()) const {
    packet->write(lane, uint64_t(words[0].y) << 32 | words[0].x, uint64_t(words[1].y) << 32 | words[1].x,
                  flag, site);
  }
  MSCCLGO_DEVICE bool tryRead(const LL128Packet* packet, uint32_t lane, uint32_t flag) {
    uint64_t first, second;
    bool there = packet->tryRead(lane, flag, first, second);
    set(first, second);
    return there;
  }
  MSCCLGO_DEVICE bool unpack(const uint64_t (&found)[2], uint32_t lane, uint32_t flag) {
    set(found[0], found[1]);
    return LL128Packet::arrived(found, lane, flag);
  }

 private:
  MSCCLGO_DEVICE void set(uint64_t first, uint64_t second) {
    words[0] = make_uint2(uint32_t(first), uint32_t(first >> 32));
    words[1] = make_uint2(uint32_t(second), uint32_t(second >> 32));
  }
  MSCCLGO_DEVICE static bool has(uint32_t lane, uint32_t w) { return w == 0 || !LL128Packet::flagged(lane); }
  MSCCLGO_DEVICE static uint32_t offset(uint32_t lane, uint32_t w) {
    return w == 0 ? lane * 8 : 256 + (lane - lane / 8) * 8;
  }
};

// tryReadSome tries to read n packets at distances of `apart` packets, and returns a bit for each
// that is missing; its piece is then undefined. Threads that carry packets together get the same
// bits. They make all loads at once, and look and vote once, so that several packets take one trip
// to memory.
template <class Packet, uint32_t N>
MSCCLGO_DEVICE uint32_t tryReadSome(Piece<Packet> (&pieces)[N], const Packet* packets, uint64_t apart,
                                    uint32_t n, uint32_t lane, uint32_t flag) {
  uint32_t missing = 0;
#if defined(MSCCLGO_EMU)
  for (uint32_t k = 0; k < n; ++k) {
    if (!pieces[k].tryRead(packets + k * apart, lane, flag)) missing |= 1u << k;
  }
#else
  // Zeroed, so that words that are not loaded take no registers.
  uint64_t found[N][2] = {};
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) {
    if (k < n) packets[k * apart].fetch(lane, found[k]);
  }
#pragma unroll
  for (uint32_t k = 0; k < N; ++k) {
    if (!pieces[k].unpack(found[k], lane, flag) && k < n) missing |= 1u << k;
  }
  if constexpr (Piece<Packet>::kThreads > 1) {
    uint32_t lacking = __ballot_sync(0xffffffffu, missing != 0);
    if (lacking != 0) missing = __shfl_sync(0xffffffffu, missing, __ffs(lacking) - 1);
  }
#endif
  return missing;
}

// waitTogether is waitUntil for the threads that carry a packet together. It brings them together
// first. ready() returns the same to all of them, and so does this.
template <uint32_t Threads, class Ready>
MSCCLGO_DEVICE WaitResult waitTogether(const Watch& watch, Ready ready) {
  if constexpr (Threads == 1) {
    return waitUntil(watch, ready);
  } else {
    static_assert(Threads == 32, "a warp");
    uint64_t start = 0;
    __syncwarp();
#if defined(MSCCLGO_EMU)
    emu::Waiting waiting;
#endif
    for (uint32_t polls = 1; !ready(); ++polls) {
#if defined(MSCCLGO_EMU)
      waiting.poll({watch.status, watch.channel, watch.peer, 0});
#endif
      if (polls % detail::kPollsBetweenLooks == 0) {
        detail::Look seen = detail::look(watch, start);
        // Lanes read the clock one after the other, and none may leave alone.
        if (__any_sync(0xffffffffu, seen.result == WaitResult::Aborted)) return WaitResult::Aborted;
        if (__any_sync(0xffffffffu, seen.result == WaitResult::TimedOut)) return WaitResult::TimedOut;
        start = seen.start;
      }
    }
    return WaitResult::Done;
  }
}

// read waits until a packet holds the flag, and sets data. Any thread may call it. When
// the result is not Done, data is undefined.
template <class Packet>
MSCCLGO_DEVICE WaitResult read(const Packet* packet, uint32_t flag, typename Packet::Payload& data,
                               const Watch& watch) {
  return waitUntil(watch, [&] { return packet->tryRead(flag, data); });
}

// packetBytes returns the bytes of packets that n bytes of data take.
template <class Packet>
MSCCLGO_DEVICE uint64_t packetBytes(uint64_t n) {
  constexpr uint64_t kPayload = Piece<Packet>::kPayload;
  return (n + kPayload - 1) / kPayload * sizeof(Packet);
}

// checkWarps ends the kernel if packets for whole warps are given to other threads (check.cuh). The
// caller is number `thread` of `threads`.
template <class Packet>
MSCCLGO_DEVICE void checkWarps(const Watch& watch, const char* what, uint64_t thread, uint64_t threads,
                               Site site) {
#if defined(MSCCLGO_CHECK)
  constexpr uint32_t kThreads = Piece<Packet>::kThreads;
  if (kThreads == 1) return;
  if (threads % kThreads != 0)
    detail::fault(watch, kNoPeer, site, what, ": ", threads, " threads carry packets, and ", kThreads,
                  " carry one together: give it whole warps");
  uint64_t number = threadIdx.x + uint64_t(blockDim.x) * (threadIdx.y + uint64_t(blockDim.y) * threadIdx.z);
  if (thread % kThreads != number % kThreads)
    detail::fault(watch, kNoPeer, site, what, ": thread ", thread, " of the call is lane ", number % kThreads,
                  " of its warp, not ", thread % kThreads);
#else
  (void)watch, (void)what, (void)thread, (void)threads, (void)site;
#endif
}

// putPackets writes n bytes of data as packets. `threads` threads call it, and the caller
// is number `thread` of them; for LL128 packets they are whole warps. src may have any
// alignment.
template <class Packet>
MSCCLGO_DEVICE void putPackets(Packet* dst, const void* src, uint64_t n, uint32_t thread, uint32_t threads,
                               uint32_t flag, Site site = Site::here()) {
  checkWarps<Packet>(Watch{}, "putPackets", thread, threads, site);
  constexpr uint32_t kThreads = Piece<Packet>::kThreads;
  const uint8_t* from = static_cast<const uint8_t*>(src);
  for (uint64_t i = thread / kThreads; i * Piece<Packet>::kPayload < n; i += threads / kThreads) {
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    piece.load(from + at, n - at, thread % kThreads);
    piece.write(dst + i, thread % kThreads, flag, site);
  }
}

// unpackPackets waits for the packets of n bytes of data and stores the data. `threads` threads
// call it, and the caller is number `thread` of them; for LL128 packets they are whole warps. dst
// may have any alignment. The result is of the caller's own packets: it stops at the first wait
// that fails.
template <class Packet>
MSCCLGO_DEVICE WaitResult unpackPackets(void* dst, const Packet* src, uint64_t n, uint32_t thread,
                                        uint32_t threads, uint32_t flag, const Watch& watch,
                                        Site site = Site::here()) {
  checkWarps<Packet>(watch, "unpackPackets", thread, threads, site);
  constexpr uint32_t kThreads = Piece<Packet>::kThreads;
  uint8_t* to = static_cast<uint8_t*>(dst);
  for (uint64_t i = thread / kThreads; i * Piece<Packet>::kPayload < n; i += threads / kThreads) {
    uint64_t at = i * Piece<Packet>::kPayload;
    Piece<Packet> piece;
    WaitResult result =
        waitTogether<kThreads>(watch, [&] { return piece.tryRead(src + i, thread % kThreads, flag); });
    if (result != WaitResult::Done) return result;
    piece.store(to + at, n - at, thread % kThreads);
  }
  return WaitResult::Done;
}

}  // namespace mscclgo
