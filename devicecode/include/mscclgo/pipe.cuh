// Pipe: a one-way stream of messages from one rank to another. Messages are cut into chunks, which
// go through a ring of slots; the sender is at most as many chunks ahead as there are slots.
// Threads move the bytes if the receiver's memory is mapped; otherwise the hosts do, by port.
// Kernels are the same.
//
//   pipes.to(next).send(data, bytes);
//
// and at the peer
//
//   pipes.from(previous).recv(data, bytes);
//
#pragma once

#include <mscclgo/channel_set.cuh>
#include <mscclgo/check.cuh>
#include <mscclgo/copy.cuh>
#include <mscclgo/pipe_pool.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/reduce.cuh>
#include <mscclgo/semaphore.cuh>
#include <mscclgo/threads.cuh>

namespace mscclgo {

// kMaxPipeLot is how many slots of a lot a message borrows at most.
constexpr uint32_t kMaxPipeLot = 16;

// kPipeLot goes with the offset of a lot in a post.
constexpr uint64_t kPipeLot = uint64_t(1) << 63;

// PipeControl begins each end's memory. Two words for each slot follow (for 2 * kMaxPipeLot slots
// if messages borrow). With checks they have the slot's chunk and the length of its message. The
// slots, if the end has any, come last, at a multiple of 128 bytes.
struct PipeControl {
  // Where the receiver wants a message, its bytes, and the number of its first chunk. The peer
  // writes it. The place is 0 for the pipe's slots, 1 more than an offset in the buffer, or
  // kPipeLot and the offset of a lot.
  uint64_t post[3];
  uint64_t reserved;
  uint64_t posting[3];  // at the receiving end: the post that it made last
  uint64_t posted;      // at the receiving end: 1 from post() until the message is received
  uint64_t answers;     // at the sending end: signals of the receiver, up to its last message
  uint64_t chunks;      // sent or received
  uint64_t lent;        // at the sending end: the receiver's lot for the message, or 0
  uint64_t lot;         // at a sending end by port: its own lot for the message, or 0
  uint64_t reserved2[4];
};

// The properties of a pipe's end: any sum of these.
enum PipeFlag : uint32_t {
  kPipeSends = 1,      // the sending end
  kPipeByPort = 2,     // the hosts move the bytes
  kPipePosts = 4,      // the receiver posts each message, as it has a buffer that the sender may write
  kPipeBorrows = 8,    // messages of more than slotCount chunks borrow slots of the receiver's pool
  kPipeUnopened = 16,  // the host has not connected the pipe yet
};

namespace detail {
template <bool kPlain>
class PipeIn;
template <bool kPlain>
class PipeOut;
}  // namespace detail

// PipeHandle is one end of a pipe. The threads of a block or of a warp (Threads: BlockThreads or
// WarpThreads) make a call together, with the same arguments; one call at a time is made at an end.
// Calls of later kernels, and of other threads after a barrier, go on where the last call ended.
//
// Messages are received in the order of their sends, by calls of the same length; a length of 0 is
// a message too. With checks, another length ends the kernel (check.cuh). Elements are aligned to
// their size; bytes have any alignment.
//
// When a call returns Done, all of its threads may read the data received, and overwrite the data
// sent. Otherwise a wait for the peer has failed, and the pipe is of no further use.
//
// The calls are not inlined, as kernels make several. Because of their registers, kernels
// with more than 256 threads in a block need __launch_bounds__.
//
// A call waits for the peer's call, but a pipe holds up to slotCount chunks of slotBytes. So ranks
// in a ring may all send before they receive, slotCount - 1 chunks at a time.
//
// A receiving end with a buffer (kPipePosts) posts where it wants each message: in the buffer
// itself, if recv() or recvCopySend() is called for a place there, or through slots. The sender
// waits for the post. So ranks in a ring call post() before they send, and do not pass messages on
// by recvCopySend() and the like: pipes without a buffer do that.
//
// Ends that share a pool (kPipeBorrows) have few slots of their own. To receive a longer message, a
// call borrows a lot of lotSlots slots, and gives it back at its end. Over ports the sender does so
// too. If all lots are lent, the message goes through the pipe's own slots, so nobody waits for a
// lot.
//
// An end that the host has not connected yet (kPipeUnopened) is of no use: calls wait until the
// deadline for a signal. With checks they end the kernel.
struct PipeHandle {
  Device2DeviceSemaphoreHandle semaphore;  // chunks to the receiver, and back; over ports for waits alone
  PortChannelHandle port;                  // over ports, between the memories with the ends
  PipeControl* control;                    // this end's
  PipeControl* peerControl;                // the peer's, mapped here, or null over ports
  uint8_t* slots;                          // the receiver's; over ports this end's
  uint8_t* buffer;         // the receiver's buffer for posted messages, or null if it is not mapped
  const uint8_t* source;   // over ports, this rank's memory from which the host sends, or null
  uint64_t bufferSize;     // bytes
  uint64_t sourceSize;     // bytes
  uint64_t slotBytes;      // a multiple of 128
  uint64_t controlOffset;  // of this end in its memory, bytes
  uint64_t peerOffset;     // of the peer's end in its memory, bytes
  PipePool* pool;          // of this rank, at the beginning of this end's memory, or null
  uint32_t slotCount;      // a power of two
  uint32_t flags;          // PipeFlag
  uint32_t bufferNumber;   // in the service
  uint32_t sourceNumber;   // in the service
  uint32_t lotSlots;       // of a lot, a power of two of at least slotCount; 0 for none
  uint32_t reserved;

  // send sends bytes.
  template <class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult send(const void* src, uint64_t bytes, Site site = Site::here()) const {
    return isPlain(bytes) ? sendBy<true, Threads>(src, bytes, site)
                          : sendBy<false, Threads>(src, bytes, site);
  }

  // recv receives bytes.
  template <class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult recv(void* dst, uint64_t bytes, Site site = Site::here()) const {
    return isPlain(bytes) ? recvBy<true, Threads>(dst, bytes, site)
                          : recvBy<false, Threads>(dst, bytes, site);
  }

  // recvCopySend receives bytes, and sends them on by `out`, chunk by chunk. As in the calls
  // below, both pipes have slots of one size.
  template <class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult recvCopySend(const PipeHandle& out, void* dst, uint64_t bytes,
                                         Site site = Site::here()) const {
    return arePlain(out, bytes) ? recvCopySendBy<true, Threads>(out, dst, bytes, site)
                                : recvCopySendBy<false, Threads>(out, dst, bytes, site);
  }

