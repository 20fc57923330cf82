#include <mscclgo/collective.cuh>

using namespace mscclgo;

namespace {

// Mistake is the first wrong element that a block found, and how many there are.
struct Mistake {
  uint32_t count, ranks, in, apart, out, elements, at;
};

constexpr uint32_t kMost = 70, kRoom = 768, kRanks = 5;
constexpr int kPoison = 125;

// To stores the words of reduceRange.
struct To {
  uint8_t* out;

  template <class Word>
  __device__ void operator()(uint64_t at, Word word) const {
    storeReduced(out + at, word);
  }
};

// all reduces every number of elements up to kMost, from inputs at all places in two
// words of 16 bytes, which lie alike or not, to an output at all such places; elements
// of 8 bytes are also aligned to 4 only. Each block has a part of an arena for an input
// of each rank and the output. Sums are exact in Exact.
template <class T, class Exact>
__device__ void all(uint8_t* arena, Mistake* mistake) {
  uint8_t* inputs = arena + uint64_t(blockIdx.x) * (kRanks + 1) * kRoom;
  uint8_t* output = inputs + kRanks * kRoom;
  constexpr uint32_t kSize = sizeof(T), kStep = kSize < 4 ? kSize : 4, kPlaces = 32 / kStep;
  auto at = [](const uint8_t* data, uint32_t i) { return Exact(loadPartial<T>(data + i * kSize, kSize)); };
  for (uint32_t i = threadIdx.x; i < kRanks * kRoom / kSize; i += blockDim.x)
    reinterpret_cast<T*>(inputs)[i] = T(Exact(i % 23));
  for (uint32_t c = blockIdx.x; c < kPlaces * kPlaces * 4 * kMost; c += gridDim.x) {
    uint32_t in = c % kPlaces * kStep, out = c / kPlaces % kPlaces * kStep;
    uint32_t apart = c / kPlaces / kPlaces % 4, elements = c / kPlaces / kPlaces / 4;
    apart = apart == 0 ? 0 : apart == 1 ? kSize : apart == 2 ? 4 : 16;
    for (uint32_t ranks = 1; ranks <= kRanks; ++ranks) {
      for (uint32_t i = threadIdx.x; i < (kRoom - out % kSize) / kSize; i += blockDim.x)
        storePartial(output + out % kSize + i * kSize, T(Exact(kPoison)), kSize);
      __syncthreads();
      auto input = [&](uint32_t r) { return inputs + r * kRoom + in + r * apart; };
      Alignment alignment{0, 0, uint64_t(output + out - input(0))};
      for (uint32_t r = 1; r < ranks; ++r)
        alignment.inputs |= reinterpret_cast<uintptr_t>(input(r)) ^ reinterpret_cast<uintptr_t>(input(0));
      reduceRange<T, Sum, kLoadsOfPeers>(input, ranks, 0, elements * kSize, alignment, threadIdx.x,
                                         blockDim.x, To{output + out});
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < (kRoom - out % kSize) / kSize; i += blockDim.x) {
        Exact want = 0;
        uint32_t place = i - out / kSize;
        for (uint32_t r = 0; r < ranks; ++r) want += at(input(r), place % kMost);
        if (place >= elements) want = Exact(kPoison);
        if (at(output + out % kSize, i) == want) continue;
        if (fetchAdd<Scope::Device, Order::Relaxed>(&mistake->count, 1u) == 0) {
          mistake->ranks = ranks, mistake->in = in, mistake->apart = apart, mistake->out = out;
          mistake->elements = elements, mistake->at = i;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace

extern "C" __global__ void halves(uint8_t* arena, Mistake* mistake) { all<__half, float>(arena, mistake); }
extern "C" __global__ void floats(uint8_t* arena, Mistake* mistake) { all<float, float>(arena, mistake); }
extern "C" __global__ void bytes(uint8_t* arena, Mistake* mistake) { all<uint8_t, int32_t>(arena, mistake); }
extern "C" __global__ void longs(uint8_t* arena, Mistake* mistake) { all<int64_t, int64_t>(arena, mistake); }
