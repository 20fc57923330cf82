// Kernels for the tests and benchmarks of port channels.
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// What a thread of `act` does.
enum Action {
  Put,
  Signal,
  Flush,
  PutWithSignal,
  PutWithSignalAndFlush,
  Wait,
  Poll,
  Get,
  GetAndFlush,
  Store,
  StoreAndFlush,
  Add,
  AddAndFlush,
  Exchange,
  ExchangeAndFlush
};

// act does one thing `count` times in one thread and stores how it ended.
extern "C" __global__ void act(PortChannelHandle c, int action, uint64_t dst, uint64_t src, uint64_t bytes,
                               uint32_t count, uint32_t* result) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < count && r == WaitResult::Done; ++i) {
    switch (action) {
      case Put:
        r = c.put(dst, src, bytes);
        break;
      case Signal:
        r = c.signal();
        break;
      case Flush:
        r = c.flush();
        break;
      case PutWithSignal:
        r = c.putWithSignal(dst, src, bytes);
        break;
      case PutWithSignalAndFlush:
        r = c.putWithSignalAndFlush(dst, src, bytes);
        break;
      case Wait:
        r = c.wait();
        break;
      case Get:
        r = c.get(dst, src, bytes);
        break;
      case GetAndFlush:
        r = c.getAndFlush(dst, src, bytes);
        break;
      case Store:
        r = c.store(dst, src);
        break;
      case StoreAndFlush:
        r = c.storeAndFlush(dst, src);
        break;
      case Add:
        r = c.add(dst, src);
        break;
      case AddAndFlush:
        r = c.addAndFlush(dst, src);
        break;
      case Exchange:
        r = c.exchange(dst, src, bytes);
        break;
      case ExchangeAndFlush:
        r = c.exchangeAndFlush(dst, src, bytes);
        break;
      case Poll:
        r = c.poll() ? WaitResult::Done : WaitResult::TimedOut;
        break;
    }
  }
  *result = uint32_t(r);
}

// putBase puts between memories that it names, signals and flushes.
extern "C" __global__ void putBase(BasePortChannelHandle c, uint32_t dst, uint64_t dstOffset, uint32_t src,
                                   uint64_t srcOffset, uint64_t bytes, uint32_t* result) {
  WaitResult r = c.put(dst, dstOffset, src, srcOffset, bytes);
  if (r == WaitResult::Done) r = c.signal();
  if (r == WaitResult::Done) r = c.flush();
  *result = uint32_t(r);
}

// getBase gets between memories that it names.
extern "C" __global__ void getBase(BasePortChannelHandle c, uint32_t src, uint64_t srcOffset, uint32_t dst,
                                   uint64_t dstOffset, uint64_t bytes, uint32_t* result) {
  *result = uint32_t(c.getAndFlush(src, srcOffset, dst, dstOffset, bytes));
}

// rotate puts, gets that back, puts what it has got in another place, gets it from there and
// signals, and so on.
extern "C" __global__ void rotate(PortChannelHandle c, uint64_t size, uint32_t rounds, uint32_t* result) {
  WaitResult r = WaitResult::Done;
  auto then = [&](WaitResult next) {
    if (r == WaitResult::Done) r = next;
  };
  for (uint32_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t n = i % 4 == 0 ? 16 : i % 4 == 1 ? 2000 : i % 4 == 2 ? 8000 : size / 4;
    then(c.put(0, size / 2 + 64 * i, n));
    then(c.get(0, 0, n));
    then(c.put(size / 2 + 64 * i, 0, 16));
    then(c.get(size / 2 + 64 * i, size / 4 + 64 * i, 16));
    then(c.signal());
  }
  then(c.flush());
  *result = uint32_t(r);
}

// storeAmong puts words, stores to one of them, gets that, stores to another and signals, and
// so on.
extern "C" __global__ void storeAmong(PortChannelHandle c, uint32_t rounds, uint64_t words,
                                      uint32_t* result) {
  WaitResult r = WaitResult::Done;
  auto then = [&](WaitResult next) {
    if (r == WaitResult::Done) r = next;
  };
  for (uint64_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t last = 8 * (words - 1 - i);
    then(c.put(0, 0, 8 * words / 4));
    then(c.store(8 * i, i));
    then(c.get(8 * i, last, 8));
    then(c.store(last, ~i));
    then(c.signal());
  }
  then(c.flush());
  *result = uint32_t(r);
}

// changeAmong puts words, adds to one of them, exchanges it for another number, puts what it was
// in another place and signals, and so on.
extern "C" __global__ void changeAmong(PortChannelHandle c, uint32_t rounds, uint64_t words,
                                       uint32_t* result) {
  WaitResult r = WaitResult::Done;
  auto then = [&](WaitResult next) {
    if (r == WaitResult::Done) r = next;
  };
  for (uint64_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t last = 8 * (words - 1 - i);
    then(c.put(0, 0, 8 * words / 4));
    then(c.add(8 * i, i << 40));
    then(c.exchange(8 * i, ~i, last));
    then(c.put(last, last, 8));
    then(c.add(last, 1));
    then(c.signal());
  }
  then(c.flush());
  *result = uint32_t(r);
}

