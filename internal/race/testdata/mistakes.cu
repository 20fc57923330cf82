// Mistakes in the use of memory, as kernels of three ranks, and the same without them where MENDED is
// defined. The two lines that race end in the kernel's name, and those of a flag that may race too in
// "flag" behind it. Each has 8 KiB of its own in the ranks' buffers: data, and flags in the last 1 KiB.
#include <mscclgo/group.cuh>
#include <mscclgo/launch.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/packet.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

constexpr uint64_t kPart = 1024, kFlags = 7168;

struct Mistake {
  MemoryChannelSet peers;
  GroupHandle group;
  PeerMemory buffers;
  const PortChannelHandle* port;  // between ranks 0 and 1
  uint64_t at;

  __device__ MemoryChannelHandle channel() const { return peers.to(1 - group.rank); }
  __device__ uint32_t* words(uint32_t rank) const { return buffers.of<uint32_t>(rank) + at / 4; }
  __device__ uint32_t* mine() const { return words(group.rank); }
  __device__ uint32_t* flag(uint32_t rank) const { return words(rank) + kFlags / 4; }
  __device__ Watch watch() const { return group.watch; }
};

#define KERNEL(name)                                                                             \
  __device__ void run_##name(const Mistake& m);                                                  \
  extern "C" __global__ void name(MemoryChannelSet peers, GroupHandle group, PeerMemory buffers, \
                                  const PortChannelHandle* port, uint64_t at) {                  \
    run_##name(Mistake{peers, group, buffers, port, at});                                        \
  }                                                                                              \
  __device__ void run_##name(const Mistake& m)

// The reader does not wait for the signal.
KERNEL(missingWait) {
  if (m.group.rank == 0) {
    m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // missingWait
    __syncthreads();
    if (threadIdx.x == 0) m.channel().signal();
  } else if (m.group.rank == 1) {
    if (mended && threadIdx.x == 0) m.channel().wait();
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // missingWait
    if (!mended && threadIdx.x == 0) m.channel().wait();
  }
}

// The signal does not release.
KERNEL(relaxedSignal) {
  if (m.group.rank == 0) {
    m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // relaxedSignal
    __syncthreads();
    if (threadIdx.x == 0) {
      if (mended) m.channel().signal();
      if (!mended) m.channel().relaxedSignal();
    }
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) m.channel().wait();
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // relaxedSignal
  }
}

// The wait does not acquire.
KERNEL(relaxedWait) {
  if (m.group.rank == 0) {
    m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // relaxedWait
    __syncthreads();
    if (threadIdx.x == 0) m.channel().signal();
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) {
      if (mended) m.channel().wait();
      if (!mended) m.channel().relaxedWait();
    }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // relaxedWait
  }
}

// The signal comes before the copies of the block's other threads are done.
KERNEL(earlySignal) {
  if (m.group.rank == 0) {
    m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // earlySignal
    if (mended) __syncthreads();
    if (threadIdx.x == 0) m.channel().signal();
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) m.channel().wait();
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // earlySignal
  }
}

// One thread waits, and the others do not wait for it.
KERNEL(waitOfOneThread) {
  if (m.group.rank == 0) {
    m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // waitOfOneThread
    __syncthreads();
    if (threadIdx.x == 0) m.channel().signal();
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) m.channel().wait();
    if (mended) __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // waitOfOneThread
  }
}

// Rank 1 waits for rank 2 and reads what rank 0 wrote.
KERNEL(wrongPeer) {
  if (m.group.rank == 0) {
    m.peers.to(1).put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // wrongPeer
    __syncthreads();
    if (threadIdx.x == 0) m.peers.to(1).signal();
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) m.peers.to(mended ? 0 : 2).wait();
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // wrongPeer
    if (threadIdx.x == 0) m.peers.to(mended ? 2 : 0).wait();
  } else if (threadIdx.x == 0) {
    m.peers.to(1).signal();
  }
}

