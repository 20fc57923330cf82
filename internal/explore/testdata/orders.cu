// Kernels of three ranks that are right in nearly all orders of their threads, and wrong in a
// few; and what mends each, where MENDED is defined. Mistakes that begin with WEAK are right in all
// orders if loads get the newest values, as on x86, and wrong on a GPU. Each has 4 KiB of its own in the
// ranks' buffers: words that are sent, then results, then flags. The host finds in a result of rank 1 what
// was sent, plus 1.
#include <mscclgo/group.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/packet.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

constexpr uint32_t kWords = 64, kResults = 256, kFlags = 512;  // the first of each

struct Case {
  MemoryChannelSet peers;
  GroupHandle group;
  PeerMemory buffers;
  uint64_t at;

  __device__ MemoryChannelHandle to(uint32_t rank) const { return peers.to(rank); }
  __device__ uint32_t* words(uint32_t rank) const { return buffers.of<uint32_t>(rank) + at / 4; }
  __device__ uint32_t* results() const { return words(group.rank) + kResults; }
  __device__ uint32_t* flags(uint32_t rank) const { return words(rank) + kFlags; }
  __device__ void await(const uint32_t* flag, uint32_t value) const {
    waitUntil(group.watch, [&] { return load<Scope::System, Order::Acquire>(flag) == value; });
  }
  // send writes this thread's word to rank 1.
  __device__ void send(uint32_t value) const { words(1)[threadIdx.x] = value + threadIdx.x; }
  // take has what this thread reads be its result.
  __device__ void take() const { results()[threadIdx.x] = words(1)[threadIdx.x] + 1; }
};

#define CASE(name)                                                                               \
  __device__ void run_##name(const Case& c);                                                     \
  extern "C" __global__ void name(MemoryChannelSet peers, GroupHandle group, PeerMemory buffers, \
                                  uint64_t at) {                                                 \
    run_##name(Case{peers, group, buffers, at});                                                 \
  }                                                                                              \
  __device__ void run_##name(const Case& c)

#define WEAK(name) CASE(name)

// Rank 2 sends half of the words, and has no signal for it.
CASE(missingSignal) {
  const bool half = threadIdx.x < blockDim.x / 2;
  if (c.group.rank == 0) {
    if (half) c.send(0);
    __syncthreads();
    if (threadIdx.x == 0) c.to(1).signal();
  } else if (c.group.rank == 2) {
    if (!half) c.send(0);
    __syncthreads();
    if (mended && threadIdx.x == 0) c.to(1).signal();
  } else {
    if (threadIdx.x == 0) c.to(0).wait();
    if (mended && threadIdx.x == 0) c.to(2).wait();
    __syncthreads();
    c.take();
  }
}

// The words are written again, and nobody has said that they were read.
CASE(reusedBuffer) {
  for (uint32_t round = 0; round < 2; ++round) {
    if (c.group.rank == 0) {
      if (mended && round > 0 && threadIdx.x == 0) c.to(1).wait();
      if (!mended && round > 0) __nanosleep(100000);
      __syncthreads();
      c.send(round * 1000);
      __syncthreads();
      if (threadIdx.x == 0) c.to(1).signal();
    } else if (c.group.rank == 1) {
      if (threadIdx.x == 0) c.to(0).wait();
      __syncthreads();
      if (round == 0) c.take();
      __syncthreads();
      if (mended && round == 0 && threadIdx.x == 0) c.to(0).signal();
    }
  }
}

// The second call's flag has the value of the first call's, which may still be there.
CASE(reusedFlag) {
  for (uint32_t call = 0; call < 2; ++call) {
    const uint32_t flag = mended ? call + 1 : 1;
    if (c.group.rank == 0) {
      c.send(call * 1000);
      __syncthreads();
      if (threadIdx.x != 0) continue;
      store<Scope::System, Order::Release>(c.flags(1), flag);
      c.to(1).wait();
      if (!mended) store<Scope::System, Order::Release>(c.flags(1), 0);
    } else if (c.group.rank == 1) {
      if (threadIdx.x == 0) c.await(c.flags(1), flag);
      __syncthreads();
      c.take();
      __syncthreads();
      if (threadIdx.x == 0) c.to(0).signal();
    }
    __syncthreads();
  }
}

// A thread signals before the block's copies have met.
CASE(earlySignal) {
  if (c.group.rank == 0) {
    c.send(0);
    if (mended) __syncthreads();
    if (threadIdx.x == blockDim.x - 1) c.to(1).signal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.to(0).wait();
    __syncthreads();
    c.take();
  }
}

// Rank 1 waits for rank 2, which has nothing to do with what it reads.
CASE(wrongPeer) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (threadIdx.x == 0) c.to(1).signal();
  } else if (c.group.rank == 2) {
    if (threadIdx.x == 0) c.to(1).signal();
  } else {
    if (threadIdx.x == 0) c.to(mended ? 0 : 2).wait();
    __syncthreads();
    c.take();
    if (threadIdx.x == 0) c.to(mended ? 2 : 0).wait();
  }
}

