// PortChannel: two ranks whose hosts move the data, either way, over any transport. A kernel pushes
// a trigger, and its host's proxy passes the request to the connection.
//
//   if (threadIdx.x == 0) channel.putWithSignal(0, 0, bytes);
//
// and at the peer
//
//   if (threadIdx.x == 0) channel.wait();
//   __syncthreads();
//
#pragma once

#include <mscclgo/channel_set.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/fifo.cuh>
#include <mscclgo/host_semaphore.cuh>

namespace mscclgo {

// PortRequest is the kind of a port's trigger: any sum of the first three, or kGet, kStore, kAdd
// or kExchange, alone or with kFlush.
//
//   a       dst memory's id, 16 bits | offset, 48 bits; of an exchange the peer's
//   b       src memory's id, 16 bits | offset, 48 bits; of a store or an add the value; of an
//           exchange where this rank gets what the word was
//   c       bytes, of a store or an add 8; kTooLarge where an offset or the size needs more than
//           48 bits; of an exchange the value
//   detail  the channel's number, 16 bits
//
// kInline goes with kPut: the bytes are in the entry's payload, at b. kAtomic is no kind by
// itself.
enum PortRequest : uint8_t {
  kPut = 1,
  kSignal = 2,
  kFlush = 4,
  kInline = 8,
  kGet = 16,
  kStore = 32,
  kAtomic = 64,
  kAdd = kAtomic | kStore,
  kExchange = kAtomic | kGet
};

constexpr uint64_t kTooLarge = ~uint64_t(0);

// PortState has the counts of this rank's kernels, in device memory of an end.
struct PortState {
  uint64_t asked;     // 1 + the ring's position of the newest get or exchange
  uint64_t expected;  // signals waited for
  uint64_t pushed;    // 1 + the ring's position of the channel's newest trigger
  uint64_t flushed;   // the value of pushed at the newest flush that ended
};

// PortProgress is a connection's progress, which the host writes to pinned memory.
struct PortProgress {
  uint64_t flushed;  // 1 + the ring's position of the newest flush that is done
  uint64_t taken;    // triggers that the transport has taken, where there is a PortQueue
};

// kPortWaiting is how many triggers of a connection may have been pushed before the transport takes
// the oldest, where the peer is slow or silent. The next thread waits before it takes an entry of
// the ring, so that other connections have room there.
constexpr uint64_t kPortWaiting = 1024;

// kRoomChannel is the channel number in reports of this wait.
constexpr uint32_t kRoomChannel = (uint32_t(1) << 31) - 3;

// PortQueue has the counts of this rank's kernels for a connection, in device memory.
struct PortQueue {
  uint64_t asked;    // triggers pushed, and about to be
  uint64_t taken;    // PortProgress::taken when last read, or less
  uint64_t looking;  // 1 while a thread looks at it
  uint64_t reserved;
};

// BasePortChannelHandle is one end of a channel. Its puts, gets, stores, adds and exchanges name
// memories by their ids in the service. One thread makes a call. Several threads and blocks may
// make calls at a time, but only one thread at a time may wait() or poll(). Requests of the
// channels of one connection are done in the order of their pushes, and none is lost. Where the
// peer's memory is mapped, a thread may do a request itself, after all earlier requests of the same
// channel. There is no order between connections. All calls but wait() and poll() may wait for room
// in the ring, and for a peer that is more than kPortWaiting triggers behind. When a result is not
// Done, the group has failed.
struct BasePortChannelHandle {
  FifoHandle fifo;
  Host2DeviceSemaphoreHandle semaphore;
  PortState* state;
  uint64_t* peerSent;            // where the peer gets signals of kernels, mapped here, or null
  const PortProgress* progress;  // of the connection
  PortQueue* queue;              // of the connection, or null if triggers need not wait for the peer
  uint64_t number;               // the channel's, in the service

  // put copies bytes from a memory of this rank to a memory of the peer. The copy sees what the
  // thread wrote and observed before (release at system scope). The bytes must not change until a
  // flush(), or an answer of the peer's to a later signal().
  MSCCLGO_DEVICE WaitResult put(uint32_t dst, uint64_t dstOffset, uint32_t src, uint64_t srcOffset,
                                uint64_t bytes) const {
    return ask(kPut, dst, dstOffset, src, srcOffset, bytes).result;
  }