// The second put waits for an answer that the first has been read, which orders nothing.
KERNEL(reusedBuffer) {
  for (int round = 0; round < 2; ++round) {
    if (m.group.rank == 0) {
      m.channel().put(m.at, m.at, kPart, threadIdx.x, blockDim.x);  // reusedBuffer
      __syncthreads();
      if (threadIdx.x == 0) {
        m.channel().signal();
        if (mended) m.channel().wait();
        if (!mended) m.channel().relaxedWait();
      }
      __syncthreads();
    } else if (m.group.rank == 1) {
      if (threadIdx.x == 0) m.channel().wait();
      __syncthreads();
      m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // reusedBuffer
      __syncthreads();
      if (threadIdx.x != 0) continue;
      if (mended) m.channel().signal();
      if (!mended) m.channel().relaxedSignal();
    }
  }
}

// Two ranks write one range.
KERNEL(twoWriters) {
  if (m.group.rank == 2) return;
  uint32_t range = mended ? m.group.rank * 256 : 0;
  m.words(2)[range + threadIdx.x] = m.group.rank;  // twoWriters twoWriters
}

// The fence is of device scope, and the reader is another device's.
KERNEL(deviceFence) {
  if (threadIdx.x != 0) return;
  if (m.group.rank == 0) {
    m.words(1)[0] = 7;  // deviceFence
    if (mended) fence<Scope::System, Order::Release>();
    if (!mended) fence<Scope::Device, Order::Release>();
    store<Scope::System, Order::Relaxed>(m.flag(1), 1);
  } else if (m.group.rank == 1) {
    waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(m.flag(1)) == 1; });
    m.mine()[512] = m.mine()[0] + 1;  // deviceFence
  }
}

// The counter is released at device scope, and the reader is another device's.
KERNEL(deviceAtomic) {
  if (threadIdx.x != 0) return;
  if (m.group.rank == 0) {
    m.words(1)[0] = 7;  // deviceAtomic
    if (mended) fetchAdd<Scope::System, Order::Release>(m.flag(1), 1);
    if (!mended) fetchAdd<Scope::Device, Order::Release>(m.flag(1), 1);  // deviceAtomic's flag
  } else if (m.group.rank == 1) {
    waitUntil(m.watch(), [&] {
      return load<Scope::System, Order::Acquire>(m.flag(1)) == 1;  // deviceAtomic's flag
    });
    m.mine()[512] = m.mine()[0] + 1;  // deviceAtomic
  }
}

// One lane's fence does not order what the warp's other lanes wrote.
KERNEL(fenceOfOneLane) {
  if (threadIdx.x >= 32) return;
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // fenceOfOneLane
    if (mended) __syncwarp();
    if (threadIdx.x == 0) {
      __threadfence_system();
      store<Scope::System, Order::Relaxed>(m.flag(1), 1);
    }
  } else if (m.group.rank == 1) {
    waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(m.flag(1)) == 1; });
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // fenceOfOneLane
  }
}

// A block's threads read what others wrote to shared memory, with no barrier.
KERNEL(sharedWithoutBarrier) {
  __shared__ uint32_t values[64];
  values[threadIdx.x] = threadIdx.x;  // sharedWithoutBarrier
  if (mended) __syncthreads();
  m.mine()[threadIdx.x] = values[63 - threadIdx.x];  // sharedWithoutBarrier
}

// Lanes of a warp are concurrent.
KERNEL(lanesApart) {
  if (threadIdx.x >= 32) return;
  extern __shared__ uint32_t lanes[];
  lanes[threadIdx.x] = threadIdx.x;  // lanesApart
  if (mended) __syncwarp();
  m.mine()[threadIdx.x] = lanes[31 - threadIdx.x];  // lanesApart
}

// A volatile flag orders nothing by itself.
KERNEL(volatileFlag) {
  volatile uint32_t* flag = m.flag(1);
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // volatileFlag
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (mended) __threadfence_system();
    *flag = 1;
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) {
      while (*flag == 0) {
      }
      if (mended) __threadfence_system();
    }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // volatileFlag
  }
}

// The block's writes are before its threads' fences, and the flag behind; the reader has none. (With one,
// both are sequentially consistent, which orders them.)
KERNEL(fenceOfReader) {
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // fenceOfReader
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) store<Scope::System, Order::Relaxed>(m.flag(1), 1);
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0) {
      while (load<Scope::System, Order::Relaxed>(m.flag(1)) == 0) {
      }
      if (mended) __threadfence_system();
    }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // fenceOfReader
  }
}

