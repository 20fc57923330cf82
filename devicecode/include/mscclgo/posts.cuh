// What kernels of collectives share to move data between hosts, from and to memory unknown to
// peers.
#pragma once

#include <mscclgo/port_channel.cuh>
#include <mscclgo/threads.cuh>

namespace mscclgo {

// Posts is one rank's view of the posts between all ranks, through which data go in pieces. The
// sender copies a piece to a post of its outbox, its host puts it into the same post of the
// receiver's inbox, and the receiver copies it to its place and signals that the post is free. Each
// pair of ranks has kPosts posts for either direction at both ends. Pieces take them in turn. Each
// begins with two words of the sender.
struct Posts {
  const PortChannelHandle* channels;  // two to each rank
  uint8_t* outbox;                    // kPosts posts for each rank
  const uint8_t* inbox;               // likewise, after other data
  uint64_t front;                     // bytes of the other data, the same on all ranks
  uint64_t postBytes;                 // a multiple of 16, likewise
  uint32_t rank, ranks;

  static constexpr uint32_t kPosts = 4;  // postsOfPair of posts.go
  static constexpr uint64_t kHead = 16;  // bytes before a piece's data

  // channel returns this rank's end of the channel for the pieces from one rank to another, and
  // their answers. This rank is one of the two. The other direction has another channel, since one
  // thread at a time waits for a channel. Any thread may call this function and the next ones,
  // until put().
  MSCCLGO_DEVICE const PortChannelHandle& channel(uint32_t from, uint32_t to) const {
    return channels[(from < to ? 0 : ranks) + (from == rank ? to : from)];
  }

  // room returns the bytes of data that a post holds.
  MSCCLGO_DEVICE uint64_t room() const { return postBytes - kHead; }

  // post returns where in a box the post of a piece to or from a rank is.
  MSCCLGO_DEVICE uint64_t post(uint32_t of, uint64_t piece) const {
    return (of * kPosts + piece % kPosts) * postBytes;
  }

  // arrived returns a piece from a rank, as words: the sender's two, and then the data.
  MSCCLGO_DEVICE const uint64_t* arrived(uint32_t from, uint64_t piece) const {
    return reinterpret_cast<const uint64_t*>(inbox + front + post(from, piece));
  }

  // put sends n bytes as a piece to a rank. The post is free: a wait for the answer to its last
  // piece comes before, and then a barrier of the threads. All of them call it and get the same
  // result, false if the group has failed. The bytes may change when it returns.
  template <class Threads>
  MSCCLGO_DEVICE bool put(uint32_t to, uint64_t piece, uint64_t first, uint64_t second, const uint8_t* src,
                          uint64_t n) const {
    uint64_t at = post(to, piece);
    copy(outbox + at + kHead, src, n, Threads::thread(), Threads::threads());
    if (Threads::thread() == 0) {
      uint64_t* head = reinterpret_cast<uint64_t*>(outbox + at);
      head[0] = first;
      head[1] = second;
    }
    Threads::sync();  // the piece is there before one thread sends it
    return Threads::all(Threads::thread() != 0 ||
                        channel(rank, to).putWithSignal(front + post(rank, piece), at, kHead + n) ==
                            WaitResult::Done);
  }

  // take copies the n bytes of a piece from a rank to their place, and signals that the post is
  // free. The piece has come: a wait for its signal comes before, and then a barrier of the
  // threads. All of them call it and get the same result, false if the group has failed.
  template <class Threads>
  MSCCLGO_DEVICE bool take(uint32_t from, uint64_t piece, uint8_t* dst, uint64_t n) const {
    const uint8_t* src = reinterpret_cast<const uint8_t*>(arrived(from, piece)) + kHead;
    copy(dst, src, n, Threads::thread(), Threads::threads());
    Threads::sync();  // all have read the post
    return Threads::all(Threads::thread() != 0 || channel(from, rank).signal() == WaitResult::Done);
  }
};

}  // namespace mscclgo
