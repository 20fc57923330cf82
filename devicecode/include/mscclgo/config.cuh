// The integer types, the attributes of device functions, and the limits that all headers share.
// MSCCLGO_EMU is defined for code of the emulated device.
#pragma once

#if defined(__CUDACC_RTC__)
// NVRTC has no <stdint.h>. These are the types glibc gives on 64-bit Linux, so
// that names mangle alike under NVRTC and nvcc.
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#else
#include <stdint.h>
#endif

#if defined(MSCCLGO_EMU)
#include <string.h>
#include <time.h>
#endif

// MSCCLGO_DEVICE marks inlined device functions.
#define MSCCLGO_DEVICE __device__ __forceinline__

namespace mscclgo {

// kMaxRanks is the largest number of ranks whose memory one kernel reaches by address.
constexpr uint32_t kMaxRanks = 256;

// kRanksByValue is how many of these addresses handles hold themselves: enough for the GPUs of one
// NVLink domain. The others are in device memory.
constexpr uint32_t kRanksByValue = 72;

// kManyRanks is false where MSCCLGO_FEW_RANKS is defined, for kernels of groups of at most
// kRanksByValue ranks: they need no registers for a choice between the two.
#if defined(MSCCLGO_FEW_RANKS)
constexpr bool kManyRanks = false;
#else
constexpr bool kManyRanks = true;
#endif

// kOthersAtOnce is how many other ranks a thread of a collective serves together: all of a host of
// eight GPUs. Where MSCCLGO_FOUR_RANKS is defined, for kernels of groups of at most four ranks, it
// is all of those.
#if defined(MSCCLGO_FOUR_RANKS)
constexpr bool kFourRanks = true;
#else
constexpr bool kFourRanks = false;
#endif
constexpr uint32_t kOthersAtOnce = kFourRanks ? 3 : 7;

// kMaxBlocks is the largest number of blocks of a grid that uses a group's barriers and
// epochs.
constexpr uint32_t kMaxBlocks = 256;

// nanoseconds returns the time of a clock that all blocks of a device share. Differences
// are accurate to about a microsecond. Any thread may call it. (PTX: special register
// %globaltimer)
MSCCLGO_DEVICE uint64_t nanoseconds() {
#if defined(MSCCLGO_EMU)
  return __globaltimer();
#else
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
#endif
}

}  // namespace mscclgo