  // A reduction by pipes begins with sendToReduce() at one rank, goes on with recvReduceSend() at
  // others, and ends with recvReduce() or recvReduceCopySend(). Op and the element T are of
  // reduce.cuh; count is of elements. Partial results travel in the form of Reducer::Unfinished,
  // which may be larger than elements.

  // sendToReduce sends elements for a reduction.
  template <class T, class Op, class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult sendToReduce(const T* src, uint64_t count, Site site = Site::here()) const;

  // recvReduceSend reduces what it receives with elements of this rank, and sends the
  // partial result on.
  template <class T, class Op, class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult recvReduceSend(const PipeHandle& out, const T* src, uint64_t count,
                                           Site site = Site::here()) const;

  // recvReduce reduces what it receives with elements of this rank, and stores the result of the
  // elements of `ranks` ranks. dst may be src.
  template <class T, class Op, class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult recvReduce(T* dst, const T* src, uint64_t count, uint32_t ranks,
                                       Site site = Site::here()) const;

  // recvReduceCopySend is recvReduce(), and sends the result on, for a recv() or recvCopySend().
  template <class T, class Op, class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult recvReduceCopySend(const PipeHandle& out, T* dst, const T* src, uint64_t count,
                                               uint32_t ranks, Site site = Site::here()) const;

  // post lets the sender know where the next message is wanted, before the call that receives it.
  // That call has the same dst and bytes. If it reduces, dst is null, and bytes is how many travel
  // (pipeBytes). Without kPipePosts post does nothing.
  template <class Threads = BlockThreads>
  MSCCLGO_DEVICE WaitResult post(const void* dst, uint64_t bytes, Site site = Site::here()) const;

  // is reports whether the end has the property. Any thread may call it.
  MSCCLGO_DEVICE bool is(PipeFlag flag) const { return (flags & flag) != 0; }

 private:
  template <bool kPlain>
  friend class detail::PipeIn;
  template <bool kPlain>
  friend class detail::PipeOut;

  // isPlain reports whether a message only goes through slots in mapped memory; arePlain is for a
  // message that is sent on. Each call has a form of its own for plain messages: the other form
  // takes many registers, and a call that is not inlined saves and restores them in every thread.
  MSCCLGO_DEVICE bool isPlain(uint64_t bytes) const {
    return !is(kPipeByPort) && !is(kPipePosts) && !borrows(bytes);
  }
  MSCCLGO_DEVICE bool arePlain(const PipeHandle& out, uint64_t bytes) const {
    return isPlain(bytes) && out.isPlain(bytes);
  }

  template <bool kPlain, class Threads>
  __device__ __noinline__ WaitResult sendBy(const void* src, uint64_t bytes, Site site) const;
  template <bool kPlain, class Threads>
  __device__ __noinline__ WaitResult recvBy(void* dst, uint64_t bytes, Site site) const;
  template <bool kPlain, class Threads>
  __device__ __noinline__ WaitResult recvCopySendBy(const PipeHandle& out, void* dst, uint64_t bytes,
                                                    Site site) const;
  template <bool kPlain, class T, class Op, class Threads>
  __device__ __noinline__ WaitResult sendToReduceBy(const T* src, uint64_t count, Site site) const;
  template <bool kPlain, class T, class Op, class Threads>
  __device__ __noinline__ WaitResult recvReduceSendBy(const PipeHandle& out, const T* src, uint64_t count,
                                                      Site site) const;
  template <bool kPlain, class T, class Op, class Threads>
  __device__ __noinline__ WaitResult recvReduceBy(T* dst, const T* src, uint64_t count, uint32_t ranks,
                                                  Site site) const;
  template <bool kPlain, class T, class Op, class Threads>
  __device__ __noinline__ WaitResult recvReduceCopySendBy(const PipeHandle& out, T* dst, const T* src,
                                                          uint64_t count, uint32_t ranks, Site site) const;

  // Signals are the peer's signals so far: over ports its host's, and its kernels'.
  struct Signals {
    uint64_t first, second;

    // reach reports whether there are that many. The counts may wrap around.
    MSCCLGO_DEVICE bool reach(uint64_t signals) const { return int64_t(first + second - signals) >= 0; }
  };

  // seen reads the signals so far. One thread calls it; it orders nothing.
  MSCCLGO_DEVICE Signals seen() const {
    Signals s;
    loadRelaxed16(semaphore.inbound, s.first, s.second);
    return s;
  }

  // await waits until the peer has signalled that often in all; s has the signals seen before. One
  // thread calls it, and an acquiring fence at system scope follows.
  MSCCLGO_DEVICE WaitResult await(uint64_t signals, Signals& s) const {
    detail::Span span(semaphore.watch.trace());
    WaitResult result = WaitResult::Done;
    if (!s.reach(signals))
      result = waitUntil(
          semaphore.watch, [&] { return (s = seen()).reach(signals); }, signals);
    span.end(is(kPipeByPort) ? TraceKind::PortWait : TraceKind::Wait, semaphore.watch, uint32_t(result),
             signals, is(kPipeByPort) ? s.first : 0, is(kPipeByPort) ? s.second : 0);
    return result;
  }

  __device__ __noinline__ WaitResult portSignal() const { return port.signal(); }

  // tell is post() by one thread. It is not inlined, because of its registers.
  __device__ __noinline__ WaitResult tell(const void* dst, uint64_t bytes, Site site) const {
    uint64_t where = within(buffer, bufferSize, dst, bytes) ? 1 + (address(dst) - address(buffer)) : 0;
    if (control->posted != 0) {
#if defined(MSCCLGO_CHECK)
      if ((isLot(control->posting[0]) ? 0 : control->posting[0]) != where || control->posting[1] != bytes)
        detail::fault(semaphore.watch, semaphore.watch.peer, site, "receive of ", bytes, " bytes from rank ",
                      semaphore.watch.peer, " by a pipe, to another place than was posted, for ",
                      control->posting[1]);
#endif
      return WaitResult::Done;
    }
    if (where == 0 && borrows(bytes)) {
      const uint64_t lot = pool->borrow();
      if (lot != 0) where = kPipeLot | lot;
    }
    control->posting[0] = where, control->posting[1] = bytes, control->posting[2] = control->chunks;
    control->posted = 1;
    if (is(kPipeByPort))
      return port.putWithSignal(peerOffset + offsetOf(control->post),
                                controlOffset + offsetOf(control->posting), sizeof(control->post));
    peerControl->post[0] = where, peerControl->post[1] = bytes, peerControl->post[2] = control->chunks;
    semaphore.signal();
    return WaitResult::Done;
  }

