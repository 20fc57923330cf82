// Kernels of the tests of pools of pipes.
#include <mscclgo/pipe_pool.cuh>

using namespace mscclgo;

// borrowers has each block, of one thread, borrow lots in rounds, and write to all of the lot and read it
// again. counts are of lots that were had, of times that all were lent, and of words that somebody else
// had written meanwhile.
extern "C" __global__ void borrowers(uint8_t* memory, uint32_t rounds, uint64_t* counts) {
  PipePool* pool = reinterpret_cast<PipePool*>(memory);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t lot = pool->borrow();
    add<Scope::Device, Order::Relaxed>(counts + (lot == 0 ? 1 : 0), 1);
    if (lot == 0) continue;
    uint64_t* words = reinterpret_cast<uint64_t*>(memory + lot);
    const uint64_t mark = uint64_t(blockIdx.x) << 32 | round;
    for (uint64_t i = 0; i < pool->lotBytes / sizeof(uint64_t); ++i) words[i] = mark + i;
    for (uint64_t i = 0; i < pool->lotBytes / sizeof(uint64_t); ++i)
      if (words[i] != mark + i) add<Scope::Device, Order::Relaxed>(counts + 2, 1);
    pool->giveBack(lot);
  }
}

// borrowAll has one thread borrow all lots and one more, after it has had some, and then find the only lot
// that is free, once from each lot on where a search begins. places has the lots' places; the last is 0 if
// that went well.
extern "C" __global__ void borrowAll(uint8_t* memory, uint32_t skips, uint64_t* places) {
  PipePool* pool = reinterpret_cast<PipePool*>(memory);
  for (uint32_t i = 0; i < skips; ++i) pool->giveBack(pool->borrow());
  for (uint64_t i = 0; i <= pool->lots; ++i) places[i] = pool->borrow();
  const uint64_t had = places[skips % pool->lots];
  pool->giveBack(had);  // the only one that is free now, wherever the search begins
  for (uint64_t i = 0; i < pool->lots; ++i) {
    const uint64_t lot = pool->borrow();
    if (lot != had) places[pool->lots] = lot + 1;
    pool->giveBack(had);
  }
}
