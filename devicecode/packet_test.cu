// Kernels of TestPackets.
#include <mscclgo/packet.cuh>

using mscclgo::LL128Packet;
using mscclgo::LL16Packet;
using mscclgo::LL8Packet;
using mscclgo::WaitResult;
using mscclgo::Watch;

namespace {

// Mistake is the first thing that a kernel found wrong, and how many there were.
struct Mistake {
  uint32_t count;
  uint32_t dst, src, size, result;
  uint32_t at;  // byte, from 16 before the destination
};

constexpr uint32_t kGuard = 16;
constexpr uint32_t kMost = 100;
constexpr uint32_t kAround = kMost + 2 * kGuard + 16;

__device__ void note(Mistake* m, uint32_t dst, uint32_t src, uint32_t size, WaitResult result, uint32_t at) {
  if (atomicAdd(&m->count, 1u) != 0) return;
  m->dst = dst, m->src = src, m->size = size, m->result = uint32_t(result), m->at = at;
}

// all sends up to 100 bytes through packets, from and to all alignments. One warp
// sends, another receives, at the same time. `memory` holds a destination, a
// source and zeroed packets.
template <class Packet>
__device__ void all(uint8_t* memory, Watch watch, Mistake* mistake) {
  uint8_t* target = memory;
  uint8_t* source = target + kAround;
  Packet* packets = reinterpret_cast<Packet*>(memory + 1024);
  uint32_t flag = 0;
  for (uint32_t dst = 0; dst < 9; ++dst) {
    for (uint32_t src = 0; src < 9; ++src) {
      for (uint32_t size = 0; size <= kMost; ++size) {
        ++flag;
        for (uint32_t i = threadIdx.x; i < kAround; i += blockDim.x) {
          target[i] = 0xe5;
          source[i] = uint8_t(i * 7 + flag);
        }
        __syncthreads();
        uint32_t workers = 1 + size % 32, thread = threadIdx.x % 32;
        if (threadIdx.x < workers) {
          mscclgo::putPackets(packets, source + src, size, thread, workers, flag);
        } else if (threadIdx.x >= 32 && thread < workers) {
          WaitResult result =
              mscclgo::unpackPackets(target + kGuard + dst, packets, size, thread, workers, flag, watch);
          if (result != WaitResult::Done) note(mistake, dst, src, size, result, 0);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < kAround; i += blockDim.x) {
          bool inside = i >= kGuard + dst && i < kGuard + dst + size;
          uint8_t want = inside ? uint8_t((i - kGuard - dst + src) * 7 + flag) : 0xe5;
          if (target[i] != want) note(mistake, dst, src, size, WaitResult::Done, i);
        }
        // Packets behind this size's still have no flag, or an older one.
        uint64_t used = mscclgo::packetBytes<Packet>(size) / sizeof(Packet);
        typename Packet::Payload data;
        if (threadIdx.x == 0 && packets[used].tryRead(flag, data))
          note(mistake, dst, src, size, WaitResult::Done, 999);
        // The last packet's bytes behind the data are 0.
        if (threadIdx.x == 0 && used > 0) {
          bool there = packets[used - 1].tryRead(flag, data);
          const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&data);
          for (uint32_t i = size - uint32_t(used - 1) * sizeof(data); i < sizeof(data); ++i)
            if (!there || bytes[i] != 0) note(mistake, dst, src, size, WaitResult::Done, 1000 + i);
        }
        __syncthreads();
      }
    }
  }
}

}  // namespace

extern "C" __global__ void all8(uint8_t* memory, Watch watch, Mistake* mistake) {
  all<LL8Packet>(memory, watch, mistake);
}
extern "C" __global__ void all16(uint8_t* memory, Watch watch, Mistake* mistake) {
  all<LL16Packet>(memory, watch, mistake);
}