  // Chunk is a chunk for the port to move.
  struct Chunk {
    uint64_t first, index, bytes, messageBytes;  // the number of the message's first chunk; this one in it
    uint64_t place, source;                      // of the message, as in PipeOut
    bool direct, lent, fetched, staged;
  };

  // putChunk has the port move a chunk, and signals it. It is not inlined, because of its registers.
  __device__ __noinline__ WaitResult putChunk(Chunk c) const {
    WaitResult result = announce(c.first + c.index, c.messageBytes);
    if (result != WaitResult::Done) return result;
    if (c.bytes == 0) return port.signal();
    const uint64_t at = c.index * slotBytes, slotAt = offsetOf(slot(c.first + c.index));
    const bool last = at + c.bytes == c.messageBytes;
    const uint64_t dst = c.direct ? c.place + at : c.lent ? inLot(c.place, c.index) : peerOffset + slotAt;
    const uint64_t src = c.fetched  ? c.source + at
                         : c.staged ? inLot(control->lot, c.index)
                                    : controlOffset + slotAt;
    if (c.direct || c.fetched) {
      const uint32_t to = c.direct ? bufferNumber : port.dst, from = c.fetched ? sourceNumber : port.src;
      return c.fetched && last  // the source may change when the call returns
                 ? port.base.putWithSignalAndFlush(to, dst, from, src, c.bytes)
                 : port.base.putWithSignal(to, dst, from, src, c.bytes);
    }
    if (!c.staged || !last) return port.putWithSignal(dst, src, c.bytes);
    result = port.putWithSignalAndFlush(dst, src, c.bytes);
    if (result == WaitResult::Done) pool->giveBack(control->lot), control->lot = 0;
    return result;
  }

  // awaitPlace waits until chunk `index` of a posted message of so many bytes has a place. Before
  // the message, the receiver has sent `answers` signals. It is not inlined, because of its
  // registers.
  __device__ __noinline__ WaitResult awaitPlace(uint64_t index, uint64_t bytes, uint64_t answers,
                                                bool fetched, Site site) const {
    const bool leaves = index == slotCount && borrows(bytes);
    Signals s = seen();
    if (index == 0 || leaves) {
      WaitResult result = await(answers + 1, s);
      if (result != WaitResult::Done) return result;
      fence<Scope::System, Order::Acquire>();  // what the post says
      const bool asked = isPosted(control->chunks, bytes);
      if (control->post[2] == control->chunks) checkLength(control->post[1], bytes, site);
      if (leaves) control->lent = asked && isLot(control->post[0]) ? control->post[0] : 0;
      if (leaves && is(kPipeByPort) && !fetched) control->lot = control->lent != 0 ? pool->borrow() : 0;
    }
    // It waits until the chunk that was in its place before has left. The first chunks in a lot
    // find it empty.
    const bool lots =
        index >= slotCount && control->lent != 0 && (!is(kPipeByPort) || fetched || control->lot != 0);
    const uint64_t window = lots ? lotSlots : slotCount;
    return index < window + (lots ? slotCount : 0) ? WaitResult::Done
                                                   : await(answers + 1 + index + 1 - window, s);
  }

  // slot returns the slot of a chunk.
  MSCCLGO_DEVICE uint8_t* slot(uint64_t chunk) const { return slots + (chunk & (slotCount - 1)) * slotBytes; }

  // borrows reports whether a message borrows a lot, unless it goes directly to its place.
  MSCCLGO_DEVICE bool borrows(uint64_t bytes) const {
    return is(kPipeBorrows) && bytes > slotCount * slotBytes;
  }

  // mine and theirs return the address at an offset of the memory with this end, and with the
  // peer's end.
  MSCCLGO_DEVICE uint8_t* mine(uint64_t offset) const {
    return reinterpret_cast<uint8_t*>(control) - controlOffset + offset;
  }
  MSCCLGO_DEVICE uint8_t* theirs(uint64_t offset) const {
    return reinterpret_cast<uint8_t*>(peerControl) - peerOffset + offset;
  }

  // isPosted reports whether the post is for the message that begins with a chunk and has so many
  // bytes. If the ranks' calls do not match, it may be another message's, and its place may be in
  // use.
  MSCCLGO_DEVICE bool isPosted(uint64_t first, uint64_t bytes) const {
    return control->post[2] == first && control->post[1] == bytes;
  }

  // isLot reports whether the place in a post is a lot.
  MSCCLGO_DEVICE static bool isLot(uint64_t where) { return (where & kPipeLot) != 0; }

  // inLot returns the offset of chunk i of a message with a lot. The first chunks, as many as the
  // pipe has slots, are in the slots.
  MSCCLGO_DEVICE uint64_t inLot(uint64_t lot, uint64_t i) const {
    return (lot & ~kPipeLot) + ((i - slotCount) & (lotSlots - 1)) * slotBytes;
  }

  // offsetOf returns an object's offset in this end's memory, which is its offset in the peer's
  // too.
  MSCCLGO_DEVICE uint64_t offsetOf(const void* at) const { return address(at) - address(control); }

  MSCCLGO_DEVICE static uint64_t address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

  // within reports whether a range lies in a buffer, which may be null.
  MSCCLGO_DEVICE static bool within(const uint8_t* buffer, uint64_t size, const void* at, uint64_t bytes) {
    uint64_t offset = address(at) - address(buffer);
    return buffer != nullptr && offset <= size && bytes <= size - offset;
  }

