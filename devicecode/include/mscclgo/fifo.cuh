// A ring of triggers in pinned host memory: any number of GPU threads push, the
// host pops and serves.
//
//   PushResult pushed = fifo.push(Trigger::user(200, a, b, c));
//   if (pushed.result == WaitResult::Done) fifo.sync(pushed.position);
//
#pragma once

#include <mscclgo/wait.cuh>

namespace mscclgo {

// Trigger is what a push carries to the host. Package fifo gives it back field
// by field; what they mean is for who serves the ring.
struct Trigger {
  uint64_t a, b, c;
  uint64_t detail;  // the low 52 bits travel
  uint8_t kind;     // not 0; kFirstUserKind and up are the user's

  // user makes a trigger of the user's own, kind 128 to 255.
  MSCCLGO_DEVICE static Trigger user(uint8_t kind, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0,
                                     uint64_t detail = 0) {
    return {a, b, c, detail, kind};
  }
};

// kFirstUserKind is the first of the kinds that the library never uses.
constexpr uint8_t kFirstUserKind = 128;

// PushResult is how a push ended, and where the trigger stands among all.
struct PushResult {
  WaitResult result;
  uint64_t position;  // from 0; for poll and sync
};

// FifoState is the part of a ring in device memory. Each word has a cache line
// of its own.
struct FifoState {
  uint64_t head;  // triggers pushed, and about to be
  uint64_t reserved0[15];
  uint64_t popped;  // what the host was last seen to have popped, or less
  uint64_t reserved1[15];
  uint64_t looking;  // 1 while a thread looks at the host's count
  uint64_t reserved2[15];
};

// FifoHandle is a ring as kernels see it.
//
// An entry is 32 bytes, written by two 16-byte stores, of which PTX keeps only
// each 8-byte word whole. So each word carries a tag, a bit that flips with each
// lap of the ring: the host takes an entry when all four words have the tag of
// the lap, in whatever order they arrive, and need not clear it.
struct FifoHandle {
  uint64_t* entries;     // size times 4 words, pinned
  const uint64_t* tail;  // triggers popped, pinned; the host writes it
  FifoState* state;
  uint64_t size;  // entries, a power of two
  Watch watch;

  // push hands a trigger to the host. Any thread. What the thread wrote and
  // observed before, to any memory, is visible to whoever serves the trigger, be
  // it the host, a copy engine or a NIC (release at system scope). The triggers
  // of one thread are served in the order of its pushes. It waits while the ring
  // is full. When the result is not Done, the group has failed: the trigger is
  // lost, and so is what is pushed behind it.
  MSCCLGO_DEVICE PushResult push(const Trigger& trigger) const { return pushAs<Order::Release>(trigger); }

  // relaxedPush is push without the promise about other memory: for triggers that
  // carry no data of this kernel.
  MSCCLGO_DEVICE PushResult relaxedPush(const Trigger& trigger) const {
    return pushAs<Order::Relaxed>(trigger);
  }

  // poll says whether the host has popped, and so served, the trigger at a
  // position. Any thread; an acquire at system scope; a read across PCIe.
  MSCCLGO_DEVICE bool poll(uint64_t position) const {
    return load<Scope::System, Order::Acquire>(tail) > position;
  }

  // sync waits until the host has popped the trigger at a position. Any thread.
  // On Done, what the host wrote before is visible (acquire at system scope).
  MSCCLGO_DEVICE WaitResult sync(uint64_t position) const {
    return awaitAbove<Order::Acquire>(watch, tail, position);
  }

 private:
  template <Order O>
  MSCCLGO_DEVICE PushResult pushAs(const Trigger& trigger) const {
    uint64_t position = fetchAdd<Scope::Device, Order::Relaxed>(&state->head, 1);
    uint64_t popped = load<Scope::Device, Order::Relaxed>(&state->popped);
    if constexpr (O == Order::Release) fence<Scope::System, Order::Release>();
    if (position - popped >= size) {
      WaitResult room = awaitRoom(*this, position);
      if (room != WaitResult::Done) return {room, position};
    }
    // The host read the entry's last content before it counted up the tail, and
    // these stores depend on that count: no acquire is needed to keep them behind.
    constexpr uint64_t top = uint64_t(1) << 63;
    uint64_t tag = (position & size) != 0 ? 0 : top;
    uint64_t last = uint64_t(trigger.kind) << 55 | trigger.c >> 63 << 54 | trigger.b >> 63 << 53 |
                    trigger.a >> 63 << 52 | (trigger.detail & ((uint64_t(1) << 52) - 1));
    uint64_t* entry = entries + (position & (size - 1)) * 4;
    storeRelaxed16(entry, tag | (trigger.a & ~top), tag | (trigger.b & ~top));
    storeRelaxed16(entry + 2, tag | (trigger.c & ~top), tag | last);
    return {WaitResult::Done, position};
  }

  // awaitRoom waits until the entry of a position is free. The host's count is
  // across PCIe: of the threads that wait, one at a time looks there and tells
  // the others through device memory.
  static __device__ __noinline__ WaitResult awaitRoom(FifoHandle fifo, uint64_t position) {
    FifoState* state = fifo.state;
    return waitUntil(fifo.watch, [&] {
      if (position - load<Scope::Device, Order::Relaxed>(&state->popped) < fifo.size) return true;
      if (load<Scope::Device, Order::Relaxed>(&state->looking) != 0) return false;
      if (atomicExch(reinterpret_cast<unsigned long long*>(&state->looking), 1) != 0) return false;
      uint64_t popped = load<Scope::System, Order::Relaxed>(fifo.tail);
      atomicMax(reinterpret_cast<unsigned long long*>(&state->popped), popped);
      store<Scope::Device, Order::Release>(&state->looking, 0);
      return position - popped < fifo.size;
    });
  }
};

}  // namespace mscclgo
