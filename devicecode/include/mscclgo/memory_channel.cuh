// MemoryChannel: two ranks that map each other's memory, so that threads copy directly
// into the peer's buffer.
//
//   channel.put(0, 0, bytes, threadIdx.x, blockDim.x);
//   __syncthreads();
//   if (threadIdx.x == 0) channel.signal();
//
// and at the peer
//
//   if (threadIdx.x == 0) channel.wait();
//   __syncthreads();
//
#pragma once

#include <mscclgo/channel_set.cuh>
#include <mscclgo/check.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/packet.cuh>
#include <mscclgo/semaphore.cuh>

namespace mscclgo {

// MemoryChannelHandle is one end of a channel. Offsets and sizes are in bytes, of any
// alignment unless said otherwise. Where a call takes `threads`, that many threads make
// it together, and the caller is number `thread` of them; they need not be of one block.
struct MemoryChannelHandle {
  Device2DeviceSemaphoreHandle semaphore;
  uint8_t* remote;       // the peer's buffer, mapped here
  uint8_t* local;        // this rank's buffer
  uint8_t* packets;      // where the peer's packets arrive: this rank's packet memory
  uint64_t remoteSize;   // bytes
  uint64_t localSize;    // bytes
  uint64_t packetsSize;  // bytes

  // put copies from the local buffer to the peer's. The peer may read the data after a
  // wait() for a signal() that comes after the copies of all these threads.
  template <uint32_t Width = 16>
  MSCCLGO_DEVICE void put(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes, uint32_t thread,
                          uint32_t threads, Site site = Site::here()) const {
    checkPeer("put of ", bytes, remoteOffset, " to rank ", site);
    checkLocal("put of ", bytes, localOffset, " from", site);
    detail::Span span(semaphore.watch.trace());
    copy<Width>(remote + remoteOffset, local + localOffset, bytes, thread, threads);
    if (thread == 0) span.end(TraceKind::Put, semaphore.watch, 0, 0, bytes, remoteOffset);
  }

  // get copies from the peer's buffer to the local one. The peer's data must be there: a
  // wait() for its signal() comes first.
  template <uint32_t Width = 16>
  MSCCLGO_DEVICE void get(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes, uint32_t thread,
                          uint32_t threads, Site site = Site::here()) const {
    checkPeer("get of ", bytes, remoteOffset, " from rank ", site);
    checkLocal("get of ", bytes, localOffset, " to", site);
    detail::Span span(semaphore.watch.trace());
    copy<Width>(local + localOffset, remote + remoteOffset, bytes, thread, threads);
    if (thread == 0) span.end(TraceKind::Get, semaphore.watch, 0, 0, bytes, remoteOffset);
  }

  // putPackets writes bytes of the local buffer as packets into the peer's buffer at
  // remoteOffset, a multiple of the packet's size; the buffer itself is aligned as the packet
  // is, to 8, 16 or 128 bytes. No signal is needed: unpackPackets at the peer, with the same
  // flag, waits for the packets.
  template <class Packet = LL16Packet>
  MSCCLGO_DEVICE void putPackets(uint64_t remoteOffset, uint64_t localOffset, uint64_t bytes, uint32_t thread,
                                 uint32_t threads, uint32_t flag, Site site = Site::here()) const {
    checkPackets<Packet>("putPackets", remote, remoteOffset, thread, threads, site);
    checkPeer("putPackets of ", packetBytes<Packet>(bytes), remoteOffset, " to rank ", site);
    checkLocal("putPackets of ", bytes, localOffset, " from", site);
    detail::Span span(semaphore.watch.trace());
    mscclgo::putPackets(reinterpret_cast<Packet*>(remote + remoteOffset), local + localOffset, bytes, thread,
                        threads, flag, site);
    if (thread == 0) span.end(TraceKind::PutPackets, semaphore.watch, 0, flag, bytes, remoteOffset);
  }

  // unpackPackets waits for packets in this rank's packet memory at packetOffset, a multiple of the
  // packet's size, and stores their data in the local buffer. The packet memory is aligned as the
  // packet is, to 8, 16 or 128 bytes. The result is of the caller's own packets.
  template <class Packet = LL16Packet>
  MSCCLGO_DEVICE WaitResult unpackPackets(uint64_t packetOffset, uint64_t localOffset, uint64_t bytes,
                                          uint32_t thread, uint32_t threads, uint32_t flag,
                                          Site site = Site::here()) const {
    checkPackets<Packet>("unpackPackets", packets, packetOffset, thread, threads, site);
    check("unpackPackets of ", packetBytes<Packet>(bytes), packetOffset, packetsSize,
          " of this rank's packet memory, which has ", site);
    checkLocal("unpackPackets of ", bytes, localOffset, " to", site);
    detail::Span span(semaphore.watch.trace());
    WaitResult result =
        mscclgo::unpackPackets(local + localOffset, reinterpret_cast<const Packet*>(packets + packetOffset),
                               bytes, thread, threads, flag, semaphore.watch, site);
    if (thread == 0)
      span.end(TraceKind::WaitPackets, semaphore.watch, uint32_t(result), flag, bytes, packetOffset);
    return result;
  }

  // read returns element `index` of the peer's buffer as an array of T. Any thread may
  // call it. The access is weak.
  template <class T>
  MSCCLGO_DEVICE T read(uint64_t index, Site site = Site::here()) const {
    checkElement("read of ", index, sizeof(T), site);
    return reinterpret_cast<const T*>(remote)[index];
  }