  // get copies bytes from a memory of the peer to a memory of this rank. It finds what this channel
  // has put there before. For data of the peer, a wait() for its signal() comes first. The bytes
  // are here after a flush(), which acquires them at system scope for this thread. Until then only
  // a put() of the channel may use them, to send them on. A later signal() means to the peer that
  // its memory was read.
  MSCCLGO_DEVICE WaitResult get(uint32_t src, uint64_t srcOffset, uint32_t dst, uint64_t dstOffset,
                                uint64_t bytes) const {
    return askGet(kGet, dst, dstOffset, src, srcOffset, bytes).result;
  }

  // getAndFlush is get() and flush() in one trigger.
  MSCCLGO_DEVICE WaitResult getAndFlush(uint32_t src, uint64_t srcOffset, uint32_t dst, uint64_t dstOffset,
                                        uint64_t bytes) const {
    return awaitFlush(askGet(kGet | kFlush, dst, dstOffset, src, srcOffset, bytes));
  }

  // store writes a value to the 8-byte word at a multiple of 8 of a memory of the peer, in one
  // order with puts and gets. A reader sees the word whole (but over Soft-RoCE). Only a signal()
  // shows the peer, over every transport, that earlier puts are there.
  MSCCLGO_DEVICE WaitResult store(uint32_t dst, uint64_t dstOffset, uint64_t value) const {
    return askStore(kStore, dst, dstOffset, value).result;
  }

  // storeAndFlush is store() and flush() in one trigger.
  MSCCLGO_DEVICE WaitResult storeAndFlush(uint32_t dst, uint64_t dstOffset, uint64_t value) const {
    return awaitFlush(askStore(kStore | kFlush, dst, dstOffset, value));
  }

  // add adds a value to the 8-byte word at a multiple of 8 of a memory of the peer, in one order
  // with puts, gets and stores. It is one atomic operation. Over CUDA IPC, SHM and Ethernet it is
  // atomic to all accesses of device memory by kernels at system scope and by hosts over these
  // transports. Over InfiniBand it is atomic only to what comes through the same card.
  // connection.Connection.Add of Go has the details. Over CUDA IPC the group fails if the link has
  // no atomics. Only a signal() shows the peer, over every transport, that earlier puts are there.
  //
  // A kernel of one thread does the add: over CUDA IPC on this device, over SHM and Ethernet on the
  // peer's. So a kernel that waits for the add must not fill the device.
  MSCCLGO_DEVICE WaitResult add(uint32_t dst, uint64_t dstOffset, uint64_t value) const {
    return askStore(kAdd, dst, dstOffset, value).result;
  }

  // addAndFlush is add() and flush() in one trigger.
  MSCCLGO_DEVICE WaitResult addAndFlush(uint32_t dst, uint64_t dstOffset, uint64_t value) const {
    return awaitFlush(askStore(kAdd | kFlush, dst, dstOffset, value));
  }

  // exchange replaces the 8-byte word at a multiple of 8 of a memory of the peer by a value, and
  // stores the old value to such a word of this rank's memory own. It is there after a flush(), as
  // with get(). It is atomic as add() is.
  MSCCLGO_DEVICE WaitResult exchange(uint32_t dst, uint64_t dstOffset, uint64_t value, uint32_t own,
                                     uint64_t ownOffset) const {
    return askExchange(kExchange, dst, dstOffset, value, own, ownOffset).result;
  }

  // exchangeAndFlush is exchange() and flush() in one trigger.
  MSCCLGO_DEVICE WaitResult exchangeAndFlush(uint32_t dst, uint64_t dstOffset, uint64_t value, uint32_t own,
                                             uint64_t ownOffset) const {
    return awaitFlush(askExchange(kExchange | kFlush, dst, dstOffset, value, own, ownOffset));
  }

  // signal ends a wait() of the peer's, after all earlier requests of the channel.
  MSCCLGO_DEVICE WaitResult signal() const {
    if (peerSent == nullptr || outstanding()) return ask(kSignal).result;
    countSignal();  // the host has nothing left to do first
    return WaitResult::Done;
  }

