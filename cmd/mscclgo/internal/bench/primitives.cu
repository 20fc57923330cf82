// The primitives between two ranks, each timed within a kernel. Rank 0 begins; what
// a kernel took, in nanoseconds, goes to *took. Handles are copied first, since
// memory may be read anew after each wait.
#include <mscclgo/fifo.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

namespace {

// volley sends a signal and waits for one back, a number of times.
template <Order Wait, Order Signal>
MSCCLGO_DEVICE void volley(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                           uint64_t* took) {
  Device2DeviceSemaphoreHandle semaphore = channel->semaphore;
  auto wait = [&] { return Wait == Order::Relaxed ? semaphore.relaxedWait() : semaphore.wait(); };
  uint64_t start = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i) {
    if (rank == 1 && wait() != WaitResult::Done) return;
    Signal == Order::Relaxed ? semaphore.relaxedSignal() : semaphore.signal();
    if (rank == 0 && wait() != WaitResult::Done) return;
  }
  *took = nanoseconds() - start;
}

}  // namespace

// semaphores does it with signals that order all memory, relaxedSemaphores with
// such that order none, which is what bare stores cost. One thread.
extern "C" __global__ void semaphores(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                                      uint64_t* took) {
  volley<Order::Acquire, Order::Release>(channel, rank, rounds, took);
}
extern "C" __global__ void relaxedSemaphores(const MemoryChannelHandle* channel, uint32_t rank,
                                             uint32_t rounds, uint64_t* took) {
  volley<Order::Relaxed, Order::Relaxed>(channel, rank, rounds, took);
}

namespace {

template <class Packet>
MSCCLGO_DEVICE void bounce(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                           uint32_t firstFlag, uint64_t* took) {
  Packet* theirs = reinterpret_cast<Packet*>(channel->remote);
  const Packet* mine = reinterpret_cast<const Packet*>(channel->packets);
  Watch watch = channel->semaphore.watch;
  uint64_t start = nanoseconds();
  Piece<Packet> piece{};
  for (uint32_t flag = firstFlag; flag < firstFlag + rounds; ++flag) {
    if (rank == 0) piece.write(theirs, threadIdx.x, flag);
    WaitResult result =
        waitTogether<Piece<Packet>::kThreads>(watch, [&] { return piece.tryRead(mine, threadIdx.x, flag); });
    if (result != WaitResult::Done) return;
    if (rank == 1) piece.write(theirs, threadIdx.x, flag);
  }
  if (threadIdx.x == 0) *took = nanoseconds() - start;
}

}  // namespace

// LL8, LL16 and LL128 send a packet to and fro, with new flags from firstFlag on. One
// thread, or for LL128 a warp.
extern "C" __global__ void LL8(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                               uint32_t firstFlag, uint64_t* took) {
  bounce<LL8Packet>(channel, rank, rounds, firstFlag, took);
}
extern "C" __global__ void LL16(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                                uint32_t firstFlag, uint64_t* took) {
  bounce<LL16Packet>(channel, rank, rounds, firstFlag, took);
}
extern "C" __global__ void LL128(const MemoryChannelHandle* channel, uint32_t rank, uint32_t rounds,
                                 uint32_t firstFlag, uint64_t* took) {
  bounce<LL128Packet>(channel, rank, rounds, firstFlag, took);
}

// ports puts bytes with a signal to and fro. One thread.
extern "C" __global__ void ports(const PortChannelHandle* channel, uint32_t rank, uint64_t bytes,
                                 uint32_t rounds, uint64_t* took) {
  PortChannelHandle peer = *channel;
  uint64_t start = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i) {
    if (rank == 1 && peer.wait() != WaitResult::Done) return;
    if (peer.putWithSignal(0, 0, bytes) != WaitResult::Done) return;
    if (rank == 0 && peer.wait() != WaitResult::Done) return;
  }
  *took = nanoseconds() - start;
}

// putMany puts bytes a number of times, one after the other, and flushes. One thread of
// rank 0.
extern "C" __global__ void putMany(const PortChannelHandle* channel, uint64_t bytes, uint32_t rounds,
                                   uint64_t* took) {
  PortChannelHandle peer = *channel;
  uint64_t start = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i) {
    if (peer.put(0, 0, bytes) != WaitResult::Done) return;
  }
  if (peer.flush() != WaitResult::Done) return;
  *took = nanoseconds() - start;
}

// pushes pushes triggers from one thread of each block, and waits until the host has
// taken each, if `sync`. Block 0's time counts: all push as many.
extern "C" __global__ void pushes(FifoHandle fifo, uint32_t rounds, bool sync, uint64_t* took) {
  uint64_t start = nanoseconds();
  PushResult pushed{};
  for (uint32_t i = 0; i < rounds; ++i) {
    pushed = fifo.push(Trigger::user(kFirstUserKind, i));
    if (pushed.result != WaitResult::Done) return;
    if (sync && fifo.sync(pushed.position) != WaitResult::Done) return;
  }
  if (fifo.sync(pushed.position) != WaitResult::Done) return;
  if (blockIdx.x == 0) *took = nanoseconds() - start;
}