  // write sets element `index` of the peer's buffer as an array of T. Any thread may call
  // it. The access is weak.
  template <class T>
  MSCCLGO_DEVICE void write(uint64_t index, T value, Site site = Site::here()) const {
    checkElement("write of ", index, sizeof(T), site);
    reinterpret_cast<T*>(remote)[index] = value;
  }

  // signal ends a wait() of the peer's. One thread calls it. It releases at system scope;
  // see Device2DeviceSemaphoreHandle.
  MSCCLGO_DEVICE void signal() const { semaphore.signal(); }

  // relaxedSignal is signal() without the memory ordering.
  MSCCLGO_DEVICE void relaxedSignal() const { semaphore.relaxedSignal(); }

  // wait waits for the peer's signal(). One thread calls it. It acquires at system scope.
  MSCCLGO_DEVICE WaitResult wait() const { return semaphore.wait(); }

  // relaxedWait is wait() without the memory ordering.
  MSCCLGO_DEVICE WaitResult relaxedWait() const { return semaphore.relaxedWait(); }

  // poll consumes a signal if there is one, and reports whether it did. One thread calls
  // it. It acquires at system scope.
  MSCCLGO_DEVICE bool poll() const { return semaphore.poll(); }

 private:
  // The checks end the kernel at an access outside a buffer, and at packets at a wrong alignment.
  // They do nothing where MSCCLGO_CHECK is not defined (check.cuh).
#if defined(MSCCLGO_CHECK)
  MSCCLGO_DEVICE void checkPeer(const char* what, uint64_t bytes, uint64_t offset, const char* way,
                                Site site) const {
    if (!outside(offset, bytes, remoteSize)) return;
    detail::fault(semaphore.watch, semaphore.watch.peer, site, what, bytes, " bytes at ", offset, way,
                  semaphore.watch.peer, ", whose buffer has ", remoteSize);
  }
  MSCCLGO_DEVICE void checkLocal(const char* what, uint64_t bytes, uint64_t offset, const char* way,
                                 Site site) const {
    if (!outside(offset, bytes, localSize)) return;
    detail::fault(semaphore.watch, semaphore.watch.peer, site, what, bytes, " bytes", way,
                  " this rank's buffer at ", offset, ", which has ", localSize);
  }
  MSCCLGO_DEVICE void check(const char* what, uint64_t bytes, uint64_t offset, uint64_t size,
                            const char* where, Site site) const {
    if (!outside(offset, bytes, size)) return;
    detail::fault(semaphore.watch, semaphore.watch.peer, site, what, bytes, " bytes at ", offset, where,
                  size);
  }
  MSCCLGO_DEVICE void checkElement(const char* what, uint64_t index, uint64_t bytes, Site site) const {
    if (index < remoteSize / bytes) return;
    detail::fault(semaphore.watch, semaphore.watch.peer, site, what, "element ", index, " of ", bytes,
                  " bytes, and the buffer of rank ", semaphore.watch.peer, " has ", remoteSize, " bytes");
  }
  template <class Packet>
  MSCCLGO_DEVICE void checkPackets(const char* what, const uint8_t* base, uint64_t offset, uint32_t thread,
                                   uint32_t threads, Site site) const {
    if (offset % sizeof(Packet) != 0)
      detail::fault(semaphore.watch, semaphore.watch.peer, site, what, " at ", offset,
                    ", which is not a multiple of the packet's ", uint64_t(sizeof(Packet)), " bytes");
    // A packet over two lines of memory may be seen in part.
    if (reinterpret_cast<uintptr_t>(base) % alignof(Packet) != 0)
      detail::fault(semaphore.watch, semaphore.watch.peer, site, what, ": the memory of the packets begins ",
                    uint64_t(reinterpret_cast<uintptr_t>(base) % alignof(Packet)),
                    " bytes past an alignment of ", uint64_t(alignof(Packet)), " bytes, which they need");
    checkWarps<Packet>(semaphore.watch, what, thread, threads, site);
  }
  MSCCLGO_DEVICE static bool outside(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset > size || bytes > size - offset;
  }
#else
  MSCCLGO_DEVICE void checkPeer(const char*, uint64_t, uint64_t, const char*, Site) const {}
  MSCCLGO_DEVICE void checkLocal(const char*, uint64_t, uint64_t, const char*, Site) const {}
  MSCCLGO_DEVICE void check(const char*, uint64_t, uint64_t, uint64_t, const char*, Site) const {}
  MSCCLGO_DEVICE void checkElement(const char*, uint64_t, uint64_t, Site) const {}
  template <class Packet>
  MSCCLGO_DEVICE void checkPackets(const char*, const uint8_t*, uint64_t, uint32_t, uint32_t, Site) const {}
#endif
};

// MemoryChannelSet is one rank's memory channels to its peers, passed by value; see channel_set.cuh.
struct MemoryChannelSet {
  const MemoryChannelHandle* handles;  // channel i to peer j is handles[i * size + j]
  uint32_t rank;                       // the index of this rank among the peers, or size if it is not one
  uint32_t size;                       // peers
  uint32_t perPeer;                    // channels to each
  uint32_t reserved;
  Watch watch;

  // to returns a channel to a peer. Blocks with channels of their own take the one of their number,
  // below perPeer. With checks, an index outside the set ends the kernel (check.cuh). Any thread
  // may call it.
  MSCCLGO_DEVICE auto to(uint32_t peer, uint32_t channel = 0, Site site = Site::here()) const
      -> const MemoryChannelHandle& {
    return detail::channelOf(*this, peer, channel, site);
  }
};

}  // namespace mscclgo