  // flush waits until all earlier requests of the channel are done at the peer. The memory may then
  // be overwritten, and the results of gets and exchanges are here.
  MSCCLGO_DEVICE WaitResult flush() const {
    if (!outstanding()) {
      fence<Scope::System, Order::Acquire>();  // for data that another thread's flush has fetched
      fence<Scope::System, Order::Release>();
      return WaitResult::Done;
    }
    return awaitFlush(ask(kFlush));
  }

  // putWithSignal is put() and signal() in one trigger.
  MSCCLGO_DEVICE WaitResult putWithSignal(uint32_t dst, uint64_t dstOffset, uint32_t src, uint64_t srcOffset,
                                          uint64_t bytes) const {
    return ask(kPut | kSignal, dst, dstOffset, src, srcOffset, bytes).result;
  }

  // putWithSignalAndFlush is put(), signal() and flush() in one trigger.
  MSCCLGO_DEVICE WaitResult putWithSignalAndFlush(uint32_t dst, uint64_t dstOffset, uint32_t src,
                                                  uint64_t srcOffset, uint64_t bytes) const {
    return awaitFlush(ask(kPut | kSignal | kFlush, dst, dstOffset, src, srcOffset, bytes));
  }

  // wait waits for the peer's signal(); see Host2DeviceSemaphoreHandle.
  MSCCLGO_DEVICE WaitResult wait() const { return semaphore.wait(); }

  // poll consumes a signal if there is one, and reports whether it did; see
  // Host2DeviceSemaphoreHandle.
  MSCCLGO_DEVICE bool poll() const { return semaphore.poll(); }

  // outstanding reports whether the host may still have requests of the channel to do. A thread
  // must not overtake them by doing a request itself.
  MSCCLGO_DEVICE bool outstanding() const {
    uint64_t pushed, flushed;
    loadRelaxed16(&state->pushed, pushed, flushed);
    return pushed > flushed;
  }

 private:
  friend struct PortChannelHandle;

  // countSignal counts a signal at the peer, in one access, as others may do at the same time.
  MSCCLGO_DEVICE void countSignal() const {
#if defined(MSCCLGO_TRACE)
    detail::Span span(semaphore.watch.trace());
    uint64_t byKernels = fetchAdd<Scope::System, Order::Release>(peerSent, 1) + 1;
    uint64_t byHost = load<Scope::System, Order::Relaxed>(peerSent - 1);
    span.end(TraceKind::PortSignal, semaphore.watch, 0, byHost + byKernels, byHost, byKernels);
#else
    mscclgo::add<Scope::System, Order::Release>(peerSent, 1);
#endif
  }

  // ask pushes a trigger.
  MSCCLGO_DEVICE PushResult ask(uint32_t kind, uint32_t dst = 0, uint64_t dstOffset = 0, uint32_t src = 0,
                                uint64_t srcOffset = 0, uint64_t bytes = 0) const {
    // A number cut to its field would name the wrong bytes.
    if (((dstOffset | srcOffset | bytes) >> 48) != 0 || ((dst | src) >> 16) != 0) bytes = kTooLarge;
    WaitResult room = enqueue();
    if (room != WaitResult::Done) return {room, 0};
    return asked(
        fifo.push(Trigger{uint64_t(dst) << 48 | (dstOffset & kOffsetMask),
                          uint64_t(src) << 48 | (srcOffset & kOffsetMask), bytes, number, uint8_t(kind)}));
  }

  // askGet pushes a trigger for a get, and records it for later puts of this thread.
  MSCCLGO_DEVICE PushResult askGet(uint32_t kind, uint32_t dst, uint64_t dstOffset, uint32_t src,
                                   uint64_t srcOffset, uint64_t bytes) const {
    return fetches(ask(kind, dst, dstOffset, src, srcOffset, bytes));
  }

  // fetches records the position of a trigger that fetches bytes.
  MSCCLGO_DEVICE PushResult fetches(PushResult pushed) const {
    if (pushed.result == WaitResult::Done) raise(&state->asked, pushed.position + 1);
    return pushed;
  }