  // The checks end the kernel if an end is used for the wrong direction, or the ends differ in a
  // message's length (check.cuh). The sender announces each chunk with the length of its message,
  // and the receiver compares.
#if defined(MSCCLGO_CHECK)
  MSCCLGO_DEVICE void checkEnd(bool sends, uint64_t chunkBytes, Site site) const {
    if (is(kPipeUnopened))
      detail::fault(semaphore.watch, semaphore.watch.peer, site,
                    sends ? "send to rank " : "receive from rank ", semaphore.watch.peer,
                    " by a pipe that is not open: the host opens it before the launch");
    if (is(kPipeSends) != sends)
      detail::fault(
          semaphore.watch, semaphore.watch.peer, site, sends ? "send" : "receive",
          sends ? " by the receiving end of a pipe from rank " : " by the sending end of a pipe to rank ",
          semaphore.watch.peer);
    if (slotBytes != chunkBytes)
      detail::fault(semaphore.watch, semaphore.watch.peer, site, "a message goes on by a pipe to rank ",
                    semaphore.watch.peer, " with slots of ", slotBytes, " bytes, from one with slots of ",
                    chunkBytes);
  }
  MSCCLGO_DEVICE WaitResult announce(uint64_t chunk, uint64_t bytes) const {
    uint64_t* words = announcement(control, chunk);
    if (!is(kPipeByPort)) {
      storeRelaxed16(announcement(peerControl, chunk), chunk + 1, bytes);
      return WaitResult::Done;
    }
    storeRelaxed16(words, chunk + 1, bytes);
    return port.put(peerOffset + offsetOf(words), controlOffset + offsetOf(words), 2 * sizeof(uint64_t));
  }
  MSCCLGO_DEVICE void checkAnnounced(uint64_t chunk, uint64_t bytes, Site site) const {
    uint64_t number, sent;
    loadRelaxed16(announcement(control, chunk), number, sent);
    if (number == chunk + 1) checkLength(sent, bytes, site);  // otherwise the sender has no checks
  }
  MSCCLGO_DEVICE void checkLength(uint64_t theirs, uint64_t bytes, Site site) const {
    if (theirs == bytes) return;
    bool sends = is(kPipeSends);
    detail::fault(semaphore.watch, semaphore.watch.peer, site, sends ? "send of " : "receive of ", bytes,
                  sends ? " bytes to rank " : " bytes from rank ", semaphore.watch.peer,
                  " by a pipe, and rank ", semaphore.watch.peer, sends ? " receives " : " sends ", theirs);
  }
  MSCCLGO_DEVICE uint64_t* announcement(PipeControl* end, uint64_t chunk) const {
    const uint32_t words = is(kPipeBorrows) ? 2 * kMaxPipeLot : slotCount;
    return reinterpret_cast<uint64_t*>(end + 1) + 2 * (chunk & (words - 1));
  }
#else
  MSCCLGO_DEVICE void checkEnd(bool, uint64_t, Site) const {}
  MSCCLGO_DEVICE WaitResult announce(uint64_t, uint64_t) const { return WaitResult::Done; }
  MSCCLGO_DEVICE void checkAnnounced(uint64_t, uint64_t, Site) const {}
  MSCCLGO_DEVICE void checkLength(uint64_t, uint64_t, Site) const {}
#endif
};

// PipeSet is one rank's pipes, passed by value.
struct PipeSet {
  const PipeHandle* out;  // pipe i to peer j is out[i * outs + j]
  const PipeHandle* in;   // pipe i from peer j is in[i * ins + j]
  uint32_t outs;          // peers that this rank sends to
  uint32_t ins;           // peers that it receives from
  uint32_t perPeer;       // pipes to or from each
  uint32_t reserved;
  Watch watch;

  // to returns the sending end of a pipe to a peer, and from the receiving end of one from a peer.
  // Blocks with pipes of their own take the one of their number, below perPeer. Peers are counted
  // from 0 in the host's order. With checks, an index outside the set ends the kernel (check.cuh).
  // Any thread may call them.
  MSCCLGO_DEVICE auto to(uint32_t peer, uint32_t pipe = 0, Site site = Site::here()) const
      -> const PipeHandle& {
    return detail::channelOf(Side{out, outs, perPeer, watch}, peer, pipe, site);
  }
  MSCCLGO_DEVICE auto from(uint32_t peer, uint32_t pipe = 0, Site site = Site::here()) const
      -> const PipeHandle& {
    return detail::channelOf(Side{in, ins, perPeer, watch}, peer, pipe, site);
  }

 private:
  // Side is the set for channelOf.
  struct Side {
    const PipeHandle* handles;
    uint32_t size, perPeer;
    const Watch& watch;
  };
};

namespace detail {

using PipeLine = uint4;  // 16 bytes

// PipeIn receives a message, and PipeOut sends one. One thread, the leader, begins it. For each
// chunk the leader makes the first calls and the last. Between them, with a barrier before and
// after, all threads call place(), which returns where the chunk is or goes. All threads call
// next() before the next chunk. With the last chunk the leader calls end() before the second
// barrier: it stores the count that all threads load when they begin the next message.
//
// A message loads its counts and signals together when it begins, and does not load signals again
// that it has seen: each load that waits for another costs a trip to memory.
template <bool kPlain>
class PipeIn {
 public:
  // Receives bytes, to dst if they may go there directly.
  MSCCLGO_DEVICE PipeIn(const PipeHandle& pipe, const void* dst, uint64_t bytes)
      : p_(pipe),
        dst_(dst),
        bytes_(bytes),
        direct_(is(kPipePosts) && PipeHandle::within(pipe.buffer, pipe.bufferSize, dst, bytes)),
        start_(pipe.control->chunks) {}

  // begin posts where the message is wanted.
  MSCCLGO_DEVICE WaitResult begin(Site site) {
    p_.checkEnd(false, p_.slotBytes, site);
    WaitResult result = WaitResult::Done;
    if (is(kPipePosts) || borrows()) result = p_.tell(dst_, bytes_, site);
    if (!byPort()) signalled_ = *p_.semaphore.outbound;
    seen_ = p_.seen();
    return result;
  }

  // arrive waits for the chunk.
  MSCCLGO_DEVICE WaitResult arrive() { return p_.await(start_ + index_ + 1, seen_); }

  // compare checks the chunk that has arrived.
  MSCCLGO_DEVICE void compare(Site site) const { p_.checkAnnounced(start_ + index_, bytes_, site); }

  // place returns where the chunk is, or null if it is at dst.
  MSCCLGO_DEVICE const uint8_t* place() {
    if (direct_) return nullptr;
    if (index_ == p_.slotCount && borrows()) lent_ = PipeHandle::isLot(p_.control->posting[0]);
    return lent_ ? p_.mine(p_.inLot(p_.control->posting[0], index_)) : p_.slot(start_ + index_);
  }