// changeBase adds to a word of a memory that it names, and exchanges it.
extern "C" __global__ void changeBase(BasePortChannelHandle c, uint32_t dst, uint64_t dstOffset, uint32_t own,
                                      uint64_t ownOffset, uint32_t* result) {
  WaitResult r = c.addAndFlush(dst, dstOffset, 3);
  if (r == WaitResult::Done) r = c.exchangeAndFlush(dst, dstOffset, 5, own, ownOffset);
  *result = uint32_t(r);
}

// addAll has one thread of each block add to one word, and exchange another for a number that
// only it has. It keeps what it found, behind flushes.
extern "C" __global__ void addAll(PortChannelHandle c, const uint64_t* local, uint64_t first, uint32_t rounds,
                                  uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < rounds && r == WaitResult::Done; ++i) {
    uint64_t at = uint64_t(blockIdx.x) * rounds + i;
    r = i % 2 == 0 ? c.add(0, (uint64_t(1) << 40) + 1) : c.addAndFlush(0, (uint64_t(1) << 40) + 1);
    if (r == WaitResult::Done) r = c.exchangeAndFlush(8, first + at, 8 * at);
    if (r == WaitResult::Done && local[at] == first + at) r = WaitResult::TimedOut;  // not what it was
  }
  results[blockIdx.x] = uint32_t(r);
}

// getAll has one thread of each block get words one by one, each checked behind its flush.
extern "C" __global__ void getAll(PortChannelHandle c, const uint64_t* local, uint32_t rounds,
                                  uint32_t* results) {
  WaitResult r = WaitResult::Done;
  results[blockIdx.x] = 0;
  for (uint32_t i = 0; i < rounds; ++i) {
    uint64_t at = uint64_t(blockIdx.x) * rounds + i;
    r = i % 2 == 0 ? c.getAndFlush(8 * at, 8 * at, 8) : c.get(8 * at, 8 * at, 8);
    if (r == WaitResult::Done && i % 2 != 0) r = c.flush();
    if (r != WaitResult::Done || local[at] != at + 1) {
      results[blockIdx.x] = 100 * (i + 1) + uint32_t(r);
      return;
    }
  }
}

// pushRaw pushes any trigger and waits until it was served.
extern "C" __global__ void pushRaw(FifoHandle fifo, uint64_t a, uint64_t b, uint64_t c, uint64_t detail,
                                   uint32_t kind, uint32_t* result) {
  PushResult pushed = fifo.push(Trigger{a, b, c, detail, uint8_t(kind)});
  WaitResult r = pushed.result == WaitResult::Done ? fifo.sync(pushed.position) : pushed.result;
  *result = uint32_t(r);
}

// pushMany pushes a channel's triggers without its handle.
extern "C" __global__ void pushMany(FifoHandle fifo, uint64_t number, uint32_t kind, uint32_t count,
                                    uint32_t* result) {
  PushResult pushed{};
  for (uint32_t i = 0; i < count && pushed.result == WaitResult::Done; ++i)
    pushed = fifo.push(Trigger{0, 0, 0, number, uint8_t(kind)});
  *result = uint32_t(pushed.result);
}

// ask pushes triggers of a user's kind, one after the other is served, and stores
// how long each took in nanoseconds.
extern "C" __global__ void ask(FifoHandle fifo, uint32_t rounds, uint32_t* times) {
  for (uint32_t i = 0; i < rounds; ++i) {
    uint64_t start = nanoseconds();
    PushResult pushed = fifo.push(Trigger::user(200));
    if (pushed.result != WaitResult::Done || fifo.sync(pushed.position) != WaitResult::Done) return;
    times[i] = uint32_t(nanoseconds() - start);
  }
}

// flood pushes triggers of a user's kind from every thread, as long as it can.
extern "C" __global__ void flood(FifoHandle fifo, uint32_t* results) {
  PushResult pushed{};
  while (pushed.result == WaitResult::Done) pushed = fifo.relaxedPush(Trigger::user(200));
  results[blockIdx.x * blockDim.x + threadIdx.x] = uint32_t(pushed.result);
}

