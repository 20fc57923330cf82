// PortChannel: two ranks whose hosts move the data, over any transport. A kernel
// asks with a trigger, and the proxy goroutine of its host makes the connection
// do it.
//
//   if (threadIdx.x == 0) channel.putWithSignal(0, 0, bytes);
//
// and at the peer
//
//   if (threadIdx.x == 0) channel.wait();
//   __syncthreads();
//
#pragma once

#include <mscclgo/copy.cuh>
#include <mscclgo/fifo.cuh>
#include <mscclgo/host_semaphore.cuh>

namespace mscclgo {

// PortRequest is the kind of a port's trigger: any sum of these.
//
//   a       dst memory's id, 16 bits | offset, 48 bits
//   b       src memory's id, 16 bits | offset, 48 bits
//   c       bytes; kTooLarge where an offset or the size needs more than 48 bits
//   detail  the channel's number, 16 bits
enum PortRequest : uint8_t { kPut = 1, kSignal = 2, kFlush = 4 };

constexpr uint64_t kTooLarge = ~uint64_t(0);

// PortState is what this rank's kernels count in an end's device memory.
struct PortState {
  uint64_t sent;      // signals that kernels stored in the peer's memory themselves
  uint64_t expected;  // signals waited for
  uint64_t pushed;    // 1 + the ring's position of the channel's newest trigger
  uint64_t flushed;   // what pushed was at the newest flush that ended
};

// BasePortChannelHandle is one end of a channel whose puts name the memories, by
// the ids that the service gave them. One thread calls; calls of several threads
// at a time are served in the order of their pushes. put, signal and flush may
// wait for room in the ring; where the result is not Done, the group has failed.
struct BasePortChannelHandle {
  FifoHandle fifo;
  Host2DeviceSemaphoreHandle semaphore;
  PortState* state;
  uint64_t* peerSent;      // where signals of kernels arrive at the peer, mapped here, or null
  const uint64_t* served;  // pinned: 1 + the position of the connection's newest flush that is done
  uint64_t number;         // the channel's, in the service

  // put copies bytes of a memory of this rank into one of the peer's. What the
  // thread wrote and observed before, the copy reads (release at system scope).
  // The bytes must stay as they are until a flush, or an answer of the peer's that
  // follows the signal.
  MSCCLGO_DEVICE WaitResult put(uint32_t dst, uint64_t dstOffset, uint32_t src, uint64_t srcOffset,
                                uint64_t bytes) const {
    return ask(kPut, dst, dstOffset, src, srcOffset, bytes).result;
  }

  // signal lets the peer's wait() go on, behind all that was put before.
  MSCCLGO_DEVICE WaitResult signal() const {
    if (peerSent == nullptr || outstanding()) return ask(kSignal).result;
    // Nothing that the host must do first: the thread stores the count itself.
    store<Scope::System, Order::Release>(peerSent, ++state->sent);
    return WaitResult::Done;
  }

