// Kernels of TestAtomics and TestMessagePassing.
#include <mscclgo/wait.cuh>

using mscclgo::Order;
using mscclgo::Scope;
using mscclgo::WaitResult;
using mscclgo::Watch;

namespace {

// add counts up many times and adds what it was each time to `seen`.
template <Scope S, Order O, class T>
__device__ void add(T* counter, unsigned long long* seen, uint32_t times) {
  unsigned long long sum = 0;
  for (uint32_t i = 0; i < times; ++i) sum += mscclgo::fetchAdd<S, O>(counter, T(1));
  atomicAdd(seen, sum);
}

// stored writes a value in each way and reads it in each way, and returns how often
// it came back different. `value` has bits in every byte.
template <class T>
__device__ uint32_t stored(T* p, T value) {
  uint32_t wrong = 0;
  auto expect = [&](T want) {
    wrong += mscclgo::load<Scope::Device, Order::Relaxed>(p) != want;
    wrong += mscclgo::load<Scope::Device, Order::Acquire>(p) != want;
    wrong += mscclgo::load<Scope::System, Order::Relaxed>(p) != want;
    wrong += mscclgo::load<Scope::System, Order::Acquire>(p) != want;
  };
  mscclgo::store<Scope::Device, Order::Relaxed>(p, value);
  expect(value);
  mscclgo::store<Scope::Device, Order::Release>(p, T(value + 1));
  expect(T(value + 1));
  mscclgo::store<Scope::System, Order::Relaxed>(p, T(value + 2));
  expect(T(value + 2));
  mscclgo::store<Scope::System, Order::Release>(p, T(value + 3));
  expect(T(value + 3));
  wrong += mscclgo::fetchAdd<Scope::System, Order::Relaxed>(p, T(0) - value) != T(value + 3);
  expect(T(3));
  return wrong;
}

}  // namespace

// contend adds 1 to eight counters from all threads.
extern "C" __global__ void contend(uint32_t* words, uint64_t* longs, unsigned long long* seen,
                                   uint32_t times) {
  add<Scope::Device, Order::Relaxed>(words + 0, seen + 0, times);
  add<Scope::Device, Order::Release>(words + 1, seen + 1, times);
  add<Scope::System, Order::Relaxed>(words + 2, seen + 2, times);
  add<Scope::System, Order::Release>(words + 3, seen + 3, times);
  add<Scope::Device, Order::Relaxed>(longs + 0, seen + 4, times);
  add<Scope::Device, Order::Release>(longs + 1, seen + 5, times);
  add<Scope::System, Order::Relaxed>(longs + 2, seen + 6, times);
  add<Scope::System, Order::Release>(longs + 3, seen + 7, times);
}

// plain checks loads and stores by one thread. Its memory is four 8-byte words,
// of which the outer ones must not change.
extern "C" __global__ void plain(uint64_t* memory, uint32_t* wrong) {
  uint64_t before = memory[0], behind = memory[3];
  *wrong = stored(reinterpret_cast<uint32_t*>(memory + 2), 0x81828384u);
  *wrong += stored(memory + 2, uint64_t(0x8182838485868788u));
  uint64_t a = 0, b = 0;
  memory[1] = memory[2] = 0;
  mscclgo::storeRelaxed16(memory + 2, 0x1112131415161718u, behind);
  mscclgo::loadRelaxed16(memory + 2, a, b);
  *wrong += a != 0x1112131415161718u || b != behind || memory[2] != a || memory[1] != 0;
  mscclgo::fence<Scope::Device, Order::Acquire>();
  mscclgo::fence<Scope::System, Order::Acquire>();
  mscclgo::fence<Scope::System, Order::Release>();
  *wrong += memory[0] != before || memory[3] != behind;
}