// The flag is stored at device scope, for a peer: the fence before it does not help.
KERNEL(storeOfDeviceScope) {
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // storeOfDeviceScope
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence<Scope::System, Order::Release>();
    if (mended) store<Scope::System, Order::Relaxed>(m.flag(1), 1);
    if (!mended) store<Scope::Device, Order::Relaxed>(m.flag(1), 1);  // storeOfDeviceScope's flag
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0)
      while (load<Scope::System, Order::Acquire>(m.flag(1)) == 0) {  // storeOfDeviceScope's flag
      }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // storeOfDeviceScope
  }
}

// Two ranks count in one word, by additions that are atomic on each device alone.
KERNEL(countedByTwoRanks) {
  if (m.group.rank > 1 || threadIdx.x != 0) return;
  uint32_t* count = m.words(1);
  if (mended) fetchAdd<Scope::System, Order::Relaxed>(count, 1);
  if (!mended) fetchAdd<Scope::Device, Order::Relaxed>(count, 1);  // countedByTwoRanks
}

// CUDA's functions are of device scope, also in a loop, as here: it is one race.
KERNEL(plainMax) {
  if (m.group.rank > 1) return;
  if (mended) atomicMax_system(m.words(1), threadIdx.x);
  if (!mended) atomicMax(m.words(1), threadIdx.x);  // plainMax
}

// A flag counts twice. Its second store is behind the first, which has to release.
KERNEL(storedTwice) {
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // storedTwice
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (mended) store<Scope::System, Order::Release>(m.flag(1), 1);
    if (!mended) store<Scope::System, Order::Relaxed>(m.flag(1), 1);
    store<Scope::System, Order::Relaxed>(m.flag(1), 2);
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0)
      while (load<Scope::System, Order::Acquire>(m.flag(1)) < 2) {
      }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // storedTwice
  }
}

// One warp tells another by a volatile flag in shared memory.
KERNEL(volatileShared) {
  __shared__ volatile uint32_t told;
  __shared__ uint32_t data;
  if (threadIdx.x == 0) told = 0;
  __syncthreads();
  if (threadIdx.x == 32) {
    data = 1;  // volatileShared
    if (mended) __threadfence_block();
    told = 1;
  } else if (threadIdx.x == 0) {
    while (told == 0) {
    }
    if (mended) __threadfence_block();
    m.mine()[0] = data;  // volatileShared
  }
}

// Each warp has a flag of one byte, and one of them is not waited for.
KERNEL(flagsOfBytes) {
  __shared__ alignas(8) volatile bool told[4];  // not in a granule of the data
  __shared__ alignas(8) uint32_t data[4];
  if (threadIdx.x < 4) told[threadIdx.x] = false;
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x % 32 != 0) return;
  for (uint32_t i = warp; i < 4; i += 2) {
    data[i] = 1;  // flagsOfBytes
    __threadfence_block();
    told[i] = true;
  }
  for (uint32_t i = 0; i < (mended ? 4u : 3u); ++i)
    while (!told[i]) {
    }
  __threadfence_block();
  if (warp == 0) m.mine()[0] = data[0] + data[1] + data[2] + data[3];  // flagsOfBytes
}

// Two peers have flags of two bytes each, and one of them is not waited for.
KERNEL(flagsOfShorts) {
  volatile uint16_t* told = reinterpret_cast<volatile uint16_t*>(m.flag(0));
  if (threadIdx.x != 0) return;
  if (m.group.rank != 0) {
    m.words(0)[m.group.rank] = 7;  // flagsOfShorts
    __threadfence_system();
    told[m.group.rank] = 1;
  } else {
    for (uint32_t peer = mended ? 1 : 2; peer < 3; ++peer)
      while (told[peer] == 0) {
      }
    __threadfence_system();
    m.mine()[512] = m.mine()[1] + m.mine()[2];  // flagsOfShorts
  }
}