// all128 does the same with lines, up to 1000 bytes: a warp sends and another
// receives. memory holds a destination, a source, and from 4096 on zeroed packets.
extern "C" __global__ void all128(uint8_t* memory, Watch watch, Mistake* mistake) {
  uint8_t* target = memory;
  uint8_t* source = memory + 2048;
  LL128Packet* packets = reinterpret_cast<LL128Packet*>(memory + 4096);
  uint32_t flag = 0;
  for (uint32_t size = 0; size <= 1000; size = size < 20 ? size + 1 : size + 49) {
    for (uint32_t place = 0; place < 18; ++place) {
      uint32_t dst = place % 9, src = place * 5 % 9;
      ++flag;
      for (uint32_t i = threadIdx.x; i < 1100; i += blockDim.x) {
        target[i] = 0xe5;
        source[i] = uint8_t(i * 7 + flag);
      }
      __syncthreads();
      if (threadIdx.x < 32) {
        mscclgo::putPackets(packets, source + src, size, threadIdx.x, 32, flag);
      } else {
        WaitResult result = mscclgo::unpackPackets(target + kGuard + dst, packets, size, threadIdx.x - 32,
                                                   blockDim.x - 32, flag, watch);
        if (result != WaitResult::Done) note(mistake, dst, src, size, result, 0);
      }
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < 1100; i += blockDim.x) {
        bool inside = i >= kGuard + dst && i < kGuard + dst + size;
        uint8_t want = inside ? uint8_t((i - kGuard - dst + src) * 7 + flag) : 0xe5;
        if (target[i] != want) note(mistake, dst, src, size, WaitResult::Done, i);
      }
      __syncthreads();
    }
  }
}

// stale128 waits for a packet of which one line of four has another flag, then
// for a whole one. One warp.
extern "C" __global__ void stale128(uint8_t* memory, Watch watch, uint32_t* results) {
  LL128Packet* packet = reinterpret_cast<LL128Packet*>(memory);
  uint8_t* out = memory + sizeof(LL128Packet);
  packet->write(threadIdx.x, 5, 5, threadIdx.x / 8 == 2 ? 5 : 6);
  __syncwarp();
  uint32_t stale = uint32_t(mscclgo::unpackPackets(out, packet, 480, threadIdx.x, 32, 6, watch));
  packet->write(threadIdx.x, threadIdx.x, 100 + threadIdx.x, 6);
  __syncwarp();
  uint32_t whole = uint32_t(mscclgo::unpackPackets(out, packet, 480, threadIdx.x, 32, 6, watch));
  results[threadIdx.x] = stale << 8 | whole;
}

// stale unpacks 8 bytes of packets that hold another flag: half of the last one's
// words in results[2].
extern "C" __global__ void stale(uint8_t* memory, Watch watch, uint32_t* results) {
  LL8Packet* eights = reinterpret_cast<LL8Packet*>(memory);
  LL16Packet* sixteen = reinterpret_cast<LL16Packet*>(memory + 64);
  uint8_t* out = memory + 128;
  uint64_t data = 0x0102030405060708u;
  mscclgo::putPackets(eights, &data, 8, 0, 1, 5);
  mscclgo::putPackets(sixteen, &data, 8, 0, 1, 5);
  results[0] = uint32_t(mscclgo::unpackPackets(out, eights, 8, 0, 1, 6, watch));
  results[1] = uint32_t(mscclgo::unpackPackets(out, sixteen, 8, 0, 1, 6, watch));
  sixteen->words[0] = (sixteen->words[0] & 0xffffffffu) | uint64_t(6) << 32;
  results[2] = uint32_t(mscclgo::unpackPackets(out, sixteen, 8, 0, 1, 6, watch));
  results[3] = uint32_t(mscclgo::unpackPackets(out + 8, sixteen, 0, 0, 1, 6, watch));
  eights[0].write(77, 6);
  uint32_t word = 0;
  results[4] = uint32_t(mscclgo::read(eights, 6, word, watch));
  results[5] = word;
}
