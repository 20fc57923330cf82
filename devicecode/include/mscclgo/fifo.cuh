// A ring of triggers in pinned host memory: any number of GPU threads push, and the host
// pops and serves.
//
//   PushResult pushed = fifo.push(Trigger::user(200, a, b, c));
//   if (pushed.result == WaitResult::Done) fifo.sync(pushed.position);
//
#pragma once

#include <mscclgo/copy.cuh>
#include <mscclgo/wait.cuh>

namespace mscclgo {

// Trigger is what a push passes to the host. Package fifo returns it field by field. The server of
// the ring decides what the fields mean.
struct Trigger {
  uint64_t a, b, c;
  uint64_t detail;  // the low 52 bits travel
  uint8_t kind;     // not 0; from kFirstUserKind on for users

  // user returns a trigger of a kind for users, 128 to 255.
  MSCCLGO_DEVICE static Trigger user(uint8_t kind, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0,
                                     uint64_t detail = 0) {
    return {a, b, c, detail, kind};
  }
};

// kFirstUserKind is the first of the kinds that the library never uses.
constexpr uint8_t kFirstUserKind = 128;

// PushResult is how a push ended, and the trigger's position among all.
struct PushResult {
  WaitResult result;
  uint64_t position;  // from 0; for poll and sync
};

// FifoState is the part of a ring in device memory. Each word has its own cache line.
struct FifoState {
  uint64_t head;  // triggers pushed, and about to be
  uint64_t reserved0[15];
  uint64_t popped;  // the host's count of pops when last read, or less
  uint64_t reserved1[15];
  uint64_t looking;  // 1 while a thread looks at the host's count
  uint64_t reserved2[15];
};

namespace detail {

// fillPayload stores n bytes, at least 1, to 16-byte words from dst on, each at the place in its
// word that it has at src. It reads only these bytes; the rest of the words it stores means
// nothing. It has 16 loads under way at a time. It is not inlined, because of its registers.
inline __device__ __noinline__ void fillPayload(uint4* dst, const uint8_t* src, uint64_t n) {
  constexpr int32_t kLoads = 16;
  constexpr uint32_t kWord = sizeof(uint4);
  uint32_t before = uint32_t(reinterpret_cast<uintptr_t>(src) % kWord);
  const uint4* from = reinterpret_cast<const uint4*>(src - before);
  uint32_t end = before + uint32_t(n), first = before != 0 ? 1 : 0, last = end / kWord;  // the whole words
  if (before != 0) {
    uint64_t part = n < kWord - before ? n : kWord - before;
    dst[0] = shifted(make_uint4(0, 0, 0, 0), loadPartial<uint4>(src, part), kWord - before);
  }
  if (end % kWord != 0 && last >= first) dst[last] = loadPartial<uint4>(from + last, end % kWord);
  from += first, dst += first;
#pragma unroll 1
  for (int32_t left = int32_t(last - first); left > 0; left -= kLoads, from += kLoads, dst += kLoads) {
    uint4 v[kLoads];
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i)
      if (i < left) v[i] = from[i];
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i)
      if (i < left) dst[i] = v[i];
  }
}

// Room is the threads' view of a queue that the host empties.
struct Room {
  const uint64_t* taken;  // how many the host has taken, pinned
  uint64_t* seen;         // `taken` when last read, or less
  uint64_t* looking;      // 1 while a thread reads taken
  uint64_t size;          // how many may be in the queue
};

// awaitRoom waits until number `position` may be added. The host's count is across PCIe: of the
// threads that wait, one at a time reads it, and copies it to device memory for the others. Later
// threads may have been quicker, so the count may be above `position`. Its loads are relaxed: the
// caller reads nothing next that the host wrote, and its stores depend on the end of the wait.
inline __device__ __noinline__ WaitResult awaitRoom(Watch watch, Room room, uint64_t position) {
  return waitUntil(watch, [&] {
    if (int64_t(position - load<Scope::Device, Order::Relaxed>(room.seen)) < int64_t(room.size)) return true;
    if (load<Scope::Device, Order::Relaxed>(room.looking) != 0) return false;
    if (atomicExch(reinterpret_cast<unsigned long long*>(room.looking), 1) != 0) return false;
    uint64_t taken = load<Scope::System, Order::Relaxed>(room.taken);
    atomicMax(reinterpret_cast<unsigned long long*>(room.seen), taken);
    store<Scope::Device, Order::Release>(room.looking, 0);
    return int64_t(position - taken) < int64_t(room.size);
  });
}

}  // namespace detail

// FifoHandle is a ring as kernels see it.
//
// An entry is 32 bytes, written by two 16-byte stores; PTX keeps only each 8-byte word whole. So
// each word has a tag, a bit that flips with each lap of the ring. The host takes an entry when all
// four words have the tag of the lap, in whatever order they arrive, and does not clear it.
//
// A ring may have room for a payload with each entry: bytes that the host then need not
// fetch from the device.
struct FifoHandle {
  uint64_t* entries;     // size times 4 words, pinned
  const uint64_t* tail;  // triggers popped, pinned; the host writes it
  FifoState* state;
  uint64_t size;          // entries, a power of two
  uint8_t* payloads;      // size times payloadBytes bytes, pinned, or null
  uint64_t payloadBytes;  // of an entry, a multiple of 128
  Watch watch;

