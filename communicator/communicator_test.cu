// Kernels of the tests: one block each, of as many threads as the caller says.
#include <mscclgo/group.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/packet.cuh>
#include <mscclgo/pipe.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// meet signals and awaits on one channel a thread, and says how the wait ended.
extern "C" __global__ void meet(const MemoryChannelHandle* channels, uint32_t* results) {
  channels[threadIdx.x].signal();
  results[threadIdx.x] = uint32_t(channels[threadIdx.x].wait());
}

// tell signals on one channel a thread.
extern "C" __global__ void tell(const MemoryChannelHandle* channels, uint32_t* results) {
  channels[threadIdx.x].signal();
  results[threadIdx.x] = uint32_t(WaitResult::Done);
}

// await awaits a signal on one channel a thread.
extern "C" __global__ void await(const MemoryChannelHandle* channels, uint32_t* results) {
  results[threadIdx.x] = uint32_t(channels[threadIdx.x].wait());
}

// gather puts this rank's part of the local buffer into every peer's, each over
// channel `number` to it, and waits for theirs.
extern "C" __global__ void gather(const MemoryChannelHandle* channels, uint32_t ranks, uint32_t rank,
                                  uint32_t number, uint64_t bytes, uint32_t* results) {
  const MemoryChannelHandle* peers = channels + number * ranks;
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    if (peer != rank) peers[peer].put(rank * bytes, rank * bytes, bytes, threadIdx.x, blockDim.x);
  }
  __syncthreads();
  if (threadIdx.x < ranks) {
    peers[threadIdx.x].signal();
    results[threadIdx.x] = uint32_t(peers[threadIdx.x].wait());
  }
}

// portGather is gather over port channels, by one thread, so many times.
extern "C" __global__ void portGather(const PortChannelHandle* channels, uint32_t ranks, uint32_t rank,
                                      uint64_t bytes, uint32_t rounds, uint32_t* results) {
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      if (peer != rank && channels[peer].putWithSignal(rank * bytes, rank * bytes, bytes) != WaitResult::Done)
        results[peer] = 100;
    }
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      if (peer != rank) results[peer] |= uint32_t(channels[peer].wait());
    }
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      if (peer != rank) results[peer] |= uint32_t(channels[peer].flush());
    }
  }
}

// sendPackets sends this rank's part to every peer's inbox, at the same offset
// counted in packets, and unpacks theirs into the local buffer.
extern "C" __global__ void sendPackets(const MemoryChannelHandle* channels, uint32_t ranks, uint32_t rank,
                                       uint64_t bytes, uint32_t flag, uint32_t* results) {
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    if (peer != rank)
      channels[peer].putPackets(2 * rank * bytes, rank * bytes, bytes, threadIdx.x, blockDim.x, flag);
  }
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    WaitResult r =
        channels[peer].unpackPackets(2 * peer * bytes, peer * bytes, bytes, threadIdx.x, blockDim.x, flag);
    if (r != WaitResult::Done) results[peer] = uint32_t(r);
  }
}

// barriers calls the group's barrier so many times and says how the last ended.
// In every round it leaves a number in the scratch of all ranks and looks for
// theirs.
extern "C" __global__ void barriers(__grid_constant__ const GroupHandle group, uint32_t rounds,
                                    uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t round = 1; round <= rounds && r == WaitResult::Done; ++round) {
    if (threadIdx.x < group.size) {
      reinterpret_cast<uint32_t*>(group.scratch(threadIdx.x))[blockIdx.x * group.size + group.rank] = round;
    }
    r = group.barrier();
    if (r == WaitResult::Done && threadIdx.x < group.size) {
      uint32_t theirs =
          reinterpret_cast<uint32_t*>(group.scratch(group.rank))[blockIdx.x * group.size + threadIdx.x];
      if (theirs != round) results[0] = 100;
    }
    if (r == WaitResult::Done) r = group.barrier();
  }
  if (threadIdx.x == 0 && r != WaitResult::Done) results[0] = uint32_t(r);
}