// Flags are stored as bytes and polled as one word, so that the load is atomic for none of the stores.
KERNEL(mixedSizes) {
  volatile uint8_t* told = reinterpret_cast<volatile uint8_t*>(m.flag(1));
  if (m.group.rank == 0 && threadIdx.x < 8) {
    m.words(1)[threadIdx.x] = 7;  // mixedSizes's
    __threadfence_system();
    told[threadIdx.x] = 1;  // mixedSizes
  } else if (m.group.rank == 1 && threadIdx.x == 0) {
    if (mended) {
      for (uint32_t i = 0; i < 8; ++i)
        while (told[i] == 0) {
        }
    } else {
      while (*reinterpret_cast<volatile uint64_t*>(told) != 0x0101010101010101) {  // mixedSizes
      }
    }
    __threadfence_system();
    for (uint32_t i = 0; i < 8; ++i) m.mine()[512 + i] = m.mine()[i] + 1;  // mixedSizes's
  }
}

// Every thread has a fence before the block meets, and the one that signals has none behind. For a
// reader that acquires, without a fence that is sequentially consistent too, its fence does not order
// what the others wrote.
KERNEL(fenceBeforeBarrier) {
  if (m.group.rank == 0) {
    m.words(1)[threadIdx.x] = 7;  // fenceBeforeBarrier
    if (!mended) __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (mended) __threadfence_system();
    store<Scope::System, Order::Relaxed>(m.flag(1), 1);
  } else if (m.group.rank == 1) {
    if (threadIdx.x == 0)
      while (load<Scope::System, Order::Acquire>(m.flag(1)) == 0) {
      }
    __syncthreads();
    m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // fenceBeforeBarrier
  }
}

// The fence before a flag is the block's own, and another block reads.
KERNEL(blockFence) {
  volatile uint32_t* flag = m.flag(m.group.rank);
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    m.mine()[0] = 7;  // blockFence
    if (mended) __threadfence();
    if (!mended) __threadfence_block();
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    __threadfence();
    m.mine()[512] = m.mine()[0] + 1;  // blockFence
  }
}

// Two blocks count in one word, by additions that are atomic in each block alone.
KERNEL(countedByTwoBlocks) {
  if (mended) atomicAdd(m.mine(), 1u);
  if (!mended) atomicAdd_block(m.mine(), 1u);  // countedByTwoBlocks countedByTwoBlocks
  __shared__ uint32_t count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd_block(&count, 1u);
}

// What another block of the launch writes is read by way of the cache for constants.
KERNEL(constantRead) {
  if (threadIdx.x != 0) return;
  uint32_t* flag = m.flag(m.group.rank);
  if (blockIdx.x == 0) {
    m.mine()[0] = 7;  // constantRead
    store<Scope::Device, Order::Release>(flag, 1);
  } else {
    while (load<Scope::Device, Order::Acquire>(flag) == 0) {
    }
    const uint32_t value = mended ? m.mine()[0] : __ldg(m.mine());  // constantRead
    m.mine()[512] = value + __ldg(m.mine() + 1);
  }
}

// Threads write and end, while others take the next barrier for one behind that.
KERNEL(endedBeforeBarrier) {
  __shared__ uint32_t data[64];
  if (threadIdx.x >= 50) {
    data[threadIdx.x] = 1;  // endedBeforeBarrier
    if (!mended) return;
  }
  __syncthreads();
  if (threadIdx.x < 14) m.mine()[threadIdx.x] = data[50 + threadIdx.x];  // endedBeforeBarrier
}

// Blocks of one launch are concurrent.
KERNEL(otherBlock) {
  m.mine()[blockIdx.x * 64 + threadIdx.x] = 1;  // otherBlock
  if (mended) return;
  m.mine()[512 + blockIdx.x * 64 + threadIdx.x] =
      m.mine()[(1 - blockIdx.x) * 64 + threadIdx.x] + 1;  // otherBlock
}

// Two threads signal by one semaphore, whose count they both write.
KERNEL(signalOfTwoThreads) {
  if (m.group.rank == 0) {
    if (threadIdx.x == 0) m.channel().signal();  // signalOfTwoThreads signalOfTwoThreads
    if (mended) __syncthreads();
    if (threadIdx.x == 40) m.channel().signal();  // signalOfTwoThreads signalOfTwoThreads
  } else if (m.group.rank == 1 && threadIdx.x == 0) {
    m.channel().wait();
    m.channel().wait();  // neither signal is lost, as threads of an emulated block take turns
  }
}

// The group's barrier at the end does not order memory.
KERNEL(relaxedBarrier) {
  if (m.group.rank == 0) m.words(1)[threadIdx.x] = 7;  // relaxedBarrier
  if (mended) m.group.barrier();
  if (!mended) m.group.relaxedBarrier();
  if (m.group.rank == 1) m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // relaxedBarrier
}

