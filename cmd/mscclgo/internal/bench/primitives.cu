// The primitives between two ranks, each timed within a kernel. Rank 0 begins; what
// a kernel took, in nanoseconds, goes to *took. Handles are copied first, since
// memory may be read anew after each wait.
#include <mscclgo/fifo.cuh>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/pipe.cuh>
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

namespace {

// Part is what a block moves of a message.
struct Part {
  uint64_t first, bytes;
};

// partOf cuts a message into a part for each block, at multiples of 128 bytes.
MSCCLGO_DEVICE Part partOf(uint64_t bytes) {
  const uint64_t lines = bytes / 128;
  const uint64_t first = lines * blockIdx.x / gridDim.x, end = lines * (blockIdx.x + 1) / gridDim.x;
  return {first * 128, (end - first) * 128};
}

// Times are when a block began and ended, by nanoseconds().
struct Times {
  uint64_t begin, end;
};

// answer has rank 1 tell rank 0, by the pipe that goes back, that it has come so far.
MSCCLGO_DEVICE WaitResult answer(const PipeHandle& out, const PipeHandle& in, uint32_t rank) {
  return rank == 1 ? out.send(nullptr, 0) : in.recv(nullptr, 0);
}

}  // namespace

// copies writes rank 0's message to rank 1, a number of times: what the link carries when
// no block waits for the peer. Blocks are as in `messages`.
extern "C" __global__ void __launch_bounds__(512)
    copies(const MemoryChannelHandle* channel, uint64_t bytes, uint32_t rounds, Times* times) {
  const Part part = partOf(bytes);
  const uint64_t begin = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i)
    channel->put(part.first, part.first, part.bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence<Scope::System, Order::Release>();  // the copies have arrived
  times[blockIdx.x] = {begin, nanoseconds()};
}

// messages sends rank 0's message to rank 1 by pipes, a number of times. Each block has a
// pipe of its own each way. It begins when rank 1's block runs, and ends when that has
// received all.
extern "C" __global__ void __launch_bounds__(512)
    messages(PipeSet pipes, uint32_t rank, uint8_t* message, uint64_t bytes, uint32_t rounds, Times* times) {
  const PipeHandle& out = pipes.to(0, blockIdx.x);
  const PipeHandle& in = pipes.from(0, blockIdx.x);
  const Part part = partOf(bytes);
  uint8_t* const mine = message + part.first;
  if (answer(out, in, rank) != WaitResult::Done) return;
  const uint64_t begin = nanoseconds();
  for (uint32_t i = 0; i < rounds; ++i) {
    WaitResult result = rank == 0 ? out.send(mine, part.bytes) : in.recv(mine, part.bytes);
    if (result != WaitResult::Done) return;
  }
  if (answer(out, in, rank) != WaitResult::Done) return;
  if (threadIdx.x == 0) times[blockIdx.x] = {begin, nanoseconds()};
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
