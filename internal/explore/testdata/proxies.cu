// Kernels of two ranks whose proxies put, signal, exchange and handle triggers: right in nearly all
// orders, as a proxy serves a trigger soon, and wrong in a few; and what mends each, where MENDED is
// defined. Rank 0 moves words into the second half of rank 1's, where the host finds 1, 2 and so on.
#include <mscclgo/group.cuh>
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

struct Case {
  PortChannelHandle port;
  FifoHandle fifo;
  GroupHandle group;
  uint32_t* words;
  const uint32_t* answer;  // pinned: what the handler writes

  __device__ uint32_t bytes() const { return 4 * blockDim.x; }
  __device__ uint32_t* inbox() const { return words + blockDim.x; }
  // fill writes the words that are sent.
  __device__ void fill() const {
    words[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
  }
};

#define CASE(name)                                                                                   \
  __device__ void run_##name(const Case& c);                                                         \
  extern "C" __global__ void name(const PortChannelHandle* port, FifoHandle fifo, GroupHandle group, \
                                  uint32_t* words, const uint32_t* answer) {                         \
    run_##name(Case{*port, fifo, group, words, answer});                                             \
  }                                                                                                  \
  __device__ void run_##name(const Case& c)

// What a put sends is overwritten before a flush.
CASE(overwritten) {
  if (c.group.rank == 0) {
    c.fill();
    if (threadIdx.x == 0) {
      c.port.putWithSignal(c.bytes(), 0, c.bytes());
      if (mended) c.port.flush();
    }
    __syncthreads();
    c.words[threadIdx.x] = 0;
  } else if (threadIdx.x == 0) {
    c.port.wait();
  }
}

// The signal is asked for before the put.
CASE(signalFirst) {
  if (c.group.rank == 0) {
    c.fill();
    if (threadIdx.x == 0) {
      if (!mended) c.port.signal();
      c.port.put(c.bytes(), 0, c.bytes());
      if (mended) c.port.signal();
    }
  } else {
    if (threadIdx.x == 0) c.port.wait();
    __syncthreads();
    const uint32_t got = c.inbox()[threadIdx.x];
    if (got != threadIdx.x + 1) c.words[threadIdx.x] = 1;  // too early
  }
}

// What an exchange finds, zeros, is added to the word before it is here.
CASE(usedEarly) {
  if (c.group.rank != 0) return;
  c.fill();
  if (threadIdx.x != 0) return;
  for (uint32_t i = 0; i < blockDim.x; i += 2) {
    const uint64_t* old = reinterpret_cast<const uint64_t*>(c.words + i);
    c.port.exchange(c.bytes() + 4 * i, uint64_t(i + 2) << 32 | (i + 1), 4 * i);
    if (mended) c.port.flush();
    c.port.addAndFlush(c.bytes() + 4 * i, load<Scope::System, Order::Relaxed>(old));
  }
}

// What the handler of a trigger writes is read before it has.
CASE(handledLate) {
  if (c.group.rank == 0 || threadIdx.x != 0) return;
  Trigger trigger{};
  trigger.kind = kFirstUserKind;
  const PushResult pushed = c.fifo.push(trigger);
  if (mended) {
    c.fifo.sync(pushed.position);
  } else {
    for (uint32_t polls = 0; polls < 200 && load<Scope::System, Order::Acquire>(c.answer) == 0; ++polls) {
    }
  }
  c.inbox()[0] = load<Scope::System, Order::Acquire>(c.answer);
}

// Rank 1 waits for a signal that nobody sends, while nothing is in the rings.
extern "C" __global__ void noSignal(const PortChannelHandle* port, FifoHandle, GroupHandle group, uint32_t*,
                                    const uint32_t*) {
  if (group.rank == 1 && threadIdx.x == 0) port->wait();
}
