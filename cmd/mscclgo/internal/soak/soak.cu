// What the ranks of a soak do besides collectives. Blocks have channels and pipes of their own,
// and each moves a share of the bytes.
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/pipe.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

namespace {

// Share is the part of some bytes that a block moves.
struct Share {
  uint64_t at, bytes;
  MSCCLGO_DEVICE explicit Share(uint64_t all) {
    const uint64_t each = (all + gridDim.x - 1) / gridDim.x;
    at = min(all, each * blockIdx.x);
    bytes = min(each, all - at);
  }
};

}  // namespace

// shift puts bytes to the rank to the right, of so many peers, and waits for the left one's, by
// memory channels. With mute set it does not signal.
extern "C" __global__ void shift(const MemoryChannelHandle* channels, uint32_t peers, uint32_t right,
                                 uint32_t left, uint64_t dst, uint64_t src, uint64_t bytes, bool mute) {
  const MemoryChannelHandle& to = channels[blockIdx.x * peers + right];
  const Share mine(bytes);
  to.put(dst + mine.at, src + mine.at, mine.bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!mute) to.signal();
  channels[blockIdx.x * peers + left].wait();
}

// portShift is shift by port channels.
extern "C" __global__ void portShift(const PortChannelHandle* channels, uint32_t peers, uint32_t right,
                                     uint32_t left, uint64_t dst, uint64_t src, uint64_t bytes, bool mute) {
  if (threadIdx.x != 0) return;
  const PortChannelHandle& to = channels[blockIdx.x * peers + right];
  const Share mine(bytes);
  if (!mute) {
    to.putWithSignal(dst + mine.at, src + mine.at, mine.bytes);
  } else {
    to.put(dst + mine.at, src + mine.at, mine.bytes);
  }
  if (channels[blockIdx.x * peers + left].wait() == WaitResult::Done) to.flush();
}

// trade tells the left rank that this one's bytes are there, and gets the right rank's bytes. It
// stores to, adds to and exchanges three words of the right rank's memory, and gets the third.
extern "C" __global__ void trade(const PortChannelHandle* channels, uint32_t peers, uint32_t right,
                                 uint32_t left, uint64_t dst, uint64_t src, uint64_t bytes, uint64_t words,
                                 uint64_t value, uint64_t own) {
  const PortChannelHandle& to = channels[right];
  const PortChannelHandle& from = channels[left];
  from.signal();
  if (to.wait() != WaitResult::Done) return;
  to.get(src, dst, bytes);
  to.store(words, value);
  to.add(words + 8, value);
  to.exchange(words + 16, value, own);
  if (to.flush() != WaitResult::Done) return;
  to.signal();
  from.wait();
}

// pipeShift sends bytes to the rank to the right and receives the left one's. All ranks send
// before they receive, so that a slot stays free.
extern "C" __global__ void __launch_bounds__(256)
    pipeShift(PipeSet pipes, const uint8_t* src, uint8_t* dst, uint64_t bytes) {
  const PipeHandle& next = pipes.to(0, blockIdx.x);
  const PipeHandle& previous = pipes.from(0, blockIdx.x);
  const Share mine(bytes);
  const uint64_t most = next.slotBytes * (next.slotCount - 1);
  uint64_t done = 0;
  do {
    const uint64_t n = min(most, mine.bytes - done);
    if (next.send(src + mine.at + done, n) != WaitResult::Done) return;
    if (previous.recv(dst + mine.at + done, n) != WaitResult::Done) return;
    done += n;
  } while (done < mine.bytes);
}

// pipeReduce adds up what all ranks have, at least two: a line of them reduces, and the last sends
// the sums around. A piece fits into the slots, as the first rank sends it before it receives.
extern "C" __global__ void __launch_bounds__(256)
    pipeReduce(PipeSet pipes, uint32_t rank, uint32_t ranks, int32_t* data, uint64_t count) {
  const PipeHandle& next = pipes.to(0, blockIdx.x);
  const PipeHandle& previous = pipes.from(0, blockIdx.x);
  const Share mine(count);
  const uint64_t most = next.slotBytes / sizeof(int32_t) * (next.slotCount - 1);
  for (uint64_t done = 0; done < mine.bytes; done += most) {
    int32_t* at = data + mine.at + done;
    const uint64_t n = min(most, mine.bytes - done);
    WaitResult r;
    if (rank == 0) {
      r = next.sendToReduce<int32_t, Sum>(at, n);
    } else if (rank < ranks - 1) {
      r = previous.recvReduceSend<int32_t, Sum>(next, at, n);
    } else {
      r = previous.recvReduceCopySend<int32_t, Sum>(next, at, at, n, ranks);
    }
    if (r == WaitResult::Done && rank + 2 == ranks) {
      r = previous.recv(at, n * sizeof(int32_t));
    } else if (r == WaitResult::Done && rank + 2 < ranks) {
      r = previous.recvCopySend(next, at, n * sizeof(int32_t));
    }
    if (r != WaitResult::Done) return;
  }
}

// report pushes a trigger of the user's and waits until the host has served it.
extern "C" __global__ void report(__grid_constant__ const FifoHandle fifo, uint32_t step) {
  PushResult pushed = fifo.push(Trigger::user(kFirstUserKind, step));
  if (pushed.result == WaitResult::Done) fifo.sync(pushed.position);
}

// wrong puts to a memory that the service does not know.
extern "C" __global__ void wrong(const PortChannelHandle* channels, uint32_t right) {
  channels[right].base.put(4321, 0, 0, 0, 64);
  channels[right].flush();
}
