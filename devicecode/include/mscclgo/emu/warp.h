// warp.h: the functions in which the lanes of a warp act together (CUDA C++
// Programming Guide, "Warp Vote Functions", "Warp Match Functions", "Warp Reduce
// Functions", "Warp Shuffle Functions"). All lanes of the mask that have not ended must
// call, with the same mask. Several groups of one warp may be under way at a time.
#pragma once

#include <string.h>

#include "mscclgo/emu/runtime.h"

namespace mscclgo {
namespace emu {

// collective does what the lanes in mask do together; see mscclgo_emu_runtime.
__forceinline__ uint64_t collective(mscclgo_emu_collective what, uint32_t mask, uint64_t value,
                                    uint32_t source = 0) {
  mscclgo_emu_thread* t = self();
  return t->block->runtime->collective(t, what, mask, value, source);
}

// shuffle returns the value of lane source, or the lane's own if that is not in mask.
template <class T>
T shuffle(uint32_t mask, T value, uint32_t source) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 2, 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = collective(MSCCLGO_EMU_SHUFFLE, mask, bits, source);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// activeMask returns the lanes that are at a place together.
inline unsigned activeMask(uint32_t place) {
  mscclgo_emu_thread* t = self();
  return t->block->runtime->active_mask(t, place);
}

}  // namespace emu
}  // namespace mscclgo

inline void __syncwarp(unsigned mask = 0xffffffffu) { ::mscclgo::emu::collective(MSCCLGO_EMU_SYNC, mask, 0); }

// Shuffles. width is a power of two up to 32 and splits the warp into parts.

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const uint32_t lane = ::mscclgo::emu::self()->lane;
  const uint32_t part = lane & ~static_cast<uint32_t>(width - 1);
  return ::mscclgo::emu::shuffle(mask, value, part | (static_cast<uint32_t>(source) & (width - 1)));
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const uint32_t lane = ::mscclgo::emu::self()->lane;
  const uint32_t inside = lane & (width - 1);
  return ::mscclgo::emu::shuffle(mask, value, inside < delta ? lane : lane - delta);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const uint32_t lane = ::mscclgo::emu::self()->lane;
  const uint32_t inside = lane & (width - 1);
  const bool within = delta < static_cast<uint32_t>(width) - inside;
  return ::mscclgo::emu::shuffle(mask, value, within ? lane + delta : lane);
}

// A lane may read from its own part or from one before it.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const uint32_t lane = ::mscclgo::emu::self()->lane;
  const uint32_t source = lane ^ static_cast<uint32_t>(lanes);
  const uint32_t end = (lane & ~static_cast<uint32_t>(width - 1)) + width;
  return ::mscclgo::emu::shuffle(mask, value, source < end ? source : lane);
}

// Votes.

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_BALLOT, mask, predicate != 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline int __uni_sync(unsigned mask, int predicate) {
  const unsigned votes = __ballot_sync(mask, predicate), against = __ballot_sync(mask, !predicate);
  return votes == 0 || against == 0;
}

// __activemask returns the lanes that are at this call together. Each call in the source
// has a number, which keeps apart calls that a compiler would merge.
#define __activemask() (::mscclgo::emu::activeMask(__COUNTER__ + 1))

// Matches.

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a match compares 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_MATCH_ANY, mask, bits));
}

template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all) {
  const unsigned same = __match_any_sync(mask, value), here = __ballot_sync(mask, 1);
  *all = same == here;
  return *all ? same : 0;
}

// Reductions.

inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_ADD, mask, value));
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_MIN_UNSIGNED, mask, value));
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return static_cast<int>(
      ::mscclgo::emu::collective(MSCCLGO_EMU_MIN_SIGNED, mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_MAX_UNSIGNED, mask, value));
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return static_cast<int>(
      ::mscclgo::emu::collective(MSCCLGO_EMU_MAX_SIGNED, mask, static_cast<unsigned>(value)));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_AND, mask, value));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_OR, mask, value));
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(::mscclgo::emu::collective(MSCCLGO_EMU_XOR, mask, value));
}