// Threads of a warp read what others of it write, and are taken to run in step.
CASE(lanesApart) {
  __shared__ uint32_t values[64];
  if (c.group.rank != 1) return;
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x - lane;
  values[threadIdx.x] = first + 31 - lane;
  __syncwarp(mended ? 0xffffffffu : 1u << lane);
  c.results()[threadIdx.x] = values[first + 31 - lane] + 1;
}

// Two blocks count signals by a load and a store, so that one may be lost; then rank 1 waits
// for ever.
CASE(lostSignal) {
  if (threadIdx.x == 0 && c.group.rank == 0) {
    uint32_t* count = c.flags(1);
    if (mended) fetchAdd<Scope::System, Order::Release>(count, 1);
    if (!mended) store<Scope::System, Order::Release>(count, load<Scope::System, Order::Relaxed>(count) + 1);
  } else if (c.group.rank == 1 && blockIdx.x == 0) {
    if (threadIdx.x == 0) c.await(c.flags(1), 2);
    __syncthreads();
    c.results()[threadIdx.x] = threadIdx.x + 1;
  }
}

// Two ranks take two locks, each in its own order.
CASE(twoLocks) {
  if (threadIdx.x == 0 && c.group.rank < 2) {
    const uint32_t first = mended ? 0 : c.group.rank;
    for (uint32_t i = 0; i < 2; ++i) {
      uint32_t* lock = c.flags(1) + (first ^ i);
      waitUntil(c.group.watch, [&] { return atomicCAS_system(lock, 0u, 1u) == 0; });
    }
    for (uint32_t i = 0; i < 2; ++i) store<Scope::System, Order::Release>(c.flags(1) + (first ^ i), 0);
  }
  c.results()[threadIdx.x] = threadIdx.x + 1;
}

// The signal does not release the words before it.
WEAK(relaxedSignal) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (threadIdx.x == 0 && mended) c.to(1).signal();
    if (threadIdx.x == 0 && !mended) c.to(1).relaxedSignal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.to(0).wait();
    __syncthreads();
    c.take();
  }
}

// The wait does not acquire the words behind it.
WEAK(relaxedWait) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (threadIdx.x == 0) c.to(1).signal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0 && mended) c.to(0).wait();
    if (threadIdx.x == 0 && !mended) c.to(0).relaxedWait();
    __syncthreads();
    c.take();
  }
}

// The group's barrier orders no memory.
WEAK(relaxedBarrier) {
  if (c.group.rank == 0) c.send(0);
  if (mended) c.group.barrier();
  if (!mended) c.group.relaxedBarrier();
  if (c.group.rank == 1) c.take();
}

// The fence is of device scope, and the reader is another device's.
WEAK(deviceFence) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (mended) fence<Scope::System, Order::Release>();
    if (!mended) fence<Scope::Device, Order::Release>();
    if (threadIdx.x == 0) store<Scope::System, Order::Relaxed>(c.flags(1), 1);
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.await(c.flags(1), 1);
    __syncthreads();
    c.take();
  }
}

// The counter is released at device scope, and the reader is another device's.
WEAK(deviceAtomic) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (threadIdx.x == 0 && mended) fetchAdd<Scope::System, Order::Release>(c.flags(1), 1);
    if (threadIdx.x == 0 && !mended) fetchAdd<Scope::Device, Order::Release>(c.flags(1), 1);
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.await(c.flags(1), 1);
    __syncthreads();
    c.take();
  }
}

// One lane's fence does not order what the warp's others wrote, though all have written.
WEAK(fenceOfOneLane) {
  if (c.group.rank == 0) {
    c.send(0);
    uint32_t* count = c.flags(0);
    fetchAdd<Scope::Device, Order::Relaxed>(count, 1);
    if (threadIdx.x == 0)
      waitUntil(c.group.watch, [&] { return load<Scope::Device, Order::Relaxed>(count) == blockDim.x; });
    if (mended) __syncthreads();
    if (threadIdx.x == 0) store<Scope::System, Order::Release>(c.flags(1), 1);
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.await(c.flags(1), 1);
    __syncthreads();
    c.take();
  }
}

// The flag is a relaxed one of the block's own, and every thread polls it.
WEAK(relaxedFlagOfBlock) {
  if (c.group.rank != 1) return;
  __shared__ uint32_t values[64];
  uint32_t* flag = c.flags(1) + threadIdx.x;
  values[threadIdx.x] = threadIdx.x;
  if (mended) __threadfence_block();
  atomicExch(flag, 1u);
  const uint32_t other = blockDim.x - 1 - threadIdx.x;
  waitUntil(c.group.watch, [&] { return atomicAdd(c.flags(1) + other, 0u) == 1; });
  if (mended) __threadfence_block();
  c.results()[other] = values[other] + 1;
}

