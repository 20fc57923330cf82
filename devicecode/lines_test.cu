// Kernels of TestTornLines: one warp sends LL128 packets, and another on the peer looks for lines
// of which a part is older than the flag.
#include <mscclgo/packet.cuh>

using namespace mscclgo;

namespace {

// Torn is how many words were wrong, and the first of them.
struct Torn {
  uint64_t count;
  uint64_t old;  // of these, how many the packet held before
  uint64_t got, want;
  uint32_t round, lane, word, warp;
};

// kSlots is the number of packets that a warp has, of which it uses 1 to all.
constexpr uint32_t kSlots = 4;

__device__ uint32_t warp() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }
__device__ uint32_t lane() { return threadIdx.x % 32; }
__device__ uint32_t slots() { return 1 + warp() % kSlots; }

__device__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

// wordOf is a word of a lane in a round; there is no round 0.
__device__ uint64_t wordOf(uint32_t round, uint32_t word) {
  return round == 0 ? 0 : mix(uint64_t(round) << 32 | warp() << 6 | lane() << 1 | word);
}

// part parts the lanes by delays of their own, in most rounds.
__device__ void part(uint32_t round, uint32_t salt) {
  uint64_t random = mix(mix(uint64_t(round) << 32 | salt << 16 | warp()) + (round % 3 == 0 ? 0 : lane()));
#if defined(MSCCLGO_EMU)
  for (uint32_t i = 0; i < random % 3; ++i) emu::yield();
#else
  if (round % 8 == 7) return;
  for (long long from = clock64(); clock64() - from < (long long)(random % 4096);) {
  }
#endif
}

__device__ LL128Packet* packetOf(LL128Packet* packets, uint32_t round) {
  return packets + warp() * kSlots + round % slots();
}

// Readers read the packet of a round. free() lets the sender overwrite what was read before.

struct Library {
  template <class Free>
  __device__ static WaitResult read(const LL128Packet* packet, uint32_t round, uint64_t& first,
                                    uint64_t& second, const Watch& watch, Free free) {
    free();
    part(round, 1);
    return waitTogether<32>(watch, [&] { return packet->tryRead(lane(), round, first, second); });
  }
};

// flagSeen is the vote of readers that are wrong.
__device__ bool flagSeen(uint32_t round, uint64_t second) {
  return __all_sync(0xffffffffu, !LL128Packet::flagged(lane()) || second == (uint64_t(round) << 32 | round));
}

// Parted does what the library does, but lets the lanes load when they like.
struct Parted {
  template <class Free>
  __device__ static WaitResult read(const LL128Packet* packet, uint32_t round, uint64_t& first,
                                    uint64_t& second, const Watch& watch, Free free) {
    const uint64_t* at = packet->words + 2 * lane();
    free();
    return waitTogether<32>(watch, [&] {
      if (LL128Packet::flagged(lane())) {
        part(round, 2);
        loadRelaxed16(at, first, second);
      } else {
        loadRelaxed16(at, first, second);
      }
      return flagSeen(round, second);
    });
  }
};

// OneByOne is as far apart as lanes can be: those without a flag load before the packet is sent.
struct OneByOne {
  template <class Free>
  __device__ static WaitResult read(const LL128Packet* packet, uint32_t round, uint64_t& first,
                                    uint64_t& second, const Watch& watch, Free free) {
    const uint64_t* at = packet->words + 2 * lane();
    if (!LL128Packet::flagged(lane())) loadRelaxed16(at, first, second);
    free();
    return waitTogether<32>(watch, [&] {
      if (LL128Packet::flagged(lane())) loadRelaxed16(at, first, second);
      return flagSeen(round, second);
    });
  }
};

__device__ void check(uint32_t round, uint32_t word, uint64_t got, Torn* torn) {
  uint64_t want = wordOf(round, word), before = wordOf(round < slots() ? 0 : round - slots(), word);
  if (got == want) return;
  if (got == before) atomicAdd(reinterpret_cast<unsigned long long*>(&torn->old), 1ull);
  if (atomicAdd(reinterpret_cast<unsigned long long*>(&torn->count), 1ull) != 0) return;
  torn->got = got, torn->want = want;
  torn->round = round, torn->lane = lane(), torn->word = word, torn->warp = warp();
}

template <class Reader>
__device__ void receive(LL128Packet* packets, uint64_t* freed, uint32_t first, uint32_t rounds, Watch watch,
                        Torn* torn, uint32_t* failed) {
  for (uint32_t round = first; round < first + rounds; ++round) {
    auto free = [&] {  // orders the lanes' loads before the next packet's stores
      __syncwarp();
      if (lane() == 0) store<Scope::System, Order::Release>(freed + warp() * 16, round - 1);
      __syncwarp();
    };
    uint64_t words[2];
    WaitResult result = Reader::read(packetOf(packets, round), round, words[0], words[1], watch, free);
    if (result != WaitResult::Done) {
      *failed = uint32_t(result);
      return;
    }
    check(round, 0, words[0], torn);
    if (!LL128Packet::flagged(lane())) check(round, 1, words[1], torn);
  }
}

}  // namespace

// send sends the packets of `rounds` rounds, each once the receiver is done with what was there.
extern "C" __global__ void send(LL128Packet* packets, const uint64_t* freed, uint32_t first, uint32_t rounds,
                                Watch watch, uint32_t* failed) {
  for (uint32_t round = first; round < first + rounds; ++round) {
    uint32_t result = 0;
    if (lane() == 0 && round > slots())
      result = uint32_t(awaitAbove<Order::Acquire>(watch, freed + warp() * 16, round - slots() - 1));
    result = __shfl_sync(0xffffffffu, result, 0);
    if (result != 0) {
      *failed = result;
      return;
    }
    part(round, 3);
    packetOf(packets, round)->write(lane(), wordOf(round, 0), wordOf(round, 1), round);
  }
}

#define RECEIVE(name, Reader)                                                                             \
  extern "C" __global__ void name(LL128Packet* packets, uint64_t* freed, uint32_t first, uint32_t rounds, \
                                  Watch watch, Torn* torn, uint32_t* failed) {                            \
    receive<Reader>(packets, freed, first, rounds, watch, torn, failed);                                  \
  }
RECEIVE(library, Library)
RECEIVE(parted, Parted)
RECEIVE(oneByOne, OneByOne)
#undef RECEIVE
