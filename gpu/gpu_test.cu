// Kernels of the package's tests.
#include <mscclgo/atomic.cuh>

using mscclgo::Order;
using mscclgo::Scope;

// fill sets n words.
extern "C" __global__ void fill(uint32_t* words, uint64_t n, uint32_t value) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    words[i] = value;
}

struct Pair {
  uint32_t a;
  uint64_t b;
};

struct Row {
  uint16_t values[3];
};

// arguments writes what it was given, each as 64 bits.
extern "C" __global__ void arguments(uint64_t* out, signed char i8, uint16_t u16, int32_t i32, uint64_t u64,
                                     float f32, double f64, bool b, Pair pair, Row row, const void* pointer) {
  out[0] = uint64_t(int64_t(i8));
  out[1] = u16;
  out[2] = uint64_t(int64_t(i32));
  out[3] = u64;
  out[4] = uint64_t(int64_t(f32 * 1024));
  out[5] = uint64_t(int64_t(f64 * 1024));
  out[6] = b;
  out[7] = pair.a;
  out[8] = pair.b;
  out[9] = row.values[0] | uint64_t(row.values[1]) << 16 | uint64_t(row.values[2]) << 32;
  out[10] = reinterpret_cast<uint64_t>(pointer);
}

struct Wide {
  uint64_t words[250];
};

// sum adds up an argument as wide as half of what a launch can carry.
extern "C" __global__ void sum(Wide wide, uint64_t* out) {
  uint64_t s = 0;
  for (int i = 0; i < 250; ++i) s += wide.words[i];
  *out = s;
}

// spin waits until the flag is set or the nanoseconds are over, and writes 1 or 2.
extern "C" __global__ void spin(const uint32_t* flag, uint64_t nanoseconds, uint32_t* out) {
  uint64_t start = mscclgo::nanoseconds();
  while (mscclgo::load<Scope::System, Order::Acquire>(flag) == 0) {
    if (mscclgo::nanoseconds() - start > nanoseconds) {
      *out = 2;
      return;
    }
  }
  *out = 1;
}

// reversed writes 0, 1, ... through dynamic shared memory, backwards.
extern "C" __global__ void reversed(uint32_t* out, uint32_t n) {
  extern __shared__ uint32_t words[];
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) words[i] = i;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = words[n - 1 - i];
}

// bounded has few registers, so that only its bounds keep its blocks small.
extern "C" __global__ void __launch_bounds__(64) bounded(uint32_t* out) { *out = blockDim.x; }

// meet counts the block in and waits for all others, or for the nanoseconds to
// be over, which it counts in late.
extern "C" __global__ void meet(uint32_t* arrived, uint32_t* late, uint64_t nanoseconds) {
  if (threadIdx.x != 0) return;
  uint64_t start = mscclgo::nanoseconds();
  mscclgo::fetchAdd<Scope::Device, Order::Release>(arrived, 1);
  while (mscclgo::load<Scope::Device, Order::Acquire>(arrived) < gridDim.x) {
    if (mscclgo::nanoseconds() - start > nanoseconds) {
      atomicAdd(late, 1u);
      return;
    }
  }
}

extern "C" {
__device__ uint64_t counter = 40;
}

// count adds to the module's variable.
extern "C" __global__ void count(uint64_t n) { counter += n; }

// nothing takes no arguments.
extern "C" __global__ void nothing() {}
