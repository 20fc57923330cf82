// Kernels of TestCopy and TestPartial.
#include <mscclgo/copy.cuh>

namespace {

// Mistake is the first thing that a kernel found wrong, and how many there were.
struct Mistake {
  uint32_t count;
  uint32_t dst, src, size, threads;  // of the copy
  uint32_t at;                       // byte, from 32 before the destination
};

constexpr uint32_t kGuard = 32;

// data and guard return what belongs at a place of the source and of the
// destination's surroundings.
__device__ uint8_t data(uint32_t i, uint32_t seed) { return uint8_t((i + seed * 31) * 2654435761u >> 24); }
__device__ uint8_t guard(uint32_t i) { return uint8_t(~i * 0x35u); }

__device__ void note(Mistake* m, uint32_t dst, uint32_t src, uint32_t size, uint32_t threads, uint32_t at) {
  if (atomicAdd(&m->count, 1u) != 0) return;
  m->dst = dst, m->src = src, m->size = size, m->threads = threads, m->at = at;
}

// all copies every size up to `most` between all alignments, with 1 to 8 threads,
// and looks at every byte from 32 before to 32 after. A block has an arena of its
// own, `stride` bytes for the destination and as many for the source.
template <uint32_t Width>
__device__ void all(uint8_t* arena, uint32_t stride, uint32_t most, Mistake* mistake) {
  uint8_t* target = arena + blockIdx.x * 2 * stride;
  uint8_t* source = target + stride;
  for (uint32_t i = threadIdx.x; i < stride; i += blockDim.x) source[i] = data(i, blockIdx.x);
  for (uint32_t c = blockIdx.x; c < 32 * 32; c += gridDim.x) {
    uint32_t dst = c / 32, src = c % 32;
    for (uint32_t size = 0; size <= most; ++size) {
      uint8_t* from = source + kGuard + src;
      uint8_t* around = target + dst;
      uint32_t threads = 1 + (size + c) % blockDim.x;
      for (uint32_t i = threadIdx.x; i < size + 2 * kGuard; i += blockDim.x) around[i] = guard(i);
      __syncthreads();
      if (threadIdx.x < threads) mscclgo::copy<Width>(around + kGuard, from, size, threadIdx.x, threads);
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < size + 2 * kGuard; i += blockDim.x) {
        bool inside = i >= kGuard && i < kGuard + size;
        uint8_t want = inside ? data(i + src, blockIdx.x) : guard(i);
        if (around[i] != want) note(mistake, dst, src, size, threads, i);
      }
      __syncthreads();
    }
  }
  for (uint32_t i = threadIdx.x; i < stride; i += blockDim.x)
    if (source[i] != data(i, blockIdx.x)) note(mistake, 0, i, 0, 0, 0);
}

}  // namespace

extern "C" __global__ void all4(uint8_t* arena, uint32_t stride, uint32_t most, Mistake* mistake) {
  all<4>(arena, stride, most, mistake);
}
extern "C" __global__ void all8(uint8_t* arena, uint32_t stride, uint32_t most, Mistake* mistake) {
  all<8>(arena, stride, most, mistake);
}
extern "C" __global__ void all16(uint8_t* arena, uint32_t stride, uint32_t most, Mistake* mistake) {
  all<16>(arena, stride, most, mistake);
}

// large copies with all threads of the grid.
extern "C" __global__ void large(uint8_t* dst, const uint8_t* src, uint64_t n, uint32_t width) {
  uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  if (width == 4) mscclgo::copy<4>(dst, src, n, thread, threads);
  if (width == 8) mscclgo::copy<8>(dst, src, n, thread, threads);
  if (width == 16) mscclgo::copy(dst, src, n, thread, threads);
}

namespace {

// partial loads and stores up to two bytes more than a value has, at all
// alignments. One thread.
template <class T>
__device__ void partial(uint8_t* arena, Mistake* mistake) {
  uint8_t* source = arena;
  uint8_t* target = arena + 64;
  for (uint32_t i = 0; i < 64; ++i) source[i] = data(i, 1);
  for (uint32_t at = 0; at < 16; ++at) {
    for (uint32_t n = 1; n <= sizeof(T) + 2; ++n) {
      union {
        T value;
        uint8_t bytes[sizeof(T)];
      } u;
      u.value = mscclgo::loadPartial<T>(source + at, n);
      for (uint32_t i = 0; i < sizeof(T); ++i)
        if (u.bytes[i] != (i < n ? data(at + i, 1) : 0)) note(mistake, 0, at, n, 0, i);
      for (uint32_t i = 0; i < 64; ++i) target[i] = guard(i);
      for (uint32_t i = 0; i < sizeof(T); ++i) u.bytes[i] = uint8_t(100 + i);
      mscclgo::storePartial(target + at, u.value, n);
      uint32_t end = at + (n < sizeof(T) ? n : sizeof(T));
      for (uint32_t i = 0; i < 64; ++i)
        if (target[i] != (i >= at && i < end ? 100 + i - at : guard(i))) note(mistake, at, 0, n, 0, i);
    }
  }
}

}  // namespace

extern "C" __global__ void partials(uint8_t* arena, Mistake* mistake) {
  partial<uint16_t>(arena, mistake);
  partial<uint32_t>(arena, mistake);
  partial<uint2>(arena, mistake);
  partial<uint4>(arena, mistake);
}