// What rank 0 sent is passed on by rank 2, which does not acquire it.
WEAK(passedOn) {
  if (c.group.rank == 0) {
    c.send(0);
    __syncthreads();
    if (threadIdx.x == 0) c.to(2).signal();
  } else if (c.group.rank == 2) {
    if (threadIdx.x == 0 && mended) c.to(0).wait();
    if (threadIdx.x == 0 && !mended) c.to(0).relaxedWait();
    if (threadIdx.x == 0) c.to(1).signal();
  } else {
    if (threadIdx.x == 0) c.to(2).wait();
    __syncthreads();
    c.take();
  }
}

// A lock orders nothing, so that a count is lost.
WEAK(lockWithoutOrder) {
  uint32_t *lock = c.flags(1), *count = c.words(1) + kWords;
  if (threadIdx.x == 0 && c.group.rank != 1) {
    for (uint32_t i = 0; i < 2; ++i) {
      waitUntil(c.group.watch, [&] { return atomicCAS_system(lock, 0u, 1u) == 0; });
      if (mended) __threadfence_system();
      ++*count;
      if (mended) __threadfence_system();
      atomicExch_system(lock, 0u);
    }
    c.to(1).signal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.to(0).wait();
    if (threadIdx.x == 0) c.to(2).wait();
    __syncthreads();
    c.results()[threadIdx.x] = threadIdx.x + *count - 3;
  }
}

// Each of two ranks says that it comes, and then looks whether the other has: both may go in.
WEAK(bothGoIn) {
  uint32_t* inside = c.words(1) + kWords;
  if (threadIdx.x == 0 && c.group.rank != 1) {
    atomicExch_system(c.flags(1) + c.group.rank, 1u);
    if (mended) __threadfence_system();
    if (load<Scope::System, Order::Relaxed>(c.flags(1) + 2 - c.group.rank) == 0) atomicAdd_system(inside, 1u);
    c.to(1).signal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.to(0).wait();
    if (threadIdx.x == 0) c.to(2).wait();
    __syncthreads();
    c.results()[threadIdx.x] = threadIdx.x + (*inside < 2);
  }
}

// The last block to come sums what all wrote, and no fence is between.
WEAK(lastBlock) {
  if (c.group.rank != 1) return;
  __shared__ bool last;
  uint32_t* parts = c.words(1) + kWords;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = 1;
    if (mended) __threadfence();
    last = atomicAdd(c.flags(1), 1u) == gridDim.x - 1;
    if (mended) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  c.results()[threadIdx.x] = threadIdx.x + (parts[0] + parts[1]) / 2;
}

// What is written before a packet is not ordered by its flag; what is in it, is there.
WEAK(besidePacket) {
  LL8Packet* packet = reinterpret_cast<LL8Packet*>(c.flags(1)) + threadIdx.x;
  if (c.group.rank == 0) {
    c.send(0);
    packet->write(threadIdx.x, 7);
  } else if (c.group.rank == 1) {
    uint32_t word = 0;
    read(packet, 7, word, c.group.watch);
    if (mended) c.results()[threadIdx.x] = word + 1;
    if (!mended) c.take();
  }
}

// A put of words of 16 bytes, whose signal does not release.
WEAK(putOfWords) {
  if (c.group.rank == 0) {
    c.words(0)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    c.to(1).put(c.at, c.at, 4 * blockDim.x, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0 && mended) c.to(1).signal();
    if (threadIdx.x == 0 && !mended) c.to(1).relaxedSignal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.to(0).wait();
    __syncthreads();
    c.take();
  }
}

// A copy of these by several loads of each thread, behind which there is a fence of device scope.
WEAK(copyOfWords) {
  if (c.group.rank == 0) {
    c.words(0)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 4) copy(c.words(1), c.words(0), 4 * blockDim.x, threadIdx.x, 4);
    __syncthreads();
    if (mended) fence<Scope::System, Order::Release>();
    if (!mended) fence<Scope::Device, Order::Release>();
    if (threadIdx.x == 0) store<Scope::System, Order::Relaxed>(c.flags(1), 1);
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0) c.await(c.flags(1), 1);
    __syncthreads();
    c.take();
  }
}

// A get of these, behind a wait that does not acquire.
WEAK(getOfWords) {
  if (c.group.rank == 0) {
    c.words(0)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) c.to(1).signal();
  } else if (c.group.rank == 1) {
    if (threadIdx.x == 0 && mended) c.to(0).wait();
    if (threadIdx.x == 0 && !mended) c.to(0).relaxedWait();
    __syncthreads();
    c.to(0).get(c.at, c.at, 4 * blockDim.x, threadIdx.x, blockDim.x);
    __syncthreads();
    c.take();
  }
}
