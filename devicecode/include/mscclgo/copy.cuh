// Copies of bytes by many threads, of any alignment and size.
#pragma once

#include <mscclgo/config.cuh>

namespace mscclgo {

namespace detail {

// Word is the type of an access of that many bytes.
template <uint32_t Bytes>
struct Word;
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

// joined returns the 4 bytes that start `shift` bits into the 8 bytes high:low.
MSCCLGO_DEVICE uint32_t joined(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, shift);
}

// shifted returns the word that starts `shift` bytes into two neighbouring words. The
// shift is at least 1 and less than a word's size.
MSCCLGO_DEVICE uint32_t shifted(uint32_t a, uint32_t b, uint32_t shift) { return joined(a, b, shift * 8); }

MSCCLGO_DEVICE uint2 shifted(uint2 a, uint2 b, uint32_t shift) {
  if (shift & 4) a = make_uint2(a.y, b.x), b.x = b.y;
  uint32_t bits = shift % 4 * 8;
  return make_uint2(joined(a.x, a.y, bits), joined(a.y, b.x, bits));
}

MSCCLGO_DEVICE uint4 shifted(uint4 a, uint4 b, uint32_t shift) {
  if (shift & 8) a = make_uint4(a.z, a.w, b.x, b.y), b.x = b.z, b.y = b.w;
  if (shift & 4) a = make_uint4(a.y, a.z, a.w, b.x), b.x = b.y;
  uint32_t bits = shift % 4 * 8;
  return make_uint4(joined(a.x, a.y, bits), joined(a.y, a.z, bits), joined(a.z, a.w, bits),
                    joined(a.w, b.x, bits));
}

// copyWords copies n aligned words. Each thread has several loads under way: with one, every
// word would take a trip to memory.
template <uint32_t Loads, class T>
MSCCLGO_DEVICE void copyWords(T* dst, const T* src, uint64_t n, uint32_t thread, uint32_t threads) {
  uint64_t i = thread;
  for (; i + (Loads - 1) * uint64_t(threads) < n; i += Loads * uint64_t(threads)) {
    T words[Loads];
#pragma unroll
    for (uint32_t k = 0; k < Loads; ++k) words[k] = src[i + k * uint64_t(threads)];
#pragma unroll
    for (uint32_t k = 0; k < Loads; ++k) dst[i + k * uint64_t(threads)] = words[k];
  }
  for (; i < n; i += threads) dst[i] = src[i];
}

// copyShifted copies n words to an aligned dst from `shift` bytes after the start of n + 1 aligned
// words at src.
template <class T>
MSCCLGO_DEVICE void copyShifted(T* dst, const T* src, uint32_t shift, uint64_t n, uint32_t thread,
                                uint32_t threads) {
  for (uint64_t i = thread; i < n; i += threads) dst[i] = shifted(src[i], src[i + 1], shift);
}

}  // namespace detail

// copy copies n bytes between ranges that do not overlap. `threads` threads call it, and
// the caller is number `thread` of them. Each copies a part, and none waits: the threads
// need a barrier before one of them signals.
//
// Width is the size of the widest access, 4, 8 or 16 bytes, and Loads how many loads a thread has
// under way: few threads need more to keep up with memory. If dst and src are not aligned alike,
// stores are still that wide, and each is made from two loads. Nothing outside the two ranges is
// accessed. The accesses are weak (PTX): only a later release orders them.
template <uint32_t Width = 16, uint32_t Loads = 4>
MSCCLGO_DEVICE void copy(void* dst, const void* src, uint64_t n, uint32_t thread, uint32_t threads) {
  using T = typename detail::Word<Width>::Type;
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);

  uint64_t head = (0 - reinterpret_cast<uintptr_t>(to)) % Width;
  uint32_t shift = uint32_t((reinterpret_cast<uintptr_t>(from) + head) % Width);
  if (shift != 0) head += Width;  // the first word's neighbour must not lie before src
  if (head > n) head = n;
  for (uint64_t i = thread; i < head; i += threads) to[i] = from[i];
  to += head, from += head, n -= head;

  uint64_t words = n / Width;
  if (shift == 0) {
    detail::copyWords<Loads>(reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), words, thread,
                             threads);
  } else {
    // The last word's neighbour must not lie past src's end.
    words = (n + shift) / Width;
    words = words > 0 ? words - 1 : 0;
    detail::copyShifted(reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from - shift), shift, words,
                        thread, threads);
  }
  for (uint64_t i = words * Width + thread; i < n; i += threads) to[i] = from[i];
}

namespace detail {

// loadBy returns a value that it reads by accesses of type U, to which src is aligned.
template <class U, class T>
MSCCLGO_DEVICE T loadBy(const void* src) {
  union {
    T value;
    U parts[sizeof(T) / sizeof(U)];
  } u;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T) / sizeof(U); ++i) u.parts[i] = static_cast<const U*>(src)[i];
  return u.value;
}

// storeBy writes a value by accesses of type U, to which dst is aligned.
template <class U, class T>
MSCCLGO_DEVICE void storeBy(void* dst, T value) {
  union {
    T value;
    U parts[sizeof(T) / sizeof(U)];
  } u;
  u.value = value;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T) / sizeof(U); ++i) static_cast<U*>(dst)[i] = u.parts[i];
}

}  // namespace detail

// loadPartial reads the first n bytes of a value, n at least 1, at any alignment; the others are 0.
// A whole value is read by one access if it is aligned, and by a few if it is aligned to 2 or 4.
// Any thread may call it.
template <class T>
MSCCLGO_DEVICE T loadPartial(const void* src, uint64_t n) {
  uintptr_t address = reinterpret_cast<uintptr_t>(src);
  if (n >= sizeof(T)) {
    if (address % sizeof(T) == 0) return *static_cast<const T*>(src);
    if constexpr (sizeof(T) > 4) {
      if (address % 4 == 0) return detail::loadBy<uint32_t, T>(src);
    }
    if constexpr (sizeof(T) > 2) {
      if (address % 2 == 0) return detail::loadBy<uint16_t, T>(src);
    }
  }
  const uint8_t* from = static_cast<const uint8_t*>(src);
  union {
    T value;
    uint8_t bytes[sizeof(T)];
  } u;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T); ++i) u.bytes[i] = i < n ? from[i] : 0;
  return u.value;
}

// storePartial writes the first n bytes of a value, n at least 1, at any alignment. A
// whole value is written by one access if it is aligned, and by a few if it is aligned
// to 2 or 4. Any thread may call it.
template <class T>
MSCCLGO_DEVICE void storePartial(void* dst, T value, uint64_t n) {
  uintptr_t address = reinterpret_cast<uintptr_t>(dst);
  if (n >= sizeof(T)) {
    if (address % sizeof(T) == 0) {
      *static_cast<T*>(dst) = value;
      return;
    }
    if constexpr (sizeof(T) > 4) {
      if (address % 4 == 0) return detail::storeBy<uint32_t>(dst, value);
    }
    if constexpr (sizeof(T) > 2) {
      if (address % 2 == 0) return detail::storeBy<uint16_t>(dst, value);
    }
  }
  uint8_t* to = static_cast<uint8_t*>(dst);
  union {
    T value;
    uint8_t bytes[sizeof(T)];
  } u;
  u.value = value;
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T); ++i) {
    if (i < n) to[i] = u.bytes[i];
  }
}

}  // namespace mscclgo
