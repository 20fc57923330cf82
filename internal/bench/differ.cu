// What differs between two buffers of one device.
#include <mscclgo/atomic.cuh>

using namespace mscclgo;

// differ adds the number of elements that differ between a and b to *count. Both
// have n bytes, in elements of `size` bytes, and any alignment. A grid of one
// dimension.
extern "C" __global__ void differ(const uint8_t* a, const uint8_t* b, uint64_t n, uint64_t size,
                                  uint64_t* count) {
  uint64_t found = 0;
  bool wide = (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % sizeof(uint4) == 0;
  uint64_t stride = uint64_t(gridDim.x) * blockDim.x * sizeof(uint4);
  for (uint64_t at = (uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) * sizeof(uint4); at < n;
       at += stride) {
    if (wide && at + sizeof(uint4) <= n) {
      uint4 x = *reinterpret_cast<const uint4*>(a + at), y = *reinterpret_cast<const uint4*>(b + at);
      if (x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w) continue;
    }
    for (uint64_t element = at; element < at + sizeof(uint4) && element < n; element += size) {
      bool same = true;
      for (uint64_t i = element; i < element + size && i < n; ++i) same = same && a[i] == b[i];
      if (!same) ++found;
    }
  }
  if (found > 0) fetchAdd<Scope::Device, Order::Relaxed>(count, found);
}
