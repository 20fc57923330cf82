// Kernels of the tests of GroupHandle.
#include <mscclgo/collective.cuh>

using mscclgo::GroupHandle;
using mscclgo::PeerMemory;
using mscclgo::Rounds;
using mscclgo::WaitResult;

// rounds has every thread write to the same thread of all ranks, and look after a
// barrier at what all have written, many times. wrong counts old data, and 1 << 20
// for each block whose barrier failed.
extern "C" __global__ void rounds(GroupHandle group, uint32_t rounds, uint32_t* wrong) {
  // Blocks and senders have rows of their own.
  uint32_t row = blockIdx.x * group.size * blockDim.x;
  for (uint32_t round = 1; round <= rounds; ++round) {
    for (uint32_t peer = 0; peer < group.size; ++peer) {
      uint32_t* scratch = reinterpret_cast<uint32_t*>(group.scratch(peer));
      scratch[row + group.rank * blockDim.x + threadIdx.x] = round * 256 + group.rank;
    }
    bool ok = group.barrier() == WaitResult::Done;
    const uint32_t* mine = reinterpret_cast<const uint32_t*>(group.scratch(group.rank));
    for (uint32_t peer = 0; peer < group.size; ++peer) {
      uint32_t other = blockDim.x - 1 - threadIdx.x;  // of another thread
      if (mine[row + peer * blockDim.x + other] != round * 256 + peer) atomicAdd(wrong, 1u);
    }
    // Nobody writes the next round's before all have read this one's.
    ok = ok && group.barrier() == WaitResult::Done;
    if (!ok) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
  }
}

// meet calls a barrier once and keeps each thread's worst result of all launches.
extern "C" __global__ void meet(GroupHandle group, uint32_t relaxed, uint32_t* results) {
  WaitResult result = relaxed ? group.relaxedBarrier() : group.barrier();
  atomicMax(results + blockIdx.x * blockDim.x + threadIdx.x, uint32_t(result));
}

// relay has rank 0 write a word for each step into every rank's scratch, and the
// others look at a step when rank 0 has signalled it. They signal all steps at once.
// A second call by other values follows. wrong is as in rounds.
extern "C" __global__ void relay(GroupHandle group, uint32_t steps, uint32_t* wrong) {
  for (uint32_t call = 1; call <= 2; ++call) {
    Rounds rounds(group, blockIdx.x);
    bool ok = true;
    for (uint32_t step = 0; step < steps; ++step) {
      uint32_t row = (blockIdx.x * steps + step) * blockDim.x;
      if (group.rank == 0) {
        for (uint32_t peer = 0; peer < group.size; ++peer)
          reinterpret_cast<uint32_t*>(group.scratch(peer))[row + threadIdx.x] = call * 1000 + step;
        rounds.signal();
      } else {
        ok = ok && rounds.waitFor(0, step + 1);
        uint32_t other = blockDim.x - 1 - threadIdx.x;
        if (reinterpret_cast<uint32_t*>(group.scratch(group.rank))[row + other] != call * 1000 + step)
          atomicAdd(wrong, 1u);
      }
    }
    if (group.rank != 0) rounds.signal(steps);
    ok = ok && rounds.wait(steps);
    if (!ok) {
      if (threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
      return;
    }
    rounds.end(steps);
    __syncthreads();  // the next call's Rounds read what end wrote
  }
  if (group.barrier() != WaitResult::Done && threadIdx.x == 0) atomicAdd(wrong, 1u << 20);
}

// call writes the epoch that each block's threads saw, the least and the most.
extern "C" __global__ void call(GroupHandle group, uint32_t* least, uint32_t* most) {
  atomicMin(least + blockIdx.x, group.epoch());
  atomicMax(most + blockIdx.x, group.epoch());
  group.nextEpoch();
}

// own writes this rank's number into its element of every rank's memory.
extern "C" __global__ void own(PeerMemory memory, uint32_t rank, uint32_t ranks) {
  if (threadIdx.x < ranks) memory.of<uint32_t>(threadIdx.x)[rank] = 100 * threadIdx.x + rank;
}

// echo sends a word to every other rank as packet `index` of its inboxes, and stores what
// came from the rank that follows: one block's first thread does it, and all end the call.
extern "C" __global__ void echo(GroupHandle group, uint32_t index, uint32_t word, uint32_t* out) {
  using Boxes = mscclgo::Inboxes<mscclgo::LL8Packet>;
  Boxes inboxes(group);
  inboxes.begin();
  bool ok = true;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    Boxes::Piece piece;
    piece.words[0] = word;
    inboxes.sendToAll(index, piece);
    for (uint32_t k = 1; k < group.size && ok; ++k) {
      ok = inboxes.receive(mscclgo::peer(group, k), index, piece);
      if (ok && k == 1) *out = piece.words[0];
    }
  }
  if (mscclgo::blockAll(ok)) inboxes.end();
}

// stepBack has a wait look at its clock, which has stepped back since it began.
extern "C" __global__ void stepBack(mscclgo::Watch watch, uint32_t* result) {
  *result = uint32_t(mscclgo::detail::look(watch, mscclgo::nanoseconds() + 1000000000000).result);
}