  // push passes a trigger to the host. Any thread may call it. What the thread wrote and observed
  // before, in any memory, is visible to the server of the trigger: the host, a copy engine or a
  // NIC (release at system scope). The triggers of one thread are served in the order of its
  // pushes. It waits while the ring is full. When the result is not Done, the group has failed, and
  // this trigger and later ones are lost.
  MSCCLGO_DEVICE PushResult push(const Trigger& trigger) const { return pushAs<Order::Release>(trigger); }

  // relaxedPush is push() without the memory ordering: for triggers that concern no data
  // of this kernel.
  MSCCLGO_DEVICE PushResult relaxedPush(const Trigger& trigger) const {
    return pushAs<Order::Relaxed>(trigger);
  }

  // pushWith is push() with n bytes at src, which go to the host with the trigger: at
  // least 1, and at most as many as the ring has room for. They may be overwritten once it
  // returns. It sets the trigger's b to where the bytes begin in the entry's payload, and
  // c to n.
  MSCCLGO_DEVICE PushResult pushWith(Trigger trigger, const void* src, uint64_t n) const {
    detail::Span span(watch.trace());
    PushResult slot = reserve([] {});
    if (slot.result != WaitResult::Done) return slot;
    uint8_t* payload = payloads + (slot.position & (size - 1)) * payloadBytes;
    detail::fillPayload(reinterpret_cast<uint4*>(payload), static_cast<const uint8_t*>(src), n);
    trigger.b = reinterpret_cast<uintptr_t>(src) % sizeof(uint4);
    trigger.c = n;
    fence<Scope::System, Order::Release>();
    write(slot.position, trigger);
    pushed(span, slot.position, trigger);
    return slot;
  }

  // poll reports whether the host has popped, and so served, the trigger at a position.
  // Any thread may call it. It acquires at system scope, and reads across PCIe.
  MSCCLGO_DEVICE bool poll(uint64_t position) const {
    return load<Scope::System, Order::Acquire>(tail MSCCLGO_AWAITED(position + 1)) > position;
  }

  // sync waits until the host has popped the trigger at a position. Any thread may call
  // it. On Done, what the host wrote before is visible (acquire at system scope).
  MSCCLGO_DEVICE WaitResult sync(uint64_t position) const {
    detail::Span span(watch.trace());
    WaitResult result = awaitAbove<Order::Acquire>(watch, tail, position);
    span.end(TraceKind::AwaitTrigger, watch, uint32_t(result), position, 0,
             reinterpret_cast<uintptr_t>(entries));
    return result;
  }

 private:
  // pushAs is push() with an order.
  template <Order O>
  MSCCLGO_DEVICE PushResult pushAs(const Trigger& trigger) const {
    detail::Span span(watch.trace());
    PushResult slot = reserve([] {
      if constexpr (O == Order::Release) fence<Scope::System, Order::Release>();
    });
    if (slot.result == WaitResult::Done) {
      write(slot.position, trigger);
      pushed(span, slot.position, trigger);
    }
    return slot;
  }

  // pushed writes a push to the timeline, with the trigger's detail as the channel: a port's number
  // in the service.
  MSCCLGO_DEVICE void pushed(const detail::Span& span, uint64_t position, const Trigger& trigger) const {
#if defined(MSCCLGO_TRACE)
    Watch port = watch;
    port.channel = uint32_t(trigger.detail);
    span.end(TraceKind::Push, port, trigger.kind, position, trigger.c, reinterpret_cast<uintptr_t>(entries));
#else
    (void)span, (void)position, (void)trigger;
#endif
  }

  // reserve takes the next position and waits until its entry is free. meanwhile() is
  // called while the accesses to memory are under way.
  template <class Meanwhile>
  MSCCLGO_DEVICE PushResult reserve(Meanwhile meanwhile) const {
    uint64_t position = fetchAdd<Scope::Device, Order::Relaxed>(&state->head, 1);
    uint64_t popped = load<Scope::Device, Order::Relaxed>(&state->popped);
    meanwhile();
    if (position - popped < size) return {WaitResult::Done, position};
    return {detail::awaitRoom(watch, detail::Room{tail, &state->popped, &state->looking, size}, position),
            position};
  }

  // write stores a trigger in the entry of a position. The host has read what was there
  // before it advanced the tail, and all stores after reserve() depend on the tail, so no
  // acquire is needed to keep them after it.
  MSCCLGO_DEVICE void write(uint64_t position, const Trigger& trigger) const {
    constexpr uint64_t top = uint64_t(1) << 63;
    uint64_t tag = (position & size) != 0 ? 0 : top;
    uint64_t last = uint64_t(trigger.kind) << 55 | trigger.c >> 63 << 54 | trigger.b >> 63 << 53 |
                    trigger.a >> 63 << 52 | (trigger.detail & ((uint64_t(1) << 52) - 1));
    uint64_t* entry = entries + (position & (size - 1)) * 4;
    storeRelaxed16(entry, tag | (trigger.a & ~top), tag | (trigger.b & ~top));
    storeRelaxed16(entry + 2, tag | (trigger.c & ~top), tag | last);
  }
};

}  // namespace mscclgo