// An all-reduce has no barrier at its exit, so that the next one overwrites what a slow rank still reads. A
// rank that is slow finds the others at the next barrier already.
KERNEL(noExitBarrier) {
  uint32_t sum = 0;
  for (uint32_t call = 0; call < 4; ++call) {
    m.mine()[threadIdx.x] = call;  // noExitBarrier
    m.group.barrier();
    for (uint32_t peer = 0; peer < m.group.size; ++peer) sum += m.words(peer)[threadIdx.x];  // noExitBarrier
    if (mended) m.group.barrier();
  }
  m.mine()[512 + threadIdx.x] = sum;
}

// twice has rank 0 write data twice, each time before it tells so; and rank 1 wait for the first time, when
// the second is there already, and read. Nothing orders the second write behind the read.
template <class Write, class Tell, class Wait, class Read>
__device__ void twice(const Mistake& m, Write write, Tell tell, Wait wait, Read read) {
  uint32_t* told = m.flag(1) + 8;
  if (m.group.rank == 0) {
    for (uint32_t time = 1; time <= 2; ++time) {
      write();
      __syncthreads();
      if (threadIdx.x == 0) tell();
      if (mended && threadIdx.x == 0) m.peers.to(1).wait();
      __syncthreads();
    }
    if (threadIdx.x == 0) store<Scope::System, Order::Relaxed>(told, 1);
  } else if (m.group.rank == 1) {
    for (uint32_t time = 1; time <= 2; ++time) {
      while (!mended && load<Scope::System, Order::Relaxed>(told) == 0) {
      }
      if (threadIdx.x == 0) wait(time);
      __syncthreads();
      read();
      __syncthreads();
      if (mended && threadIdx.x == 0) m.peers.to(0).signal();
    }
  }
}

KERNEL(signalsAhead) {
  twice(
      m, [&] { m.words(1)[threadIdx.x] = 7; },  // signalsAhead
      [&] { m.peers.to(1).signal(); }, [&](uint32_t) { m.peers.to(0).wait(); },
      [&] { m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1; });  // signalsAhead
}

KERNEL(countAhead) {
  uint64_t* count = reinterpret_cast<uint64_t*>(m.flag(1));
  twice(
      m, [&] { m.words(1)[threadIdx.x] = 7; },  // countAhead
      [&] { fetchAdd<Scope::System, Order::Release>(count, 1); },
      [&](uint32_t time) { awaitAbove<Order::Acquire>(m.watch(), count, time - 1); },
      [&] { m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1; });  // countAhead
}

// Puts are made by the host's proxy, as over a NIC, though small ones are the thread's otherwise.
constexpr uint64_t kPutBytes = 256;

// A put is asked for while the block still writes what it sends.
KERNEL(putTooEarly) {
  if (m.group.rank == 0) {
    m.mine()[threadIdx.x] = 7;  // putTooEarly
    if (mended) __syncthreads();
    if (threadIdx.x == 0) {
      m.port->putWithSignal(m.at + 4096, m.at, kPutBytes);  // putTooEarly
      m.channel().wait();
    }
  } else if (m.group.rank == 1 && threadIdx.x == 0) {
    m.port->wait();
    m.channel().signal();
  }
}

// What a put sends is overwritten before a flush.
KERNEL(noFlush) {
  if (threadIdx.x != 0) return;
  if (m.group.rank == 0) {
    m.port->putWithSignal(m.at + 4096, m.at, kPutBytes);  // noFlush
    if (mended) m.port->flush();
    m.mine()[0] = 8;  // noFlush
    m.channel().wait();
  } else if (m.group.rank == 1) {
    m.port->wait();
    m.channel().signal();
  }
}

// What a put brings is read before the wait.
KERNEL(portReadTooEarly) {
  if (threadIdx.x != 0) return;
  if (m.group.rank == 0) {
    m.channel().wait();  // rank 1 has begun, so that its launch does not come behind the put
    m.port->putWithSignal(m.at + 4096, m.at, kPutBytes);  // portReadTooEarly
  } else if (m.group.rank == 1) {
    m.channel().signal();
    if (mended) m.port->wait();
    m.mine()[64] = m.mine()[1024] + 1;  // portReadTooEarly
    if (!mended) m.port->wait();
  }
}