  // flush waits until all that was put and signalled before is done at the peer,
  // so that the memory may be written anew.
  MSCCLGO_DEVICE WaitResult flush() const {
    if (!outstanding()) {
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

  // poll consumes a signal if one is there; see Host2DeviceSemaphoreHandle.
  MSCCLGO_DEVICE bool poll() const { return semaphore.poll(); }

  // outstanding says whether the host may still have something of the channel to
  // do, which what this thread does itself must not overtake.
  MSCCLGO_DEVICE bool outstanding() const {
    uint64_t pushed, flushed;
    loadRelaxed16(&state->pushed, pushed, flushed);
    return pushed > flushed;
  }

 private:
  MSCCLGO_DEVICE PushResult ask(uint32_t kind, uint32_t dst = 0, uint64_t dstOffset = 0, uint32_t src = 0,
                                uint64_t srcOffset = 0, uint64_t bytes = 0) const {
    // A number cut to its field would name the wrong bytes.
    if (((dstOffset | srcOffset | bytes) >> 48) != 0 || ((dst | src) >> 16) != 0) bytes = kTooLarge;
    PushResult pushed =
        fifo.push(Trigger{uint64_t(dst) << 48 | (dstOffset & kOffsetMask),
                          uint64_t(src) << 48 | (srcOffset & kOffsetMask), bytes, number, uint8_t(kind)});
    raise(&state->pushed, pushed.position + 1);
    return pushed;
  }

  MSCCLGO_DEVICE WaitResult awaitFlush(PushResult pushed) const {
    if (pushed.result != WaitResult::Done) return pushed.result;
    WaitResult result = awaitAbove<Order::Acquire>(fifo.watch, served, pushed.position);
    if (result == WaitResult::Done) raise(&state->flushed, pushed.position + 1);
    return result;
  }

  // raise sets a word that several threads may set and none lowers.
  MSCCLGO_DEVICE static void raise(uint64_t* word, uint64_t to) {
    atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(to));
  }

  static constexpr uint64_t kOffsetMask = (uint64_t(1) << 48) - 1;
};

namespace detail {

// copySmall copies by one thread. Its loads are under way together, 16 at a time:
// one by one, each would take a trip to memory. Not inlined, for its registers.
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

// PortChannelHandle is one end of a channel between two memories. Offsets and
// sizes are bytes of any alignment. See BasePortChannelHandle for who calls, what
// is ordered and what is returned.
struct PortChannelHandle {
  BasePortChannelHandle base;
  uint8_t* remote;       // the peer's memory, mapped here, or null
  const uint8_t* local;  // this rank's memory, where it is mapped
  uint64_t remoteSize;   // bytes
  uint64_t localSize;    // bytes
  uint64_t direct;       // puts up to so many bytes the thread makes itself, where it can
  uint32_t dst;          // the peer's memory in the service
  uint32_t src;          // this rank's memory in the service

  // put copies from the local memory to the peer's. The bytes must stay as they
  // are until a flush(), or an answer of the peer's that follows the signal.
  MSCCLGO_DEVICE WaitResult put(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes)) return base.put(dst, dstOffset, src, srcOffset, bytes);
    detail::copySmall(remote + dstOffset, local + srcOffset, bytes);
    return WaitResult::Done;
  }

  // signal lets the peer's wait() go on, behind all that was put before.
  MSCCLGO_DEVICE WaitResult signal() const { return base.signal(); }

  // flush waits until all that was put and signalled before is done at the peer.
  MSCCLGO_DEVICE WaitResult flush() const { return base.flush(); }

  // putWithSignal is put() and signal() at once.
  MSCCLGO_DEVICE WaitResult putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes)) return base.putWithSignal(dst, dstOffset, src, srcOffset, bytes);
    detail::copySmall(remote + dstOffset, local + srcOffset, bytes);
    return base.signal();
  }

  // putWithSignalAndFlush is put(), signal() and flush() at once.
  MSCCLGO_DEVICE WaitResult putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset,
                                                  uint64_t bytes) const {
    if (!mine(dstOffset, srcOffset, bytes))
      return base.putWithSignalAndFlush(dst, dstOffset, src, srcOffset, bytes);
    detail::copySmall(remote + dstOffset, local + srcOffset, bytes);
    WaitResult result = base.signal();
    return result == WaitResult::Done ? base.flush() : result;
  }

  // wait waits for the peer's signal().
  MSCCLGO_DEVICE WaitResult wait() const { return base.wait(); }

  // poll consumes a signal if one is there.
  MSCCLGO_DEVICE bool poll() const { return base.poll(); }

 private:
  // mine says whether the thread makes a put itself. A copy engine takes some
  // microseconds to begin, in which a thread moves a few KiB. Nothing of the
  // channel may be with the host, to keep the order; and what is out of range goes
  // to the host, which reports it.
  MSCCLGO_DEVICE bool mine(uint64_t dstOffset, uint64_t srcOffset, uint64_t bytes) const {
    if (bytes > direct || dstOffset > remoteSize || bytes > remoteSize - dstOffset || srcOffset > localSize ||
        bytes > localSize - srcOffset)
      return false;
    // Copies that are not aligned alike keep few loads under way.
    uintptr_t both =
        reinterpret_cast<uintptr_t>(remote + dstOffset) | reinterpret_cast<uintptr_t>(local + srcOffset);
    if (both % sizeof(uint4) != 0 && bytes > kUnaligned) return false;
    return !base.outstanding();
  }

  static constexpr uint64_t kUnaligned = 128;
};

}  // namespace mscclgo