// whole has block 0 write values whose halves are equal, and block 1 look for one
// whose halves are not, and for values that go backwards.
extern "C" __global__ void whole(uint64_t* value, uint64_t* pair, uint32_t last, uint32_t* wrong) {
  constexpr uint64_t both = (uint64_t(1) << 32) + 1;
  if (blockIdx.x == 0) {
    for (uint32_t i = 1; i <= last; ++i) {
      mscclgo::store<Scope::System, Order::Relaxed>(value, i * both);
      mscclgo::storeRelaxed16(pair, i * both, i * both);
    }
    return;
  }
  uint64_t start = mscclgo::nanoseconds(), before = 0, firstBefore = 0, secondBefore = 0;
  while (secondBefore != last * both) {
    uint64_t v = mscclgo::load<Scope::System, Order::Relaxed>(value), first, second;
    mscclgo::loadRelaxed16(pair, first, second);
    *wrong += v != uint32_t(v) * both || first != uint32_t(first) * both || second != uint32_t(second) * both;
    *wrong += v < before || first < firstBefore || second < secondBefore;
    before = v, firstBefore = first, secondBefore = second;
    if (mscclgo::nanoseconds() - start > 10000000000u) {
      *wrong += 1u << 31;
      return;
    }
  }
}

namespace {

// How a message is passed.
struct ByRelease {
  static __device__ void tell(uint32_t* flag, uint32_t value) {
    mscclgo::store<Scope::Device, Order::Release>(flag, value);
  }
  static __device__ bool told(const uint32_t* flag, uint32_t value) {
    return mscclgo::load<Scope::Device, Order::Acquire>(flag) >= value;
  }
};
struct ByFence {
  static __device__ void tell(uint32_t* flag, uint32_t value) {
    mscclgo::fence<Scope::Device, Order::Release>();
    mscclgo::store<Scope::Device, Order::Relaxed>(flag, value);
  }
  static __device__ bool told(const uint32_t* flag, uint32_t value) {
    if (mscclgo::load<Scope::Device, Order::Relaxed>(flag) < value) return false;
    mscclgo::fence<Scope::Device, Order::Acquire>();
    return true;
  }
};
struct ByAdd {
  static __device__ void tell(uint32_t* flag, uint32_t) {
    mscclgo::fetchAdd<Scope::Device, Order::Release>(flag, 1u);
  }
  static __device__ bool told(const uint32_t* flag, uint32_t value) {
    return mscclgo::load<Scope::Device, Order::Acquire>(flag) >= value;
  }
};

// pass has block 0 write data and tell, and block 1 read the data when told, in
// the same memory again and again. words are a flag each way, then the data.
template <class How>
__device__ void pass(uint32_t* words, uint32_t rounds, Watch watch, uint32_t* wrong) {
  uint32_t* there = words;
  uint32_t* back = words + 32;
  uint32_t* data = words + 64;
  for (uint32_t round = 1; round <= rounds; ++round) {
    bool ok = true;
    if (blockIdx.x == 0) {
      data[threadIdx.x * 33] = round;
      __syncthreads();
      if (threadIdx.x == 0) {
        How::tell(there, round);
        ok = waitUntil(watch, [&] { return How::told(back, round); }) == WaitResult::Done;
      }
      ok = mscclgo::blockAll(ok);
    } else {
      if (threadIdx.x == 0)
        ok = waitUntil(watch, [&] { return How::told(there, round); }) == WaitResult::Done;
      ok = mscclgo::blockAll(ok);
      // Another thread's element, so that the order has to carry over.
      if (data[(blockDim.x - 1 - threadIdx.x) * 33] != round) atomicAdd(wrong, 1u);
      __syncthreads();
      if (threadIdx.x == 0) How::tell(back, round);
    }
    if (!ok) {
      atomicAdd(wrong, 1u << 20);
      return;
    }
  }
}

}  // namespace

extern "C" __global__ void byRelease(uint32_t* words, uint32_t rounds, Watch watch, uint32_t* wrong) {
  pass<ByRelease>(words, rounds, watch, wrong);
}
extern "C" __global__ void byFence(uint32_t* words, uint32_t rounds, Watch watch, uint32_t* wrong) {
  pass<ByFence>(words, rounds, watch, wrong);
}
extern "C" __global__ void byAdd(uint32_t* words, uint32_t rounds, Watch watch, uint32_t* wrong) {
  pass<ByAdd>(words, rounds, watch, wrong);
}
