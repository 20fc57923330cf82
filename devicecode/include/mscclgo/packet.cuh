// LL packets: data and flag in one store, so that a receiver needs no signal.
//
// A packet holds words of 8 bytes, half data and half flag. An 8-byte access is
// single-copy atomic (PTX, "Memory Consistency Model"; each element of a vector
// access on its own), so whoever reads the awaited flag in a word also reads
// the data stored with it. No other memory is ordered. The price is that half
// the bytes moved are flags.
//
// A flag must differ from every flag that the same packet held before; the
// epochs of a group do (group.cuh). Memory for packets starts out zeroed, and 0
// is never a flag.
#pragma once

#include <mscclgo/copy.cuh>
#include <mscclgo/wait.cuh>

namespace mscclgo {

// LL8Packet carries 4 bytes in 8.
struct alignas(8) LL8Packet {
  using Payload = uint32_t;

  uint64_t word;

  // write stores data and flag. Any thread. Relaxed, system scope.
  MSCCLGO_DEVICE void write(Payload data, uint32_t flag) {
    store<Scope::System, Order::Relaxed>(&word, uint64_t(flag) << 32 | data);
  }

  // tryRead gives the data if the packet holds the flag. Any thread.
  MSCCLGO_DEVICE bool tryRead(uint32_t flag, Payload& data) const {
    uint64_t w = load<Scope::System, Order::Relaxed>(&word);
    data = uint32_t(w);
    return uint32_t(w >> 32) == flag;
  }
};

// LL16Packet carries 8 bytes in 16.
struct alignas(16) LL16Packet {
  using Payload = uint2;

  uint64_t words[2];

  // write stores data and flag. Any thread. Relaxed, system scope.
  MSCCLGO_DEVICE void write(Payload data, uint32_t flag) {
    uint64_t high = uint64_t(flag) << 32;
    storeRelaxed16(words, high | data.x, high | data.y);
  }

  // tryRead gives the data if both words hold the flag. Any thread.
  MSCCLGO_DEVICE bool tryRead(uint32_t flag, Payload& data) const {
    uint64_t a, b;
    loadRelaxed16(words, a, b);
    data = make_uint2(uint32_t(a), uint32_t(b));
    return uint32_t(a >> 32) == flag && uint32_t(b >> 32) == flag;
  }
};

// read waits for a packet to hold the flag and gives its data. Any thread. When
// the result is not Done, data is undefined.
template <class Packet>
MSCCLGO_DEVICE WaitResult read(const Packet* packet, uint32_t flag, typename Packet::Payload& data,
                               const Watch& watch) {
  return waitUntil(watch, [&] { return packet->tryRead(flag, data); });
}

// packetBytes gives the packet memory that n bytes of data take.
template <class Packet>
MSCCLGO_DEVICE uint64_t packetBytes(uint64_t n) {
  constexpr uint64_t kPayload = sizeof(typename Packet::Payload);
  return (n + kPayload - 1) / kPayload * sizeof(Packet);
}

// putPackets writes n bytes of data as packets, by `threads` threads of which
// the caller is number `thread`. src may have any alignment.
template <class Packet>
MSCCLGO_DEVICE void putPackets(Packet* dst, const void* src, uint64_t n, uint32_t thread, uint32_t threads,
                               uint32_t flag) {
  using Payload = typename Packet::Payload;
  const uint8_t* from = static_cast<const uint8_t*>(src);
  for (uint64_t i = thread; i * sizeof(Payload) < n; i += threads) {
    uint64_t at = i * sizeof(Payload);
    dst[i].write(loadPartial<Payload>(from + at, n - at), flag);
  }
}

// unpackPackets waits for the packets of n bytes of data and stores the data,
// by `threads` threads of which the caller is number `thread`. dst may have any
// alignment. The result is of the caller's own packets: it stops at the first
// wait that failed.
template <class Packet>
MSCCLGO_DEVICE WaitResult unpackPackets(void* dst, const Packet* src, uint64_t n, uint32_t thread,
                                        uint32_t threads, uint32_t flag, const Watch& watch) {
  using Payload = typename Packet::Payload;
  uint8_t* to = static_cast<uint8_t*>(dst);
  for (uint64_t i = thread; i * sizeof(Payload) < n; i += threads) {
    uint64_t at = i * sizeof(Payload);
    Payload data;
    WaitResult result = read(src + i, flag, data, watch);
    if (result != WaitResult::Done) return result;
    storePartial(to + at, data, n - at);
  }
  return WaitResult::Done;
}

}  // namespace mscclgo