// swapPackets has each of at most 8 blocks exchange packets with the blocks of its number on the other ranks.
// Calls take turns at two sets of slots. The second argument is there as it is for barriers.
extern "C" __global__ void swapPackets(__grid_constant__ const GroupHandle group, uint32_t,
                                       uint32_t* results) {
  uint32_t epoch = group.epoch(), peer = threadIdx.x;
  WaitResult r = WaitResult::Done;
  if (peer < group.size && peer != group.rank) {
    auto slots = [&](uint32_t rank) {
      return reinterpret_cast<LL8Packet*>(group.scratch(rank)) + (epoch % 2 * 8 + blockIdx.x) * group.size;
    };
    slots(peer)[group.rank].write(epoch, epoch);
    Watch watch = group.watch;
    watch.peer = peer;
    LL8Packet::Payload theirs;
    r = read(slots(group.rank) + peer, epoch, theirs, watch);
  }
  if (r != WaitResult::Done) results[0] = uint32_t(r);
  group.nextEpoch();
}

// portVolley puts and signals to the peer and awaits the answer, so many times, by
// one thread. It notes how many nanoseconds each took.
extern "C" __global__ void portVolley(const PortChannelHandle* channel, uint64_t bytes, uint32_t rounds,
                                      bool first, uint32_t* times, uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t start = nanoseconds();
    if (!first) r = channel->wait();
    if (r == WaitResult::Done) r = channel->putWithSignal(0, 0, bytes);
    if (first && r == WaitResult::Done) r = channel->wait();
    times[i] = uint32_t(nanoseconds() - start);
  }
  results[0] = uint32_t(r);
}

// portThereAndBack is portVolley by one thread at both ends, whose device both ranks have.
extern "C" __global__ void portThereAndBack(const PortChannelHandle* near, const PortChannelHandle* far,
                                            uint64_t bytes, uint32_t rounds, uint32_t* times,
                                            uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t start = nanoseconds();
    r = near->putWithSignal(0, 0, bytes);
    if (r == WaitResult::Done) r = far->wait();
    if (r == WaitResult::Done) r = far->putWithSignal(0, 0, bytes);
    if (r == WaitResult::Done) r = near->wait();
    times[i] = uint32_t(nanoseconds() - start);
  }
  results[0] = uint32_t(r);
}

// portStream puts and signals so many times and flushes once.
extern "C" __global__ void portStream(const PortChannelHandle* channel, uint64_t bytes, uint32_t count,
                                      uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < count && r == WaitResult::Done; ++i) r = channel->putWithSignal(0, 0, bytes);
  if (r == WaitResult::Done) r = channel->flush();
  results[0] = uint32_t(r);
}

// beside has one thread put bytes past the end of the peer's buffer.
extern "C" __global__ void beside(mscclgo::MemoryChannelHandle* channel, uint64_t at, uint64_t bytes) {
  if (threadIdx.x == 5) channel->put(at, 0, bytes, 0, 1);
}

// awaitPort awaits a signal on a port channel.
extern "C" __global__ void awaitPort(const PortChannelHandle* channel, uint32_t* results) {
  results[0] = uint32_t(channel->wait());
}

// ask pushes a trigger of the user's.
extern "C" __global__ void ask(__grid_constant__ const FifoHandle fifo, uint32_t kind, uint32_t* results) {
  results[0] = uint32_t(fifo.push(Trigger{1, 2, 3, 4, uint8_t(kind)}).result);
}

// swap signals, unless it is mute, and awaits the other rank's signal.
extern "C" __global__ void swap(const MemoryChannelHandle* channel, bool mute, uint32_t* results) {
  if (!mute) channel->signal();
  results[0] = uint32_t(channel->wait());
}

// spin waits until a word is not 0, and knows no group.
extern "C" __global__ void spin(const uint64_t* word, uint32_t* results) {
  while (load<Scope::System, Order::Relaxed>(word) == 0) {
#if defined(MSCCLGO_EMU)
    emu::yield();
#endif
  }
  results[0] = 0;
}

// gatherBySet puts this rank's part of the local buffer, a slice by each block over its own
// channels, into every peer's, and waits for theirs.
extern "C" __global__ void gatherBySet(MemoryChannelSet set, uint64_t bytes) {
  uint64_t at = (uint64_t(set.rank) * gridDim.x + blockIdx.x) * bytes;
  for (uint32_t peer = 0; peer < set.size; ++peer)
    if (peer != set.rank) set.to(peer, blockIdx.x).put(at, at, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x < set.size) {
    set.to(threadIdx.x, blockIdx.x).signal();
    set.to(threadIdx.x, blockIdx.x).wait();
  }
}

