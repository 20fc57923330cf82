// Kernels of the tests of pipes.
#if defined(UNCHECKED)  // as on GPUs
#include <mscclgo/check.cuh>
#undef MSCCLGO_CHECK
#endif
#include <mscclgo/pipe.cuh>

using namespace mscclgo;

#ifndef THREADS
#define THREADS BlockThreads
#endif

namespace {

// What an Op does: one rank's part in a message.
enum Kind : uint32_t { kSend, kRecv, kCopySend, kToReduce, kReduceSend, kReduce, kReduceCopySend };

// Op is a call at the pipes from and to peers, with places in this rank's memory.
struct Op {
  uint32_t kind, from, to, delay;  // the delay before it is in nanoseconds
  uint64_t src, dst, bytes;
};

MSCCLGO_DEVICE void rest(uint64_t nanos) {
  const uint64_t start = nanoseconds();
  while (nanos != 0 && nanoseconds() - start < nanos) {
#if defined(MSCCLGO_EMU)
    emu::yield();
#endif
  }
}

// actor returns the number of the threads that make calls together.
MSCCLGO_DEVICE uint32_t actor() {
  return blockIdx.x * (blockDim.x / THREADS::threads()) + threadIdx.x / THREADS::threads();
}

template <class T, class Operation>
__device__ __noinline__ WaitResult play(const PipeSet& pipes, const Op& op, uint32_t ranks, uint8_t* memory) {
  const bool sends = op.kind == kSend || op.kind == kToReduce,
             receives = op.kind == kRecv || op.kind == kReduce;
  const PipeHandle& in = sends ? pipes.to(op.to, actor()) : pipes.from(op.from, actor());
  const PipeHandle& out = receives ? in : pipes.to(op.to, actor());
  void* dst = memory + op.dst;
  const void* src = memory + op.src;
  T* results = static_cast<T*>(dst);
  const T* elements = static_cast<const T*>(src);
  const uint64_t count = op.bytes / sizeof(T);
  switch (op.kind) {
    case kSend:
      return out.send<THREADS>(src, op.bytes);
    case kRecv:
      return in.recv<THREADS>(dst, op.bytes);
    case kCopySend:
      return in.recvCopySend<THREADS>(out, dst, op.bytes);
    case kToReduce:
      return out.sendToReduce<T, Operation, THREADS>(elements, count);
    case kReduceSend:
      return in.recvReduceSend<T, Operation, THREADS>(out, elements, count);
    case kReduce:
      return in.recvReduce<T, Operation, THREADS>(results, elements, count, ranks);
    default:
      return in.recvReduceCopySend<T, Operation, THREADS>(out, results, elements, count, ranks);
  }
}

}  // namespace

// schedule makes the calls of a list for each actor, of `most` calls at the most. result is
// how the last ended.
extern "C" __global__ void schedule(PipeSet pipes, const Op* ops, const uint32_t* counts, uint32_t most,
                                    uint8_t* memory, uint32_t* results) {
  for (uint32_t i = 0; i < counts[actor()]; ++i) {
    const Op& op = ops[actor() * most + i];
    if (THREADS::thread() == 0) rest(op.delay);
    WaitResult result = play<int32_t, Sum>(pipes, op, 1, memory);
    if (result != WaitResult::Done) {
      if (THREADS::thread() == 0) results[actor()] = uint32_t(result);
      return;
    }
  }
}

// startAt has all counts of fresh pipes start at a number. One thread.
extern "C" __global__ void startAt(PipeSet pipes, uint64_t number) {
  for (uint32_t i = 0; i < pipes.perPeer; ++i) {
    for (uint32_t side = 0; side < 2; ++side) {
      for (uint32_t peer = 0; peer < (side == 0 ? pipes.outs : pipes.ins); ++peer) {
        const PipeHandle& pipe = side == 0 ? pipes.to(peer, i) : pipes.from(peer, i);
        pipe.control->chunks = pipe.control->answers = number;
        pipe.semaphore.inbound[pipe.is(kPipeByPort) ? 1 : 0] = number;
        if (!pipe.is(kPipeByPort)) *pipe.semaphore.outbound = number;
      }
    }
  }
}

// shift has all ranks of a ring send before they receive, in rounds that each send other
// bytes, from the same place. result is how the last call ended, or 100 if other bytes came
// than `first`, one more in each round.
extern "C" __global__ void shift(PipeSet pipes, uint8_t* src, uint8_t* dst, uint64_t bytes, uint32_t first,
                                 uint32_t rounds, uint32_t* result) {
  for (uint32_t round = 0; round < rounds; ++round) {
    // One rank receives before it sends, so need not post.
    WaitResult r = first == 0 ? pipes.from(0).recv(dst, bytes) : pipes.from(0).post(dst, bytes);
    if (r == WaitResult::Done) r = pipes.to(0).send(src, bytes);
    if (r == WaitResult::Done && first != 0) r = pipes.from(0).recv(dst, bytes);
    if (r != WaitResult::Done) {
      if (threadIdx.x == 0) *result = uint32_t(r);
      return;
    }
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
      if (dst[i] != uint8_t(first + round)) atomicExch(result, 100u);
      ++src[i];
    }
  }
}

// toItself sends by one block what another of this rank receives.
extern "C" __global__ void toItself(PipeSet pipes, const uint8_t* src, uint8_t* dst, uint64_t bytes,
                                    uint32_t* result) {
  WaitResult r = blockIdx.x == 0 ? pipes.to(0).send(src, bytes) : pipes.from(0).recv(dst, bytes);
  if (r != WaitResult::Done && threadIdx.x == 0) *result = uint32_t(r);
}

// one makes a call of one kind, by 32 threads.
extern "C" __global__ void one(PipeSet pipes, uint32_t kind, uint64_t bytes, uint8_t* memory) {
  play<int32_t, Sum>(pipes, Op{kind, 0, 0, 0, 0, 0, bytes}, 1, memory);
}

// forward receives a message and sends it on by a pipe whose host it keeps busy before, with a trigger of
// the user's. result is how the call ended.
extern "C" __global__ void forward(PipeSet pipes, PipeSet onward, uint64_t bytes, uint8_t* memory,
                                   uint32_t* result) {
  const PipeHandle& out = onward.to(0);
  if (threadIdx.x == 0) out.port.base.fifo.push(Trigger::user(kFirstUserKind));
  const WaitResult r = pipes.from(0).recvCopySend(out, memory, bytes);
  if (threadIdx.x == 0) *result = uint32_t(r);
}

// lend borrows all lots of the pool of a pipe from peer 0 and fills them, as messages of other pipes do, or
// counts the words that others have written since, and gives them back. One thread; lots is of pool->lots
// words for their places, and the count.
extern "C" __global__ void lend(PipeSet pipes, uint32_t begins, uint64_t* lots) {
  const PipeHandle& pipe = pipes.from(0);
  const uint64_t mark = 0x5a5a5a5a5a5a5a5a, n = pipe.pool->lots;
  for (uint64_t i = 0; i < n; ++i) {
    if (begins != 0) lots[i] = pipe.pool->borrow();
    uint64_t* words = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(pipe.pool) + lots[i]);
    for (uint64_t k = 0; k < pipe.pool->lotBytes / sizeof(uint64_t); ++k) {
      if (begins != 0) {
        words[k] = mark;
      } else if (words[k] != mark) {
        ++lots[n];
      }
    }
    if (begins == 0) pipe.pool->giveBack(lots[i]);
  }
}