// pingPong sends a value back and forth. Each end fills its local buffer, puts it
// and checks what the peer put; every word of round i is 2i, or 2i+1 from the
// answering end. Blocks use channels and parts of the buffer of their own.
extern "C" __global__ void pingPong(const PortChannelHandle* channels, uint32_t* local,
                                    const uint32_t* arrived, uint32_t words, uint32_t rounds, bool first,
                                    uint32_t* result) {
  const PortChannelHandle& c = channels[blockIdx.x];
  uint64_t part = uint64_t(blockIdx.x) * words;
  __shared__ uint32_t outcome;
  if (threadIdx.x == 0) outcome = 0;
  __syncthreads();
  for (uint32_t i = 0; i < 2 * rounds; ++i) {
    if ((i % 2 == 0) == first) {
      for (uint32_t w = threadIdx.x; w < words; w += blockDim.x) local[part + w] = i;
      __syncthreads();
      if (threadIdx.x == 0 && c.putWithSignal(part * 4, part * 4, words * 4) != WaitResult::Done) outcome = 1;
    } else {
      if (threadIdx.x == 0 && c.wait() != WaitResult::Done) outcome = 2;
      __syncthreads();
      for (uint32_t w = threadIdx.x; w < words; w += blockDim.x)
        if (arrived[part + w] != i) atomicMax(&outcome, 3);
    }
    __syncthreads();
    if (outcome != 0) break;
  }
  if (threadIdx.x == 0) result[blockIdx.x] = outcome;
}

// volley is the ping-pong of a benchmark: one thread, no checks.
extern "C" __global__ void volley(PortChannelHandle c, uint64_t bytes, uint32_t rounds, bool first,
                                  uint32_t* times) {
  for (uint32_t i = 0; i < rounds; ++i) {
    uint64_t start = nanoseconds();
    if (!first && c.wait() != WaitResult::Done) return;
    if (c.putWithSignal(0, 0, bytes) != WaitResult::Done) return;
    if (first && c.wait() != WaitResult::Done) return;
    times[i] = uint32_t(nanoseconds() - start);
  }
}

// stream puts and signals `count` times and flushes once.
extern "C" __global__ void stream(PortChannelHandle c, uint64_t bytes, uint32_t count, uint32_t* result) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = 0; i < count && r == WaitResult::Done; ++i) r = c.putWithSignal(0, 0, bytes);
  if (r == WaitResult::Done) r = c.flush();
  *result = uint32_t(r);
}

// flushAll has every thread put a byte of its own and flush, and then check at
// the peer's memory, mapped here, that the byte is there.
extern "C" __global__ void flushAll(PortChannelHandle c, uint8_t* local, const uint8_t* remote,
                                    uint32_t rounds, uint32_t* result) {
  uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
  result[me] = 0;
  for (uint32_t i = 1; i <= rounds; ++i) {
    local[me] = uint8_t(i);
    WaitResult r = c.put(me, me, 1);
    if (r == WaitResult::Done) r = c.flush();
    if (r != WaitResult::Done) {
      result[me] = uint32_t(r);
      return;
    }
    if (*const_cast<const volatile uint8_t*>(remote + me) != uint8_t(i)) result[me] = 100;
  }
}

// mix puts words of its own one by one, from a block's only thread, and pushes a
// user's trigger with the word's number behind each.
extern "C" __global__ void mix(PortChannelHandle c, uint32_t words, uint32_t* result) {
  WaitResult r = WaitResult::Done;
  PushResult pushed{};
  for (uint32_t i = 0; i < words && r == WaitResult::Done; ++i) {
    r = c.put(4 * i, 4 * i, 4);
    if (r != WaitResult::Done) break;
    pushed = c.base.fifo.push(Trigger::user(200, i));
    r = pushed.result;
  }
  if (r == WaitResult::Done) r = c.base.fifo.sync(pushed.position);
  *result = uint32_t(r);
}

// putAll makes the puts of a list, each {dst, src, bytes}, then signals and flushes. Each
// block does so with one thread, and takes its turns in the list.
extern "C" __global__ void putAll(PortChannelHandle c, const uint64_t* list, uint32_t count,
                                  uint32_t* results) {
  WaitResult r = WaitResult::Done;
  for (uint32_t i = blockIdx.x; i < count && r == WaitResult::Done; i += gridDim.x)
    r = c.put(list[3 * i], list[3 * i + 1], list[3 * i + 2]);
  if (r == WaitResult::Done) r = c.signal();
  if (r == WaitResult::Done) r = c.flush();
  results[blockIdx.x] = uint32_t(r);
}

// signals has one thread of each block signal `count` times, once all blocks have begun.
extern "C" __global__ void signals(PortChannelHandle c, uint32_t count, uint32_t* begun, uint32_t* results) {
  fetchAdd<Scope::Device, Order::Relaxed>(begun, 1);
  WaitResult r = waitUntil(c.base.semaphore.watch,
                           [&] { return load<Scope::Device, Order::Relaxed>(begun) == gridDim.x; });
  for (uint32_t i = 0; i < count && r == WaitResult::Done; ++i) r = c.signal();
  results[blockIdx.x] = uint32_t(r);
}

// consume counts the signals that have arrived.
extern "C" __global__ void consume(PortChannelHandle c, uint32_t* count) {
  uint32_t n = 0;
  while (c.poll()) ++n;
  *count = n;
}