// What a get of another block brings is read before the flush. A put waits for it.
KERNEL(getOfOtherBlock) {
  if (m.group.rank != 0 || threadIdx.x != 0) return;
  uint32_t* asked = m.flag(0);
  if (blockIdx.x == 0) {
    m.port->get(m.at, m.at + 3072, kPutBytes);  // getOfOtherBlock
    store<Scope::Device, Order::Release>(asked, 1u);
    m.port->flush();
  } else {
    while (load<Scope::Device, Order::Acquire>(asked) != 1) {
    }
    while (mended && m.port->base.outstanding()) {
    }
    if (mended) m.port->put(m.at + 6144, m.at + 3072, 64);
    if (!mended) m.mine()[512] = m.mine()[768] + 1;  // getOfOtherBlock
  }
}

// Two blocks signal by a plain load and a store of the count, as PortChannel.signal once
// did, so that a signal may be lost.
KERNEL(signalOfTwoBlocks) {
  if (threadIdx.x != 0) return;
  uint32_t* sent = m.mine();
  if (m.group.rank == 0) {
    if (mended) fetchAdd<Scope::System, Order::Release>(m.flag(1), 1);
    if (!mended) store<Scope::System, Order::Release>(m.flag(1), ++*sent);  // signalOfTwoBlocks
  } else if (m.group.rank == 1) {
    waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(m.flag(1)) >= 1; });
  }
}

// Lanes take their words of a line before all of them know that its flag is there, as the
// read of LL128 packets once did. Nothing has lanes load at the same time: the flag of a
// lane says nothing of what another one loaded before.
KERNEL(dataBesideFlag) {
  if (threadIdx.x >= 32) return;
  const bool flagged = LL128Packet::flagged(threadIdx.x);
  uint64_t* words = reinterpret_cast<uint64_t*>(m.words(1)) + 2 * threadIdx.x;
  if (m.group.rank == 0) {
    words[0] = 7;  // dataBesideFlag
    __syncwarp();
    if (flagged) store<Scope::System, Order::Release>(words + 1, 1);
  } else if (m.group.rank == 1) {
    uint64_t word = 0;
    waitTogether<32>(m.watch(), [&] {
      if (!mended) word = words[0];  // dataBesideFlag
      bool there = !flagged || load<Scope::System, Order::Acquire>(words + 1) == 1;
      return __all_sync(0xffffffffu, there) != 0;
    });
    if (mended) word = words[0];
    m.mine()[512 + threadIdx.x] = uint32_t(word) + 1;
  }
}

// kCalls is how often a kernel has rank 0 send a word to rank 1 with a flag. A flag that is
// there before it is sent has rank 1 read the word too early.
constexpr uint32_t kCalls = 32;

// endCall keeps calls of ranks 0 and 1 from overlapping, and lets rank 1 go on first.
__device__ void endCall(const Mistake& m) {
  if (m.group.rank == 0) {
    m.channel().signal();
    m.channel().wait();
  } else if (m.group.rank == 1) {
    m.channel().wait();
    m.channel().signal();
  }
}

// Flags repeat, and a place that the calls between do not use still has the one of before.
KERNEL(flagWrapped) {
  if (threadIdx.x != 0) return;
  for (uint32_t call = 0; call < kCalls; ++call) {
    const uint32_t flag = mended ? call + 1 : call % 4 + 1;
    uint32_t* at = m.flag(1) + (call % 4 == 0);
    if (m.group.rank == 0) {
      m.words(1)[0] = call;  // flagWrapped
      store<Scope::System, Order::Release>(at, flag);
    } else if (m.group.rank == 1) {
      waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(at) == flag; });
      m.mine()[512] = m.mine()[0] + 1;  // flagWrapped
    }
    endCall(m);
  }
}

// Two groups, which count their calls apart, take turns with flags in one place.
KERNEL(flagOfTwoGroups) {
  if (threadIdx.x != 0) return;
  for (uint32_t call = 0; call < kCalls; ++call) {
    const uint32_t flag = call / 2 + 1;
    uint32_t* at = m.flag(1) + (mended ? call % 2 : 0);
    if (m.group.rank == 0) {
      m.words(1)[0] = call;  // flagOfTwoGroups
      store<Scope::System, Order::Release>(at, flag);
    } else if (m.group.rank == 1) {
      waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(at) == flag; });
      m.mine()[512] = m.mine()[0] + 1;  // flagOfTwoGroups
    }
    endCall(m);
  }
}