// shift signals to the next rank, each block over a channel of its own, and awaits the one before.
extern "C" __global__ void shift(MemoryChannelSet set) {
  if (threadIdx.x != 0) return;
  set.to((set.rank + 1) % set.size, blockIdx.x).signal();
  set.to((set.rank + set.size - 1) % set.size, blockIdx.x).wait();
}

// sendBySet puts the local buffer to a peer over a port channel, and another awaits it.
extern "C" __global__ void sendBySet(PortChannelSet set, uint32_t to, uint32_t from, uint64_t bytes) {
  if (to < set.size) set.to(to).putWithSignal(0, 0, bytes);
  if (from < set.size) set.to(from).wait();
}

// later has the first thread signal after a time, in which it looks at the clock, or sleeps,
// and the others await a signal.
extern "C" __global__ void later(const MemoryChannelHandle* channel, uint64_t time, bool sleeps,
                                 uint32_t* results) {
  if (threadIdx.x > 0) {
    results[0] = uint32_t(channel->wait());
    return;
  }
  const uint64_t start = nanoseconds();
  while (nanoseconds() - start < time) {
    if (sleeps) __nanosleep(1000000);
  }
  channel->signal();
}

// awaitFirst has the block's first thread await a signal, and the others wait for it.
extern "C" __global__ void awaitFirst(const MemoryChannelHandle* channel, uint32_t* results) {
  WaitResult r = WaitResult::Done;
  if (threadIdx.x == 0) r = channel->wait();
  if (!blockAll(r == WaitResult::Done) && threadIdx.x == 0) results[0] = uint32_t(r);
}

// awaitLine awaits a packet of lines, by one warp.
extern "C" __global__ void awaitLine(const MemoryChannelHandle* channel, uint32_t* results) {
  results[threadIdx.x] = uint32_t(channel->unpackPackets<LL128Packet>(0, 0, 8, threadIdx.x, blockDim.x, 1));
}

// passOn sends bytes to the next rank of a ring, and receives as many, behind them, from the
// one before.
extern "C" __global__ void passOn(PipeSet pipes, uint8_t* data, uint64_t bytes, uint32_t* results) {
  WaitResult r = pipes.to(0, 1).send(data, bytes);
  if (r == WaitResult::Done) r = pipes.from(0, 1).recv(data + bytes, bytes);
  if (threadIdx.x == 0) results[0] = uint32_t(r);
}

// toAll has block 0 send to all peers, and block 1 receive from all, in their order: so many bytes with
// the first `longs` of them, and 1000 with the others, each message to a place of its own.
extern "C" __global__ void toAll(PipeSet pipes, const uint8_t* src, uint8_t* dst, uint64_t bytes,
                                 uint32_t longs, uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < pipes.outs && r == WaitResult::Done; ++i) {
    const uint64_t n = i < longs ? bytes : 1000;
    r = blockIdx.x == 0 ? pipes.to(i).send(src, n) : pipes.from(i).recv(dst + i * bytes, n);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = uint32_t(r);
}

// postMore posts a message of so many bytes to no place, which is not received.
extern "C" __global__ void postMore(PipeSet pipes, uint64_t bytes, uint32_t* results) {
  WaitResult r = pipes.from(0).post(nullptr, bytes);
  if (threadIdx.x == 0) results[0] = uint32_t(r);
}

// passTo is passOn by the first pipe to and from two peers of the set.
extern "C" __global__ void passTo(PipeSet pipes, uint8_t* data, uint64_t bytes, uint32_t to, uint32_t from,
                                  uint32_t* results) {
  WaitResult r = pipes.to(to).send(data, bytes);
  if (r == WaitResult::Done) r = pipes.from(from).recv(data + bytes, bytes);
  if (threadIdx.x == 0) results[0] = uint32_t(r);
}

// sendOnly sends bytes to the first peer, and recvOnly receives them from it.
extern "C" __global__ void sendOnly(PipeSet pipes, uint8_t* data, uint64_t bytes, uint32_t* results) {
  WaitResult r = pipes.to(0).send(data, bytes);
  if (threadIdx.x == 0) results[0] = uint32_t(r);
}
extern "C" __global__ void recvOnly(PipeSet pipes, uint8_t* data, uint64_t bytes, uint32_t* results) {
  WaitResult r = pipes.from(0).recv(data, bytes);
  if (threadIdx.x == 0) results[0] = uint32_t(r);
}
