// PipePool: lots of device memory that the pipes of a rank borrow for long messages.
#pragma once

#include <mscclgo/atomic.cuh>

namespace mscclgo {

// PipePool begins the memory that it is of. Behind it is a word for each lot: 1 if the lot is
// free. Kernels of one device use it; any thread may make any call.
struct PipePool {
  uint64_t lots;      // how many there are
  uint64_t first;     // where the first is in the memory, bytes, a multiple of 128
  uint64_t lotBytes;  // a multiple of 128
  uint64_t asked;     // how often one was wanted
  uint64_t refused;   // how often all were lent
  uint64_t lent;      // lots that are lent now
  uint64_t reserved[10];

  // borrow returns the offset of a lot in the memory, or 0 if all are lent. It does not wait. What
  // those did with the lot who had it before is done (acquire at device scope).
  MSCCLGO_DEVICE uint64_t borrow() {
    const uint64_t number = fetchAdd<Scope::Device, Order::Relaxed>(&asked, uint64_t(1));
    if (load<Scope::Device, Order::Relaxed>(&lent) < lots) {
      // Those who ask at a time begin at different lots, and at those that were lent longest ago.
      for (uint64_t i = 0; i < lots; ++i) {
        const uint64_t lot = (number + i) % lots;
        if (load<Scope::Device, Order::Relaxed>(word(lot)) == 0 ||
            fetchExchange<Scope::Device>(word(lot), 0) == 0)
          continue;
        add<Scope::Device, Order::Relaxed>(&lent, 1);
        return first + lot * lotBytes;
      }
    }
    add<Scope::Device, Order::Relaxed>(&refused, 1);
    return 0;
  }

  // giveBack gives back the lot at an offset. What this thread has done and observed is done for
  // those who borrow the lot next (release at device scope).
  MSCCLGO_DEVICE void giveBack(uint64_t offset) {
    add<Scope::Device, Order::Relaxed>(&lent, ~uint64_t(0));
    store<Scope::Device, Order::Release>(word((offset - first) / lotBytes), 1);
  }

 private:
  MSCCLGO_DEVICE uint64_t* word(uint64_t lot) { return reinterpret_cast<uint64_t*>(this + 1) + lot; }
};

}  // namespace mscclgo