  // fetching reports whether bytes of a get or an exchange may be missing: then only the host may
  // read the source of a put.
  MSCCLGO_DEVICE bool fetching() const {
    return load<Scope::Device, Order::Relaxed>(&state->asked) >
           load<Scope::Device, Order::Relaxed>(&state->flushed);
  }

  // acquireGot acquires what other threads' flushes have fetched, once nothing is outstanding.
  // Channels without gets do not pay for the fence.
  MSCCLGO_DEVICE void acquireGot() const {
    if (load<Scope::Device, Order::Relaxed>(&state->asked) != 0) fence<Scope::Device, Order::Acquire>();
  }

  // askStore pushes a trigger with the value to store or to add.
  MSCCLGO_DEVICE PushResult askStore(uint32_t kind, uint32_t dst, uint64_t dstOffset, uint64_t value) const {
    bool fits = dstOffset >> 48 == 0 && dst >> 16 == 0;
    WaitResult room = enqueue();
    if (room != WaitResult::Done) return {room, 0};
    return asked(fifo.push(Trigger{uint64_t(dst) << 48 | (dstOffset & kOffsetMask), value,
                                   fits ? sizeof(value) : kTooLarge, number, uint8_t(kind)}));
  }

  // askExchange pushes a trigger for an exchange. Its fields have no room for kTooLarge: a number
  // that does not fit becomes the largest, where there is no word.
  MSCCLGO_DEVICE PushResult askExchange(uint32_t kind, uint32_t dst, uint64_t dstOffset, uint64_t value,
                                        uint32_t own, uint64_t ownOffset) const {
    WaitResult room = enqueue();
    if (room != WaitResult::Done) return {room, 0};
    return fetches(asked(
        fifo.push(Trigger{place(dst, dstOffset), place(own, ownOffset), value, number, uint8_t(kind)})));
  }

  // place returns a memory's id and an offset in one field.
  MSCCLGO_DEVICE static uint64_t place(uint32_t id, uint64_t offset) {
    bool fits = offset >> 48 == 0 && id >> 16 == 0;
    return uint64_t(id) << 48 | (fits ? offset : kOffsetMask);
  }

  // askInline pushes a trigger with the bytes to put.
  MSCCLGO_DEVICE PushResult askInline(uint32_t kind, uint32_t dst, uint64_t dstOffset, const uint8_t* src,
                                      uint64_t bytes) const {
    WaitResult room = enqueue();
    if (room != WaitResult::Done) return {room, 0};
    return asked(fifo.pushWith(
        Trigger{uint64_t(dst) << 48 | dstOffset, 0, 0, number, uint8_t(kind | kInline)}, src, bytes));
  }

  // enqueue counts a trigger that is about to be pushed, and waits until the connection has
  // room for it.
  MSCCLGO_DEVICE WaitResult enqueue() const {
    if (queue == nullptr) return WaitResult::Done;
    uint64_t position = fetchAdd<Scope::Device, Order::Relaxed>(&queue->asked, 1);
    uint64_t taken = load<Scope::Device, Order::Relaxed>(&queue->taken);
    if (int64_t(position - taken) < int64_t(kPortWaiting)) return WaitResult::Done;
    Watch watch = semaphore.watch;
    watch.channel = kRoomChannel;
    return detail::awaitRoom(
        watch, detail::Room{&progress->taken, &queue->taken, &queue->looking, kPortWaiting}, position);
  }

  // asked records the position of a trigger.
  MSCCLGO_DEVICE PushResult asked(PushResult pushed) const {
    raise(&state->pushed, pushed.position + 1);
    return pushed;
  }

  // awaitFlush waits until the flush of a trigger is done.
  MSCCLGO_DEVICE WaitResult awaitFlush(PushResult pushed) const {
    if (pushed.result != WaitResult::Done) return pushed.result;
    detail::Span span(semaphore.watch.trace());
    WaitResult result = awaitAbove<Order::Acquire>(fifo.watch, &progress->flushed, pushed.position);
    if (result == WaitResult::Done) {
      fence<Scope::Device, Order::Release>();  // for acquireGot() of other threads
      raise(&state->flushed, pushed.position + 1);
    }
    span.end(TraceKind::AwaitFlush, semaphore.watch, uint32_t(result), pushed.position, 0,
             reinterpret_cast<uintptr_t>(fifo.entries));
    return result;
  }