  // release gives the slot back, and with the last chunk the lot. If the message fails before, the
  // host gives the lot back; it looks at `posted`.
  MSCCLGO_DEVICE WaitResult release() {
    if (!kPlain && last_) {
      if (lent_) p_.pool->giveBack(p_.control->posting[0] & ~kPipeLot);
      p_.control->posted = 0;
    }
    if (byPort()) return p_.portSignal();
    p_.semaphore.relaxedSignal(signalled_++);
    return WaitResult::Done;
  }

  MSCCLGO_DEVICE void next() { ++index_; }

  // end says that the chunk is the message's last.
  MSCCLGO_DEVICE void end() {
    last_ = true;
    p_.control->chunks = start_ + index_ + 1;
  }

  MSCCLGO_DEVICE bool byPort() const { return is(kPipeByPort); }
  MSCCLGO_DEVICE bool byMemory() const { return !byPort(); }
  MSCCLGO_DEVICE bool direct() const { return direct_; }
  template <class Threads>
  MSCCLGO_DEVICE void check(Site site) const {
    Threads::check(p_.semaphore.watch, "receive", site);
  }

 private:
  MSCCLGO_DEVICE bool is(PipeFlag flag) const { return !kPlain && p_.is(flag); }
  MSCCLGO_DEVICE bool borrows() const { return !kPlain && p_.borrows(bytes_); }

  const PipeHandle& p_;
  const void* dst_;
  uint64_t bytes_;
  bool direct_, lent_ = false, last_ = false;  // lent_: the chunk is in a lot
  uint64_t start_, index_ = 0;  // the number of the message's first chunk; the chunk in the message
  uint64_t signalled_ = 0;      // by this end, in all
  PipeHandle::Signals seen_{};  // of the sender's
};

template <bool kPlain>
class PipeOut {
 public:
  // Sends bytes, directly from src if the host may read there.
  MSCCLGO_DEVICE PipeOut(const PipeHandle& pipe, const void* src, uint64_t bytes, uint64_t chunkBytes)
      : p_(pipe),
        bytes_(bytes),
        chunkBytes_(chunkBytes),
        fetched_(is(kPipeByPort) && PipeHandle::within(pipe.source, pipe.sourceSize, src, bytes)),
        srcOffset_(PipeHandle::address(src) - PipeHandle::address(pipe.source)),
        start_(pipe.control->chunks) {}

  MSCCLGO_DEVICE void begin(Site site) {
    p_.checkEnd(true, chunkBytes_, site);
    answers_ = p_.control->answers;
    if (!byPort()) signalled_ = *p_.semaphore.outbound;
    seen_ = p_.seen();
  }

  // room waits until the chunk has a place.
  MSCCLGO_DEVICE WaitResult room(Site site) {
    if (posted()) return p_.awaitPlace(index_, bytes_, answers_, fetched_, site);
    return p_.await(answers_ + index_ + 1 - p_.slotCount, seen_);
  }

  // announce writes what the chunk is; over ports pass() does.
  MSCCLGO_DEVICE WaitResult announce() const {
    return byPort() ? WaitResult::Done : p_.announce(start_ + index_, bytes_);
  }

  // place returns where the chunk goes, or null if the host fetches it.
  MSCCLGO_DEVICE uint8_t* place() {
    learn();
    if (fetched_) return nullptr;
    if (byPort()) return staged_ ? p_.mine(p_.inLot(p_.control->lot, index_)) : p_.slot(start_ + index_);
    if (direct_) return p_.buffer + place_ + index_ * p_.slotBytes;
    return lent_ ? p_.theirs(p_.inLot(place_, index_)) : p_.slot(start_ + index_);
  }

  // pass hands over n bytes at their place.
  MSCCLGO_DEVICE WaitResult pass(uint64_t n) {
    if (byPort())
      return p_.putChunk({start_, index_, n, bytes_, place_, srcOffset_, direct_, lent_, fetched_, staged_});
    p_.semaphore.relaxedSignal(signalled_++);
    return WaitResult::Done;
  }

  MSCCLGO_DEVICE void next() { ++index_; }

  // end says that the chunk is the message's last.
  MSCCLGO_DEVICE void end() const {
    p_.control->chunks = start_ + index_ + 1;
    p_.control->answers = answers_ + (posted() ? 1 : 0) + index_ + 1;
  }

  MSCCLGO_DEVICE bool byPort() const { return is(kPipeByPort); }
  MSCCLGO_DEVICE bool byMemory() const { return !byPort(); }
  template <class Threads>
  MSCCLGO_DEVICE void check(Site site) const {
    Threads::check(p_.semaphore.watch, "send", site);
  }

 private:
  MSCCLGO_DEVICE bool is(PipeFlag flag) const { return !kPlain && p_.is(flag); }
  MSCCLGO_DEVICE bool borrows() const { return !kPlain && p_.borrows(bytes_); }

  // posted reports whether the receiver posts the message before the chunk.
  MSCCLGO_DEVICE bool posted() const { return is(kPipePosts) || (borrows() && index_ >= p_.slotCount); }

  // learn reads where the receiver wants the message, once that matters.
  MSCCLGO_DEVICE void learn() {
    if (index_ == 0 && is(kPipePosts)) {
      const uint64_t where = p_.control->post[0];
      place_ = where - 1;
      // Other bytes than the posted ones must not go there.
      direct_ = where != 0 && !PipeHandle::isLot(where) && p_.isPosted(start_, bytes_) &&
                place_ <= p_.bufferSize && bytes_ <= p_.bufferSize - place_;
    }
    if (index_ == p_.slotCount && borrows() && p_.control->lent != 0) {
      place_ = p_.control->lent;
      lent_ = true;
      staged_ = byPort() && !fetched_ && p_.control->lot != 0;
    }
  }

