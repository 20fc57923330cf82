// PipePool: lots of device memory that the pipes of a rank borrow for long messages.
#pragma once

#include <mscclgo/atomic.cuh>

namespace mscclgo {

// PipePool begins the pool's memory. A word for each lot follows: 1 if the lot is free. Kernels of
// one device use it; any thread may make any call.
struct PipePool {
  uint64_t lots;      // how many there are, up to 4096
  uint64_t first;     // where the first is in the memory, bytes, a multiple of 128
  uint64_t lotBytes;  // a multiple of 128; all lots have less than 512 GiB
  uint64_t asked;     // how often one was wanted
  uint64_t refused;   // how often none was found
  uint64_t lent;      // how often one was lent, less how often a kernel gave one back
  uint64_t returned;  // lots that the host gave back
  uint64_t reserved[9];

  // borrow returns the offset of a lot in the memory, or 0 if all are lent. Of more than kProbes
  // lots it looks at that many. It does not wait. The accesses of the lot's last borrower come
  // before (acquire at device scope).
  MSCCLGO_DEVICE uint64_t borrow() {
    const uint32_t number = uint32_t(fetchAdd<Scope::Device, Order::Relaxed>(&asked, uint64_t(1)));
    const uint64_t back = load<Scope::Device, Order::Relaxed>(&returned);
    if (load<Scope::Device, Order::Relaxed>(&lent) - back < lots) {
      uint32_t lot = number % uint32_t(lots);  // concurrent calls begin at different lots
      for (uint32_t probes = 0; probes < lots && probes < kProbes; probes += kAtOnce) {
        // All loads are under way at once, as each takes long. If there are few lots, it looks at
        // them several times.
        uint32_t found = 0, end = lot;
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i, end = next(end))
          found |= uint32_t(load<Scope::Device, Order::Relaxed>(word(end)) != 0) << i;
        for (; found != 0; found >>= 1, lot = next(lot)) {
          if ((found & 1) == 0 || fetchExchange<Scope::Device>(word(lot), 0) == 0) continue;
          add<Scope::Device, Order::Relaxed>(&lent, 1);
          return first + lot * lotBytes;
        }
        lot = end;
      }
    }
    add<Scope::Device, Order::Relaxed>(&refused, 1);
    return 0;
  }

  // giveBack gives back the lot at an offset. What this thread has done and observed is visible to
  // the next borrower (release at device scope).
  MSCCLGO_DEVICE void giveBack(uint64_t offset) {
    add<Scope::Device, Order::Relaxed>(&lent, ~uint64_t(0));
    // In units of 128 bytes 32 bits are enough, and divide faster.
    const uint32_t lot = uint32_t((offset - first) / 128) / uint32_t(lotBytes / 128);
    store<Scope::Device, Order::Release>(word(lot), 1);
  }

 private:
  static constexpr uint32_t kAtOnce = 8, kProbes = 64;

  MSCCLGO_DEVICE uint64_t* word(uint32_t lot) { return reinterpret_cast<uint64_t*>(this + 1) + lot; }

  MSCCLGO_DEVICE uint32_t next(uint32_t lot) const { return lot + 1 < lots ? lot + 1 : 0; }
};

}  // namespace mscclgo