  // raise sets a word that several threads may set, and that only grows.
  MSCCLGO_DEVICE static void raise(uint64_t* word, uint64_t to) {
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(to));
  }

  static constexpr uint64_t kOffsetMask = (uint64_t(1) << 48) - 1;
};

namespace detail {

// copySmall copies by one thread. It has 16 loads under way at a time: otherwise each would take a
// trip to memory. It is not inlined, because of its registers.
inline __device__ __noinline__ void copySmall(uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  constexpr uint32_t kLoads = 16;
  while (bytes >= kLoads * sizeof(uint4)) {
    uint4 v[kLoads];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) v[i] = reinterpret_cast<const uint4*>(src)[i];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) reinterpret_cast<uint4*>(dst)[i] = v[i];
    dst += sizeof(v), src += sizeof(v), bytes -= sizeof(v);
  }
  copy(dst, src, bytes, 0, 1);
}

}  // namespace detail

// PortChannelHandle is one end of a channel between two memories. Offsets and sizes are in
// bytes, of any alignment. See BasePortChannelHandle for who may call, what is ordered and
// what is returned.
struct PortChannelHandle {
  BasePortChannelHandle base;
  uint8_t* remote;       // the peer's memory, mapped here, or null
  uint8_t* local;        // this rank's memory, where it is mapped
  uint64_t remoteSize;   // bytes
  uint64_t localSize;    // bytes
  uint64_t direct;       // bytes of the largest put, get or store by the thread itself
  uint64_t inlineLimit;  // bytes of the largest put inside a trigger
  uint32_t dst;          // the peer's memory in the service
  uint32_t src;          // this rank's memory in the service