  const PipeHandle& p_;
  uint64_t bytes_, chunkBytes_;
  bool fetched_, direct_ = false;       // by the host from the source; straight to its place in the buffer
  bool lent_ = false, staged_ = false;  // to a lot of the receiver's; over ports by way of one of this rank's
  uint64_t srcOffset_, place_ = 0;      // place_: the offset in the buffer, or the lot
  uint64_t start_, index_ = 0;          // the number of the message's first chunk; the chunk in the message
  uint64_t answers_ = 0;                // signals of the receiver before the message
  uint64_t signalled_ = 0;              // by this end, in all
  PipeHandle::Signals seen_{};          // of the receiver's
};

// NoIn and NoOut are for a call without that side.
struct NoIn {
  MSCCLGO_DEVICE WaitResult begin(Site) const { return WaitResult::Done; }
  MSCCLGO_DEVICE WaitResult arrive() const { return WaitResult::Done; }
  MSCCLGO_DEVICE void compare(Site) const {}
  MSCCLGO_DEVICE const uint8_t* place() const { return nullptr; }
  MSCCLGO_DEVICE WaitResult release() const { return WaitResult::Done; }
  MSCCLGO_DEVICE void next() const {}
  MSCCLGO_DEVICE void end() const {}
  MSCCLGO_DEVICE bool byPort() const { return false; }
  MSCCLGO_DEVICE bool byMemory() const { return false; }
  MSCCLGO_DEVICE bool direct() const { return false; }
  template <class Threads>
  MSCCLGO_DEVICE void check(Site) const {}
};
struct NoOut {
  MSCCLGO_DEVICE void begin(Site) const {}
  MSCCLGO_DEVICE WaitResult room(Site) const { return WaitResult::Done; }
  MSCCLGO_DEVICE WaitResult announce() const { return WaitResult::Done; }
  MSCCLGO_DEVICE uint8_t* place() const { return nullptr; }
  MSCCLGO_DEVICE WaitResult pass(uint64_t) const { return WaitResult::Done; }
  MSCCLGO_DEVICE void next() const {}
  MSCCLGO_DEVICE void end() const {}
  MSCCLGO_DEVICE bool byPort() const { return false; }
  MSCCLGO_DEVICE bool byMemory() const { return false; }
  template <class Threads>
  MSCCLGO_DEVICE void check(Site) const {}
};

// passMessage moves a message of bytes, chunk by chunk. All threads call work(to, from, at,
// n) for each, with the places of the chunk and the n bytes of the message from `at` on.
template <class Threads, class In, class Out, class Work>
MSCCLGO_DEVICE WaitResult passMessage(In in, Out out, uint64_t bytes, uint64_t chunkBytes, Site site,
                                      Work work) {
  in.template check<Threads>(site), out.template check<Threads>(site);
  const bool leads = Threads::thread() == 0;
  WaitResult result = WaitResult::Done;
  if (in.direct()) Threads::sync();  // before the peer may write, all have read what was there
  if (leads) result = in.begin(site), out.begin(site);
  uint64_t at = 0;
  do {
    if (leads && result == WaitResult::Done) {
      // There is usually room, and the chunk comes meanwhile.
      result = out.room(site);
      if (result == WaitResult::Done) result = in.arrive();
      // The relaxed loads of both sides' signals, for this chunk and earlier ones, come before this
      // fence. That is an acquire pattern: after the barrier all threads see what was stored before
      // the signals.
      fence<Scope::System, Order::Acquire>();
      if (result == WaitResult::Done) in.compare(site), result = out.announce();
    }
    WaitResult agreed = agree<Threads>(result);
    if (agreed != WaitResult::Done) return agreed;
    const uint64_t n = bytes - at < chunkBytes ? bytes - at : chunkBytes;
    uint8_t* to = out.place();
    work(to, in.place(), at, n);
    if (leads && at + n == bytes) in.end(), out.end();
    Threads::sync();
    if (leads) {
      // One fence for the signals of both sides, as it takes long. All threads write the chunk, and
      // read the slot to give back, before the barrier. The fence after it is cumulative, so these
      // accesses come before both relaxed signals (PTX: causality order).
      if (in.byMemory() || out.byMemory()) fence<Scope::System, Order::Release>();
      result = out.pass(n);
      if (result == WaitResult::Done) result = in.release();
    }
    in.next(), out.next();
    at += n;
  } while (at < bytes);
  return in.byPort() || out.byPort() ? agree<Threads>(result) : WaitResult::Done;
}

// loadLine and storeLine are for n bytes of a line, or for all 16, aligned, if it is whole.
MSCCLGO_DEVICE PipeLine loadLine(bool whole, const uint8_t* from, uint64_t n) {
  return whole ? *reinterpret_cast<const PipeLine*>(from) : loadPartial<PipeLine>(from, n);
}
MSCCLGO_DEVICE void storeLine(bool whole, uint8_t* to, PipeLine line, uint64_t n) {
  if (whole) {
    *reinterpret_cast<PipeLine*>(to) = line;
  } else {
    storePartial(to, line, n);
  }
}

// aligned reports whether lines begin at an address, which may be null.
MSCCLGO_DEVICE bool aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % sizeof(PipeLine) == 0;
}

// forLines calls store(whole, i, load(whole, i)) for the calling thread's lines of n bytes. For
// whole lines it has AtOnce loads under way.
template <class Threads, uint32_t AtOnce, class Load, class Store>
MSCCLGO_DEVICE void forLines(uint64_t n, bool aligned, Load load, Store store) {
  using Value = decltype(load(true, uint64_t(0)));
  const uint64_t threads = Threads::threads(), whole = aligned ? n / sizeof(PipeLine) : 0;
  uint64_t i = Threads::thread();
  for (; i + (AtOnce - 1) * threads < whole; i += AtOnce * threads) {
    Value values[AtOnce];
#pragma unroll
    for (uint32_t k = 0; k < AtOnce; ++k) values[k] = load(true, i + k * threads);
#pragma unroll
    for (uint32_t k = 0; k < AtOnce; ++k) store(true, i + k * threads, values[k]);
  }
#pragma unroll 1
  for (; i < (n + sizeof(PipeLine) - 1) / sizeof(PipeLine); i += threads) store(false, i, load(false, i));
}

// PipeSums are the partial results of lines of elements, as they travel.
template <class T, class Op>
struct PipeSums {
  using Line = PipeLine;
  using Type = typename Reducer<T, Op, Line>::Unfinished;
  static constexpr uint32_t kLines = sizeof(Type) / sizeof(Line);  // for a line of elements
  static constexpr uint32_t kAtOnce = kLines == 1 ? 4 : 1;
  static_assert(128 % sizeof(Type) == 0, "a slot holds whole ones");