// One thread does not come to the barrier, which does not wait for threads that have ended.
KERNEL(skippedBarrier) {
  __shared__ uint32_t values[64];
  values[threadIdx.x] = threadIdx.x;  // skippedBarrier
  if (mended || threadIdx.x != 63) __syncthreads();
  m.mine()[threadIdx.x] = values[63 - threadIdx.x];  // skippedBarrier
}

// Rank 0 has two blocks, unless MENDED is defined, and rank 1 one, which waits for the
// block of its own number.
KERNEL(gridsDiffer) {
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  if (m.group.rank == 0) {
    for (uint32_t i = first; i < 128; i += step) m.words(1)[i] = 7;  // gridsDiffer
    __syncthreads();
    if (threadIdx.x == 0) store<Scope::System, Order::Release>(m.flag(1) + blockIdx.x, 1);
  } else if (m.group.rank == 1) {
    const uint32_t* flag = m.flag(1) + blockIdx.x;
    waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(flag) == 1; });
    for (uint32_t i = first; i < 128; i += step) m.mine()[512 + i] = m.mine()[i] + 1;  // gridsDiffer
  }
}

// fillPart, readPart and replayPart are for mistakes on the host.
KERNEL(fillPart) { m.mine()[threadIdx.x] = 1; }  // hostReads twoStreams copyBeside
KERNEL(readPart) { m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1; }  // twoStreams

// These wait for a word that a stream changes behind what another kernel writes. No two have the
// same instructions, which the compiler would make one function.
__device__ void awaitChange(const Mistake& m) {
  const uint64_t* word = reinterpret_cast<const uint64_t*>(m.flag(m.group.rank));
  if (threadIdx.x == 0) {
    while (load<Scope::System, Order::Relaxed>(word) == 0) {
    }
    if (mended) fence<Scope::System, Order::Acquire>();
  }
  __syncthreads();
}
KERNEL(addedPart) { m.mine()[threadIdx.x] = 2; }  // added
KERNEL(awaitAddedPart) {
  awaitChange(m);
  m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 2;  // added
}
KERNEL(toldPart) { m.mine()[threadIdx.x] = 4; }                                    // toldTwice
KERNEL(readToldPart) { m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 4; }  // toldTwice
KERNEL(exchangedPart) { m.mine()[threadIdx.x] = 3; }                               // exchanged
KERNEL(awaitExchangedPart) {
  awaitChange(m);
  m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 3;  // exchanged
}

// These are launched with Overlap: a kernel lets the next one begin, and then reads what that one
// overwrites; and one reads what the one before it writes.
KERNEL(lastReadPart) {
  awaitPrevious();
  m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // writtenTooEarly
}
KERNEL(nextWritePart) {
  if (mended) awaitPrevious();
  m.mine()[threadIdx.x] = 2;  // writtenTooEarly
  if (!mended) awaitPrevious();
}
KERNEL(lastFillPart) {
  awaitPrevious();
  m.mine()[threadIdx.x] = 1;  // readTooEarly
}
KERNEL(nextReadPart) {
  if (mended) awaitPrevious();
  m.mine()[512 + threadIdx.x] = m.mine()[threadIdx.x] + 1;  // readTooEarly
  if (!mended) awaitPrevious();
}

// A graph launches this many times, and only the first launch finds the flag's place empty.
KERNEL(replayPart) {
  if (threadIdx.x != 0) return;
  const uint32_t call = ++m.mine()[1024], flag = mended ? call : 1;
  if (m.group.rank == 0) {
    m.words(1)[0] = call;  // flagReplayed
    store<Scope::System, Order::Release>(m.flag(1), flag);
  } else if (m.group.rank == 1) {
    waitUntil(m.watch(), [&] { return load<Scope::System, Order::Acquire>(m.flag(1)) == flag; });
    m.mine()[512] = m.mine()[0] + 1;  // flagReplayed
  }
  endCall(m);
}