  // put copies from the local memory to the peer's. The bytes must not change until a
  // flush(), or an answer of the peer's to a later signal(). The thread may make a small put
  // itself, by weak loads: it must have acquired what other threads wrote.
  MSCCLGO_DEVICE WaitResult put(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes)) return ask(kPut, dstOffset, srcOffset, bytes).result;
    putMine(dstOffset, srcOffset, bytes);
    return WaitResult::Done;
  }

  // get copies from the peer's memory to the local one; see BasePortChannelHandle::get. The
  // thread may make a small get itself, by weak accesses: it must have acquired what the peer
  // wrote.
  MSCCLGO_DEVICE WaitResult get(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const {
    if (!mine(remoteOffset, localOffset, bytes)) return base.get(dst, remoteOffset, src, localOffset, bytes);
    getMine(remoteOffset, localOffset, bytes);
    return WaitResult::Done;
  }

  // getAndFlush is get() and flush() at once: the bytes are here.
  MSCCLGO_DEVICE WaitResult getAndFlush(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const {
    if (!mine(remoteOffset, localOffset, bytes))
      return base.getAndFlush(dst, remoteOffset, src, localOffset, bytes);
    getMine(remoteOffset, localOffset, bytes);
    return base.flush();
  }

  // store writes a value to the 8-byte word at a multiple of 8 of the peer's memory; see
  // BasePortChannelHandle::store. The thread may do so itself.
  MSCCLGO_DEVICE WaitResult store(uint64_t remoteOffset, uint64_t value) const {
    if (!mineToStore(remoteOffset)) return base.store(dst, remoteOffset, value);
    storeMine(remoteOffset, value);
    return WaitResult::Done;
  }

  // storeAndFlush is store() and flush() at once.
  MSCCLGO_DEVICE WaitResult storeAndFlush(uint64_t remoteOffset, uint64_t value) const {
    if (!mineToStore(remoteOffset)) return base.storeAndFlush(dst, remoteOffset, value);
    storeMine(remoteOffset, value);
    return base.flush();
  }

  // add adds a value to the 8-byte word at a multiple of 8 of the peer's memory; see
  // BasePortChannelHandle::add. The thread may do so itself.
  MSCCLGO_DEVICE WaitResult add(uint64_t remoteOffset, uint64_t value) const {
    if (!mineToStore(remoteOffset)) return base.add(dst, remoteOffset, value);
    addMine(remoteOffset, value);
    return WaitResult::Done;
  }

  // addAndFlush is add() and flush() at once.
  MSCCLGO_DEVICE WaitResult addAndFlush(uint64_t remoteOffset, uint64_t value) const {
    if (!mineToStore(remoteOffset)) return base.addAndFlush(dst, remoteOffset, value);
    addMine(remoteOffset, value);
    return base.flush();
  }

  // exchange replaces the 8-byte word at a multiple of 8 of the peer's memory by a value, and
  // stores what it was to such a word of the local memory; see BasePortChannelHandle::exchange.
  // The thread may do so itself.
  MSCCLGO_DEVICE WaitResult exchange(uint64_t remoteOffset, uint64_t value, uint64_t localOffset) const {
    if (!mineToExchange(remoteOffset, localOffset))
      return base.exchange(dst, remoteOffset, value, src, localOffset);
    exchangeMine(remoteOffset, value, localOffset);
    return WaitResult::Done;
  }

  // exchangeAndFlush is exchange() and flush() at once: what the word was is here.
  MSCCLGO_DEVICE WaitResult exchangeAndFlush(uint64_t remoteOffset, uint64_t value,
                                             uint64_t localOffset) const {
    if (!mineToExchange(remoteOffset, localOffset))
      return base.exchangeAndFlush(dst, remoteOffset, value, src, localOffset);
    exchangeMine(remoteOffset, value, localOffset);
    return base.flush();
  }

  // signal ends a wait() of the peer's, after all earlier requests of the channel.
  MSCCLGO_DEVICE WaitResult signal() const { return base.signal(); }

  // flush waits until all earlier requests of the channel are done at the peer, and the results of
  // gets and exchanges are here.
  MSCCLGO_DEVICE WaitResult flush() const { return base.flush(); }

  // putWithSignal is put() and signal() at once.
  MSCCLGO_DEVICE WaitResult putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes)) return ask(kPut | kSignal, dstOffset, srcOffset, bytes).result;
    putMine(dstOffset, srcOffset, bytes);
    return base.signal();
  }

  // putWithSignalAndFlush is put(), signal() and flush() at once.
  MSCCLGO_DEVICE WaitResult putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset,
                                                  uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes))
      return base.awaitFlush(ask(kPut | kSignal | kFlush, dstOffset, srcOffset, bytes));
    putMine(dstOffset, srcOffset, bytes);
    WaitResult result = base.signal();
    return result == WaitResult::Done ? base.flush() : result;
  }

  // wait waits for the peer's signal().
  MSCCLGO_DEVICE WaitResult wait() const { return base.wait(); }

  // poll consumes a signal if there is one, and reports whether it did.
  MSCCLGO_DEVICE bool poll() const { return base.poll(); }

 private:
  // ask pushes a trigger for a put and the rest of `kind`. If the connection sends from host
  // memory, the bytes of a small put go with the trigger: it would take the host longest to fetch
  // them from the device.
  MSCCLGO_DEVICE PushResult ask(uint32_t kind, uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (bytes != 0 && bytes <= inlineLimit && inside(dstOffset, srcOffset, bytes) && !base.fetching()) {
      base.acquireGot();
      return base.askInline(kind, dst, dstOffset, local + srcOffset, bytes);
    }
    return base.ask(kind, dst, dstOffset, src, srcOffset, bytes);
  }

  // putMine is a put by the thread itself.
  MSCCLGO_DEVICE void putMine(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    detail::Span span(base.semaphore.watch.trace());
    detail::copySmall(remote + dstOffset, local + srcOffset, bytes);
    span.end(TraceKind::Put, base.semaphore.watch, 0, 0, bytes, dstOffset);
  }

  // getMine is a get by the thread itself.
  MSCCLGO_DEVICE void getMine(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes) const {
    detail::Span span(base.semaphore.watch.trace());
    detail::copySmall(local + localOffset, remote + remoteOffset, bytes);
    span.end(TraceKind::Get, base.semaphore.watch, 0, 0, bytes, remoteOffset);
  }

  // storeMine is a store by the thread itself, after its puts.
  MSCCLGO_DEVICE void storeMine(uint64_t remoteOffset, uint64_t value) const {
    detail::Span span(base.semaphore.watch.trace());
    mscclgo::store<Scope::System, Order::Release>(reinterpret_cast<uint64_t*>(remote + remoteOffset), value);
    span.end(TraceKind::Put, base.semaphore.watch, 0, 0, sizeof(value), remoteOffset);
  }

  // addMine is an add by the thread itself, after its puts.
  MSCCLGO_DEVICE void addMine(uint64_t remoteOffset, uint64_t value) const {
    detail::Span span(base.semaphore.watch.trace());
    mscclgo::add<Scope::System, Order::Release>(reinterpret_cast<uint64_t*>(remote + remoteOffset), value);
    span.end(TraceKind::Put, base.semaphore.watch, 0, 0, sizeof(value), remoteOffset);
  }

  // exchangeMine is an exchange by the thread itself, after its puts.
  MSCCLGO_DEVICE void exchangeMine(uint64_t remoteOffset, uint64_t value, uint64_t localOffset) const {
    detail::Span span(base.semaphore.watch.trace());
    *reinterpret_cast<uint64_t*>(local + localOffset) =
        fetchExchange<Scope::System>(reinterpret_cast<uint64_t*>(remote + remoteOffset), value);
    span.end(TraceKind::Get, base.semaphore.watch, 0, 0, sizeof(value), remoteOffset);
  }

  // mineToExchange reports whether the thread makes an exchange itself.
  MSCCLGO_DEVICE bool mineToExchange(uint64_t remoteOffset, uint64_t localOffset) const {
    if (localSize < sizeof(uint64_t) || localOffset > localSize - sizeof(uint64_t) ||
        reinterpret_cast<uintptr_t>(local + localOffset) % sizeof(uint64_t) != 0 ||
        !mineToStore(remoteOffset))
      return false;
    base.acquireGot();
    return true;
  }

  // mineToStore reports whether the thread makes a store or an add itself: links over which threads
  // signal have atomics.
  MSCCLGO_DEVICE bool mineToStore(uint64_t remoteOffset) const {
    if (direct < sizeof(uint64_t) || remoteSize < sizeof(uint64_t) ||
        remoteOffset > remoteSize - sizeof(uint64_t) ||
        reinterpret_cast<uintptr_t>(remote + remoteOffset) % sizeof(uint64_t) != 0)
      return false;
    return !base.outstanding();
  }

  // inside reports whether a put is in range. If not, it goes to the host as it is, and the host
  // returns the error.
  MSCCLGO_DEVICE bool inside(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    return dstOffset <= remoteSize && bytes <= remoteSize - dstOffset && srcOffset <= localSize &&
           bytes <= localSize - srcOffset;
  }

  // mine reports whether the thread makes a put or get itself. A copy engine takes some
  // microseconds to start, and a thread moves a few KiB in that time. The host must have nothing
  // left to do for the channel, to keep the order.
  MSCCLGO_DEVICE bool mine(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (bytes > direct || !inside(dstOffset, srcOffset, bytes)) return false;
    // Copies between differently aligned ranges have few loads under way.
    uintptr_t both =
        reinterpret_cast<uintptr_t>(remote + dstOffset) | reinterpret_cast<uintptr_t>(local + srcOffset);
    if (both % sizeof(uint4) != 0 && bytes > kUnaligned) return false;
    if (base.outstanding()) return false;
    base.acquireGot();
    return true;
  }

  static constexpr uint64_t kUnaligned = 128;
};

// PortChannelSet is one rank's port channels to its peers, passed by value; see channel_set.cuh.
struct PortChannelSet {
  const PortChannelHandle* handles;  // channel i to peer j is handles[i * size + j]
  uint32_t rank;                     // the index of this rank among the peers, or size if it is not one
  uint32_t size;                     // peers
  uint32_t perPeer;                  // channels to each
  uint32_t reserved;
  Watch watch;

  // to returns a channel to a peer. Blocks with channels of their own take the one of their number,
  // below perPeer. With checks, an index outside the set ends the kernel (check.cuh). Any thread
  // may call it.
  MSCCLGO_DEVICE auto to(uint32_t peer, uint32_t channel = 0, Site site = Site::here()) const
      -> const PortChannelHandle& {
    return detail::channelOf(*this, peer, channel, site);
  }
};

}  // namespace mscclgo