  // bytes returns how many bytes travel for elements of so many bytes.
  MSCCLGO_DEVICE static uint64_t bytes(uint64_t elements) {
    return kLines == 1 ? elements : (elements + sizeof(Line) - 1) / sizeof(Line) * sizeof(Type);
  }

  // elements is the inverse of bytes: the bytes of elements for so many bytes that travel.
  MSCCLGO_DEVICE static uint64_t elements(uint64_t bytes) { return bytes / kLines; }

  // store writes partial results where n bytes of the message are left.
  static MSCCLGO_DEVICE void store(bool whole, uint8_t* to, const Type& sums, uint64_t n) {
    union {
      Type sums;
      Line lines[kLines];
    } u{sums};
#pragma unroll
    for (uint32_t i = 0; i < kLines; ++i)
      storeLine(whole, to + i * sizeof(Line), u.lines[i], kLines == 1 ? n : sizeof(Line));
  }
};

// PipeElements are this rank's elements for a message of a reduction.
template <class T, class Op>
struct PipeElements {
  using Sums = PipeSums<T, Op>;

  const uint8_t* data;
  uint64_t elements;  // bytes
  uint64_t bytes;     // that travel

  MSCCLGO_DEVICE PipeElements(const T* src, uint64_t count)
      : data(reinterpret_cast<const uint8_t*>(src)),
        elements(count * sizeof(T)),
        bytes(Sums::bytes(count * sizeof(T))) {}

  // Chunk is the part of them that goes with a chunk.
  struct Chunk {
    const uint8_t* data;
    uint64_t bytes;

    // reducer begins a reduction with line i.
    MSCCLGO_DEVICE auto reducer(bool whole, uint64_t i) const -> Reducer<T, Op, PipeLine> {
      const uint64_t k = i * sizeof(PipeLine);
      return Reducer<T, Op, PipeLine>(loadLine(whole, data + k, bytes - k));
    }

    // reduced adds line i to the partial results in a slot.
    MSCCLGO_DEVICE auto reduced(bool whole, uint64_t i, const uint8_t* slot) const
        -> Reducer<T, Op, PipeLine> {
      const uint64_t k = i * sizeof(PipeLine);
      Reducer<T, Op, PipeLine> sum(reinterpret_cast<const typename Sums::Type*>(slot)[i]);
      sum.add(loadLine(whole, data + k, bytes - k));
      return sum;
    }
  };

  // from returns the part that goes with the n bytes from byte `at` on.
  MSCCLGO_DEVICE Chunk from(uint64_t at, uint64_t n) const {
    const uint64_t first = Sums::elements(at), left = elements - first, most = Sums::elements(n);
    return {data + first, left < most ? left : most};
  }
};

}  // namespace detail

// pipeBytes returns how many bytes travel when elements are reduced: more than the elements have if
// their type cannot hold partial results. Any thread may call it.
template <class T, class Op>
MSCCLGO_DEVICE uint64_t pipeBytes(uint64_t count) {
  return detail::PipeSums<T, Op>::bytes(count * sizeof(T));
}

template <bool kPlain, class Threads>
__device__ __noinline__ WaitResult PipeHandle::sendBy(const void* src, uint64_t bytes, Site site) const {
  return detail::passMessage<Threads>(
      detail::NoIn{}, detail::PipeOut<kPlain>(*this, src, bytes, slotBytes), bytes, slotBytes, site,
      [&](uint8_t* to, const uint8_t*, uint64_t at, uint64_t n) {
        if (to != nullptr)
          copy(to, static_cast<const uint8_t*>(src) + at, n, Threads::thread(), Threads::threads());
      });
}

template <bool kPlain, class Threads>
__device__ __noinline__ WaitResult PipeHandle::recvBy(void* dst, uint64_t bytes, Site site) const {
  return detail::passMessage<Threads>(
      detail::PipeIn<kPlain>(*this, dst, bytes), detail::NoOut{}, bytes, slotBytes, site,
      [&](uint8_t*, const uint8_t* from, uint64_t at, uint64_t n) {
        if (from != nullptr)
          copy(static_cast<uint8_t*>(dst) + at, from, n, Threads::thread(), Threads::threads());
      });
}

template <bool kPlain, class Threads>
__device__ __noinline__ WaitResult PipeHandle::recvCopySendBy(const PipeHandle& out, void* dst,
                                                              uint64_t bytes, Site site) const {
  using Line = detail::PipeLine;
  return detail::passMessage<Threads>(
      detail::PipeIn<kPlain>(*this, dst, bytes), detail::PipeOut<kPlain>(out, dst, bytes, slotBytes), bytes,
      slotBytes, site, [&](uint8_t* to, const uint8_t* from, uint64_t at, uint64_t n) {
        if (from == nullptr && to == nullptr) return;
        uint8_t* mine = static_cast<uint8_t*>(dst) + at;
        const uint8_t* read = from != nullptr ? from : mine;
        detail::forLines<Threads, 4>(
            n, detail::aligned(mine) && detail::aligned(to),
            [&](bool whole, uint64_t i) {
              return detail::loadLine(whole, read + i * sizeof(Line), n - i * sizeof(Line));
            },
            [&](bool whole, uint64_t i, Line line) {
              const uint64_t k = i * sizeof(Line);
              if (from != nullptr) detail::storeLine(whole, mine + k, line, n - k);
              if (to != nullptr) detail::storeLine(whole, to + k, line, n - k);
            });
      });
}

template <class T, class Op, class Threads>
MSCCLGO_DEVICE WaitResult PipeHandle::sendToReduce(const T* src, uint64_t count, Site site) const {
  return isPlain(pipeBytes<T, Op>(count)) ? sendToReduceBy<true, T, Op, Threads>(src, count, site)
                                          : sendToReduceBy<false, T, Op, Threads>(src, count, site);
}

template <bool kPlain, class T, class Op, class Threads>
__device__ __noinline__ WaitResult PipeHandle::sendToReduceBy(const T* src, uint64_t count, Site site) const {
  using Sums = detail::PipeSums<T, Op>;
  using Type = typename Sums::Type;
  if constexpr (Sums::kLines == 1) {
    return sendBy<kPlain, Threads>(src, count * sizeof(T), site);
  } else {
    const detail::PipeElements<T, Op> all(src, count);
    return detail::passMessage<Threads>(
        detail::NoIn{}, detail::PipeOut<kPlain>(*this, nullptr, all.bytes, slotBytes), all.bytes, slotBytes,
        site, [&](uint8_t* to, const uint8_t*, uint64_t at, uint64_t n) {
          const auto mine = all.from(at, n);
          detail::forLines<Threads, Sums::kAtOnce>(
              mine.bytes, detail::aligned(mine.data) && detail::aligned(to),
              [&](bool whole, uint64_t i) { return mine.reducer(whole, i).unfinished(); },
              [&](bool whole, uint64_t i, const Type& sums) {
                Sums::store(whole, to + i * sizeof(Type), sums, 0);
              });
        });
  }
}

template <class T, class Op, class Threads>
MSCCLGO_DEVICE WaitResult PipeHandle::recvReduceSend(const PipeHandle& out, const T* src, uint64_t count,
                                                     Site site) const {
  return arePlain(out, pipeBytes<T, Op>(count))
             ? recvReduceSendBy<true, T, Op, Threads>(out, src, count, site)
             : recvReduceSendBy<false, T, Op, Threads>(out, src, count, site);
}

template <bool kPlain, class T, class Op, class Threads>
__device__ __noinline__ WaitResult PipeHandle::recvReduceSendBy(const PipeHandle& out, const T* src,
                                                                uint64_t count, Site site) const {
  using Sums = detail::PipeSums<T, Op>;
  using Type = typename Sums::Type;
  const detail::PipeElements<T, Op> all(src, count);
  return detail::passMessage<Threads>(
      detail::PipeIn<kPlain>(*this, nullptr, all.bytes),
      detail::PipeOut<kPlain>(out, nullptr, all.bytes, slotBytes), all.bytes, slotBytes, site,
      [&](uint8_t* to, const uint8_t* from, uint64_t at, uint64_t n) {
        const auto mine = all.from(at, n);
        detail::forLines<Threads, Sums::kAtOnce>(
            mine.bytes, detail::aligned(mine.data) && detail::aligned(to),
            [&](bool whole, uint64_t i) { return mine.reduced(whole, i, from).unfinished(); },
            [&](bool whole, uint64_t i, const Type& sums) {
              Sums::store(whole, to + i * sizeof(Type), sums, n - i * sizeof(Type));
            });
      });
}

namespace detail {

// finishReduction ends a reduction: results go to dst, and where the chunk goes.
template <bool kPlain, class T, class Op, class Threads, class Out>
MSCCLGO_DEVICE WaitResult finishReduction(const PipeHandle& in, Out out, T* dst, const T* src, uint64_t count,
                                          uint32_t ranks, Site site) {
  using Sums = PipeSums<T, Op>;
  const PipeElements<T, Op> all(src, count);
  return passMessage<Threads>(
      PipeIn<kPlain>(in, nullptr, all.bytes), out, all.bytes, in.slotBytes, site,
      [&](uint8_t* to, const uint8_t* from, uint64_t at, uint64_t n) {
        const auto mine = all.from(at, n);
        uint8_t* results = reinterpret_cast<uint8_t*>(dst) + Sums::elements(at);
        forLines<Threads, Sums::kAtOnce>(
            mine.bytes, aligned(mine.data) && aligned(results) && aligned(to),
            [&](bool whole, uint64_t i) { return mine.reduced(whole, i, from).get(ranks); },
            [&](bool whole, uint64_t i, PipeLine line) {
              const uint64_t k = i * sizeof(PipeLine);
              storeLine(whole, results + k, line, mine.bytes - k);
              if (to != nullptr) storeLine(whole, to + k, line, mine.bytes - k);
            });
      });
}

}  // namespace detail

template <class T, class Op, class Threads>
MSCCLGO_DEVICE WaitResult PipeHandle::recvReduce(T* dst, const T* src, uint64_t count, uint32_t ranks,
                                                 Site site) const {
  return isPlain(pipeBytes<T, Op>(count)) ? recvReduceBy<true, T, Op, Threads>(dst, src, count, ranks, site)
                                          : recvReduceBy<false, T, Op, Threads>(dst, src, count, ranks, site);
}

template <bool kPlain, class T, class Op, class Threads>
__device__ __noinline__ WaitResult PipeHandle::recvReduceBy(T* dst, const T* src, uint64_t count,
                                                            uint32_t ranks, Site site) const {
  return detail::finishReduction<kPlain, T, Op, Threads>(*this, detail::NoOut{}, dst, src, count, ranks,
                                                         site);
}

template <bool kPlain, class T, class Op, class Threads>
__device__ __noinline__ WaitResult PipeHandle::recvReduceCopySendBy(const PipeHandle& out, T* dst,
                                                                    const T* src, uint64_t count,
                                                                    uint32_t ranks, Site site) const {
  return detail::finishReduction<kPlain, T, Op, Threads>(
      *this, detail::PipeOut<kPlain>(out, dst, count * sizeof(T), slotBytes), dst, src, count, ranks, site);
}

template <class T, class Op, class Threads>
MSCCLGO_DEVICE WaitResult PipeHandle::recvReduceCopySend(const PipeHandle& out, T* dst, const T* src,
                                                         uint64_t count, uint32_t ranks, Site site) const {
  if constexpr (detail::PipeSums<T, Op>::kLines == 1) {
    return arePlain(out, count * sizeof(T))
               ? recvReduceCopySendBy<true, T, Op, Threads>(out, dst, src, count, ranks, site)
               : recvReduceCopySendBy<false, T, Op, Threads>(out, dst, src, count, ranks, site);
  } else {  // results are in fewer chunks than partial ones
    WaitResult result = recvReduce<T, Op, Threads>(dst, src, count, ranks, site);
    if (result != WaitResult::Done) return result;
    Threads::sync();  // all have stored their results
    return out.send<Threads>(dst, count * sizeof(T), site);
  }
}

template <class Threads>
MSCCLGO_DEVICE WaitResult PipeHandle::post(const void* dst, uint64_t bytes, Site site) const {
  if (!is(kPipePosts)) return WaitResult::Done;
  Threads::sync();  // before the peer may write, all have read what was there
  WaitResult result = WaitResult::Done;
  if (Threads::thread() == 0) {
    checkEnd(false, slotBytes, site);
    result = tell(dst, bytes, site);
  }
  return is(kPipeByPort) ? detail::agree<Threads>(result) : WaitResult::Done;
}

}  // namespace mscclgo
