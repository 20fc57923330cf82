// Groups of sends and receives: any number of messages between a rank and its peers, of any sizes
// and alignments, in one kernel. Each rank knows its own messages only. A rank receives another's
// messages in the order of their sends, also across kernels. Between ranks of a host they go
// through boxes, which threads write; between hosts they go through posts. A large message between
// ranks of a host may be stored at its place: if the place is mapped at the sender, the receiver
// offers it.
//
// ONE_HOST is defined where all ranks are on one host, and SEVERAL_HOSTS otherwise; ONLY_LL128
// where packets are LL128, and ONLY_LL16 where they are LL16. Each has its own kernels, since
// kernels take seconds to compile.
#include <mscclgo/collective.cuh>
#include <mscclgo/posts.cuh>
#include <mscclgo/threads.cuh>

using namespace mscclgo;

namespace {

// kSlots is how many chunks of a lane may be under way; groupSlots of group.go.
constexpr uint32_t kSlots = 4;
// kPacketSlot is the room for packets of a slot, bytes, whole LL128 packets.
#ifndef PACKET_SLOT
#define PACKET_SLOT 16384
#endif
constexpr uint32_t kPacketSlot = PACKET_SLOT;
// kOffer is the number of packets of an offer: the head of a message, and its place. kOfferRoom is
// the room for a lane's two offers, in packets; groupOfferRoom of grouptable.go. It equals the room
// for heads, so addresses in boxes are made the same way: with half of it, kernels without offers
// needed more registers.
constexpr uint32_t kOffer = 2, kOfferRoom = 2 * kOffer;
// kPairsInTable is how many pairs go with the kernel's parameters; pairsInTable of grouptable.go.
constexpr uint32_t kPairsInTable = 2 * kRanksByValue;
// kMostTasks bounds the tasks of a rank; mostTasks of grouptable.go.
constexpr uint32_t kMostTasks = kManyRanks ? 2 * kMaxRanks : 448;
// kInTable is how many messages go with the kernel's parameters; inTable of group.go.
constexpr uint32_t kInTable = 92;
// kInStore is how many messages go with the parameters of storeMessages; inStore of grouptable.go.
constexpr uint32_t kInStore = 240;

// Message is data that this rank sends, or the place for data that it receives. In kernels with
// offers a second Message follows each received one: its `at` is the place as the sender has it
// mapped, or null.
struct Message {
  uint8_t* at;
  uint64_t what;  // Elements

  MSCCLGO_DEVICE uint64_t bytes() const { return Elements{what}.bytes(); }
};

enum Direction : uint32_t { kSends, kReceives, kKeeps };

// Pair is the messages to a peer, or from one, or from this rank to itself. The last are two
// Messages each: the data and their place.
struct Pair {
  uint32_t where;  // lanes - 1 << 24 | number of the first Message
  uint32_t what;   // far << 30 | direction << 28 | peer << 20 | messages

  MSCCLGO_DEVICE uint32_t first() const { return where & 0xffffffu; }
  MSCCLGO_DEVICE uint32_t lanes() const { return (where >> 24) + 1; }
  // far reports whether the peer is on another host. `peer` is then a rank of the whole group, and
  // otherwise a rank of the host.
  MSCCLGO_DEVICE bool far() const { return (what >> 30 & 1) != 0; }
  MSCCLGO_DEVICE uint32_t direction() const { return what >> 28 & 3; }
  MSCCLGO_DEVICE uint32_t peer() const { return what >> 20 & 0xffu; }
  MSCCLGO_DEVICE uint32_t messages() const { return what & 0xfffffu; }
};

// Table is the work of a kernel. Each lane of a pair is a task for one worker: a block or a warp.
// The first pairs, and the first messages, are on one line of the constant bank each, of 64 bytes.
struct Table {
  uint64_t small;       // bytes of a message that goes as packets
  uint64_t slotBytes;   // of a slot for larger ones, whole lines
  uint64_t leastLots;   // bytes of a lane's lot of a message, in packets << 32 | otherwise
  const Message* more;  // all messages, if they or the pairs are more than the table holds
  uint32_t lanes;       // from each rank of a host to each
  uint32_t pairs;
  Pair some[kPairsInTable];
  uint64_t large;    // bytes of the largest message whose place is not offered
  uint64_t piece;    // bytes of such a message that a lane stores at a time, a multiple of a line
  uint32_t storing;  // how many lanes of a pair store such messages
  uint32_t most;     // how many lanes of a pair a message is divided among at most
  Message messages[kInTable];

  // pair returns a pair. If there are more than kPairsInTable, all are at the start of `more`, as
  // many to a Message as fit.
  MSCCLGO_DEVICE Pair pair(uint32_t i) const {
    constexpr uint32_t kEach = sizeof(Message) / sizeof(Pair);
    if (!kManyRanks || pairs <= kPairsInTable) return some[i];
    return reinterpret_cast<const Pair*>(more - (pairs + kEach - 1) / kEach)[i];
  }

  MSCCLGO_DEVICE const Message& message(uint32_t i) const { return more != nullptr ? more[i] : messages[i]; }
};

// Some is messages for storeMessages, and their destination.
struct Some {
  Message* to;
  uint32_t count;
  Message messages[kInStore];
};

// Lot is a lane's part of a message, in lines of kLine bytes.
struct Lot {
  uint32_t from, to;  // of the message
  uint32_t piece;     // of a chunk

  // chunks: the first lane has at least one, which announces the message to the receiver.
  MSCCLGO_DEVICE uint32_t chunks(uint32_t lane) const {
    uint32_t n = (to - from + piece - 1) / piece;
    return n > 0 || lane > 0 ? n : 1;
  }
};

// Box is where the ranks of a host leave chunks and counts for one rank, and where that keeps its
// own counts. All boxes are alike. A box has equally many lanes from each other rank. A lane is a
// ring of slots of two kinds, for packets and for other data, so that no data pass for a packet.
//
// A chunk is there when the head of its slot is: a packet with the message's type, bytes and
// number. Lanes count their chunks at both ends, from kernel to kernel, and the receiver writes to
// the sender how many slots it has emptied. Counts are compared by their difference, so they may
// wrap around.
struct Box {
  uint8_t* at;
  uint32_t ranks, lanes;

  // ring returns the number of a lane from or to a peer.
  MSCCLGO_DEVICE uint32_t ring(uint32_t peer, uint32_t lane) const { return lane * ranks + peer; }

  // The parts of a box. heads has one for each slot of a ring, packets returns the slots for packets, and
  // bytes those for other data.
  MSCCLGO_DEVICE LL16Packet* heads(uint32_t ring) const {
    return reinterpret_cast<LL16Packet*>(at) + uint64_t(ring) * kSlots;
  }
  // offer is the peer's offer for a message that this rank sends by a lane. There are two, for
  // messages in turn. This rank empties the offer before it announces that it has stored the
  // message, or sent it by slots: then the peer may make the offer for the message after the next.
  MSCCLGO_DEVICE LL16Packet* offer(uint32_t ring, uint64_t number) const {
    return heads(ranks * lanes) + uint64_t(ring) * kOfferRoom + number % 2 * kOffer;
  }
  MSCCLGO_DEVICE uint8_t* packets(uint32_t ring) const {
    return slots() + uint64_t(ring) * kSlots * kPacketSlot;
  }
  MSCCLGO_DEVICE uint8_t* bytes(uint32_t ring, uint64_t slotBytes) const {
    return packets(ranks * lanes) + uint64_t(ring) * kSlots * slotBytes;
  }
  // emptied counts the slots of a lane to the peer that are free again, sent and received this
  // rank's chunks of lanes to and from it.
  MSCCLGO_DEVICE uint64_t* emptied(uint32_t ring) const { return counts() + ring; }
  MSCCLGO_DEVICE uint64_t* sent(uint32_t ring) const { return emptied(ranks * lanes + ring); }
  MSCCLGO_DEVICE uint64_t* received(uint32_t ring) const { return sent(ranks * lanes + ring); }
  // copied counts the chunks received up to the last one with other data than packets and heads.
  MSCCLGO_DEVICE uint64_t* copied(uint32_t ring) const { return received(ranks * lanes + ring); }
  // awaited counts the messages from this rank for which the peer has called.
  MSCCLGO_DEVICE uint64_t* awaited(uint32_t peer) const { return counts() + 4 * ranks * lanes + peer; }
  // number counts the messages to a peer, or from one, before a launch. Launches use two
  // in turn, as blocks may begin when others have ended.
  MSCCLGO_DEVICE uint64_t* number(uint64_t launch, uint32_t direction, uint32_t peer) const {
    return awaited(ranks) + ((launch % 2) * 2 + direction) * ranks + peer;
  }
  // numberNow is this launch's number. Which of the two it is may still be on its way from memory,
  // so both are loaded; end() may write the other.
  MSCCLGO_DEVICE uint64_t numberNow(uint64_t launch, uint32_t direction, uint32_t peer) const {
    uint64_t even = load<Scope::Device, Order::Relaxed>(number(0, direction, peer)),
             odd = load<Scope::Device, Order::Relaxed>(number(1, direction, peer));
    return launch % 2 == 0 ? even : odd;
  }
  // launches counts the launches, for each of kMaxBlocks blocks.
  MSCCLGO_DEVICE uint64_t* launches() const { return awaited(5 * ranks); }
  // reported is not 0 once a thread is about to report a mismatch.
  MSCCLGO_DEVICE uint64_t* reported() const { return launches() + kMaxBlocks; }

 private:
  MSCCLGO_DEVICE uint64_t* counts() const {
    return reinterpret_cast<uint64_t*>(at +
                                       uint64_t(ranks) * lanes * (kSlots + kOfferRoom) * sizeof(LL16Packet));
  }
  MSCCLGO_DEVICE uint8_t* slots() const {
    uint64_t end = reinterpret_cast<uint8_t*>(reported() + 1) - at;
    return at + divideUp(end, kLine) * kLine;
  }
};

#if !defined(SEVERAL_HOSTS)
// Near stands for Far where there is one host: it does nothing.
struct Near {
  static constexpr bool kFar = false;

  // rankOf returns a rank of the host as a rank of the whole group.
  MSCCLGO_DEVICE uint32_t rankOf(uint32_t near) const { return near; }
};
#endif

#if !defined(ONE_HOST)
// Hosts is a rank's state for messages between hosts, in its device memory; groupHostsOf of
// grouphosts.go. A pair of ranks of different hosts has one lane, whose chunks are pieces of posts.
// Each signal is for one chunk: the answer to a chunk sent, or a chunk received. A kernel ends when
// it has all answers, so the channels count the chunks from kernel to kernel.
struct Hosts {
  Posts posts;
  uint64_t* numbers;      // counts of the messages to each rank, and then from each
  const uint32_t* ranks;  // of this host
};

// Far is how a rank sends to other hosts, and receives from them.
struct Far {
  static constexpr bool kFar = true;

  const Hosts& hosts;

  MSCCLGO_DEVICE uint32_t rankOf(uint32_t near) const { return hosts.ranks[near]; }

  // number counts the messages of a far pair before a launch. Only its task uses it.
  MSCCLGO_DEVICE uint64_t* number(const Pair& pair) const {
    return hosts.numbers + (pair.direction() == kSends ? 0 : hosts.posts.ranks) + pair.peer();
  }

  // chunks returns how many signals of a far pair this rank has waited for.
  MSCCLGO_DEVICE uint64_t chunks(const Pair& pair) const { return *channel(pair).base.semaphore.expected; }

  // lot returns the one lot of a far message, by its size alone.
  MSCCLGO_DEVICE Lot lot(uint64_t bytes) const {
    constexpr uint32_t kLeastPiece = (64 << 10) / kLine, kPieces = Posts::kPosts;
    uint32_t lines = uint32_t(divideUp(bytes, kLine)), most = uint32_t(hosts.posts.room() / kLine);
    uint32_t piece = (lines + kPieces - 1) / kPieces;
    if (piece < kLeastPiece) piece = kLeastPiece;
    if (piece > most) piece = most;
    return {0, lines, piece};
  }

  // answered reports whether at most so many of the chunks sent have no answer. One thread of the
  // kernel calls it for a pair, as for arrived(). It acquires the peer's reads of the others at
  // system scope.
  MSCCLGO_DEVICE bool answered(const Pair& pair, uint64_t sent, uint64_t most) const {
    while (int64_t(sent - chunks(pair)) > int64_t(most))
      if (!channel(pair).poll()) return false;
    return true;
  }

  // arrived reports whether a pair's next chunk is there. If so, it acquires the chunk at system
  // scope, and sets its head; the chunk must then be received.
  MSCCLGO_DEVICE bool arrived(const Pair& pair, uint64_t chunk, uint64_t& head) const {
    if (!channel(pair).poll()) return false;
    head = *hosts.posts.arrived(pair.peer(), chunk);
    return true;
  }

 private:
  MSCCLGO_DEVICE const PortChannelHandle& channel(const Pair& pair) const {
    const Posts& posts = hosts.posts;
    return pair.direction() == kSends ? posts.channel(posts.rank, pair.peer())
                                      : posts.channel(pair.peer(), posts.rank);
  }
};
#endif

// flagOf returns the flag of a chunk's packets. They repeat; see Worker::clear.
constexpr uint64_t kFlags = uint64_t(1) << 31;
MSCCLGO_DEVICE uint32_t flagOf(uint64_t chunk) { return uint32_t(chunk % kFlags) + 1; }

// Stage is the next step of a task's message. A message that is not large, or goes to another host,
// has kChunks alone: its chunks in slots. The lanes of a large one begin with a chunk that is a
// head without data (kCall); the receiver compares the message by it. The sender then awaits the
// receiver's offer (kAwaitOffer). The message goes by slots, or is stored at its place (kPlace).
// After that, a second head without data follows.
enum Stage : uint8_t { kChunks, kCall, kAwaitOffer, kPlace };

// Task is a worker's progress in a lane of a pair. Its addresses are made while the kernel before
// ends; tasks of far pairs have none.
struct Task {
  uint64_t chunk;     // of the lane, the next one
  uint64_t number;    // of the pair's first message
  uint64_t seen;      // of a send, slots free again at the last look; else the chunk's head
  LL16Packet* heads;  // of the ring, here or at the peer
  union {
    uint8_t* packets;  // its slots for packets
    uint8_t* place;    // of a send in kPlace, the peer's offer
  };
  uint64_t* emptied;  // at the sender
  uint16_t pair;
  Stage stage;
  uint32_t ring;
  uint32_t message;  // of the pair, the next one; all of them when it is done
  uint32_t step;     // of the message's lot
  Lot lot;
  uint8_t lane;
  uint8_t packed;  // of a receive, chunks in a row of packets or heads alone, kSlots at most
  bool ready, stuck;
};

// Tasks are the tasks of a block's workers.
struct Tasks {
  Task task[kMostTasks];
  uint32_t state[32];          // of each worker
  uint64_t count[kMostTasks];  // of the first block: each pair's messages, after the kernel
};

// kOneWorker is whether a block is one worker.
template <class Threads>
constexpr bool kOneWorker = false;
template <>
constexpr bool kOneWorker<BlockThreads> = true;

// Worker does some of the tasks, a chunk of each ready one at a time. It waits only when none is
// ready, and then for any of them. So sends and receives cannot block each other, whatever their
// order and however few workers there are.
//
// Places is whether there may be large messages between ranks of a host. Other kernels have no
// offers.
template <class Threads, class Packet, class Reach, bool Places>
class Worker {
 public:
  MSCCLGO_DEVICE Worker(const GroupHandle& group, const PeerMemory& boxes, const Table& table,
                        const Reach& reach, Tasks& tasks)
      : group_(group), boxes_(boxes), table_(table), reach_(reach) {
    uint32_t all = workers(), own = 0, before = 0;  // before: tasks of the block's workers ahead of it
    for (uint32_t p = 0; p < table.pairs; ++p) all_ += table.pair(p).lanes();
    for (uint32_t w = blockIdx.x * perBlock(); w < number(); ++w) before += share(w, all);
    own = share(number(), all);
    tasks_ = tasks.task + before;
    state_ = &tasks.state[number() % perBlock()];
    count_ = own;
    for (uint32_t t = Threads::thread(); t < count_; t += Threads::threads()) place(tasks_[t], t);
    Threads::sync();
  }

  // Brief is a thread's part of the block's one task, if that is one chunk of packets. A thread
  // looks at the head and at its own packets together, and stores them itself.
  struct Brief {
    Packet* packets;  // the thread's first one of slot 0
    uint8_t* at;      // of the message, for that packet
    uint32_t left;    // bytes of the chunk from there on
    uint32_t count;   // of the thread's packets, kMost at most
    bool is;

    static constexpr uint32_t kMost = 2;
  };

  // brief returns the worker's task as a Brief, if it is one. All of its threads call it.
  MSCCLGO_DEVICE Brief brief() const {
    Brief b{};
    if (!kOneWorker<Threads> || Places || count_ != 1) return b;
    const Task& task = tasks_[0];
    const Pair pair = pairOf(task);
    if (!isNear(pair) || pair.messages() != 1) return b;
    const Message& message = messageOf(task);
    if (!packed(message.bytes()) || task.lot.chunks(task.lane) != 1) return b;
    constexpr uint32_t kPayload = Piece<Packet>::kPayload;
    const Part part = partOf(task, message);
    uint32_t packets = uint32_t(divideUp(part.bytes, kPayload)), first = Threads::thread() / kThreads;
    if (packets > Brief::kMost * apart()) return b;
    b.is = true;
    b.packets = reinterpret_cast<Packet*>(task.packets) + first;
    b.at = part.at + uint64_t(first) * kPayload;
    b.count = first < packets ? (packets - first - 1) / apart() + 1 : 0;
    b.left = b.count > 0 ? uint32_t(part.bytes) - first * kPayload : 0;
    return b;
  }

  enum Outcome : uint32_t { kDone, kNotBrief, kBroken };

  // exchange sends or receives a brief task's chunk. Each of the worker's threads calls it and gets
  // its own result. If one is kNotBrief nothing has been counted or written, and run() does the
  // task.
  MSCCLGO_DEVICE Outcome exchange(const Brief& b, uint64_t launch) const {
    constexpr uint32_t kPayload = Piece<Packet>::kPayload;
    Task& task = tasks_[0];
    const Pair pair = pairOf(task);
    const bool sends = pair.direction() == kSends;
    const uint32_t lane = Threads::thread() % kThreads;
    Piece<Packet> pieces[Brief::kMost];
    // The data to send are loaded before the counts are there.
    if (sends) {
#pragma unroll
      for (uint32_t k = 0; k < Brief::kMost; ++k) {
        uint32_t at = k * apart() * kPayload;
        if (k < b.count) pieces[k].load(b.at + at, b.left - at, lane);
      }
    }
    // One thread loads the counts: all lanes' counts are on a few lines, where many loads queue up.
    if (Threads::thread() == 0) learn(task, pair, launch);
    Threads::sync();
    const uint32_t flag = flagOf(task.chunk), slot = uint32_t(task.chunk % kSlots);
    const uint64_t head = headOf(task, messageOf(task));
    Packet* packets = b.packets + slot * (kPacketSlot / sizeof(Packet));
    Watch watch = group_.watch;
    watch.peer = rankOf(pair);
    if (sends) {
      // No fence: only packets go into the slot, stored after this branch. The load of its count
      // has returned before the barrier, so the peer has read the slot's old packets; see
      // giveBack().
      if (!hasRoom(task)) return kNotBrief;
      if (Threads::thread() == 0) announce(task, head);
#pragma unroll
      for (uint32_t k = 0; k < Brief::kMost; ++k) {
        if (k < b.count) pieces[k].write(packets + k * apart(), lane, flag);
      }
      return kDone;
    }
    if (isLast(task.chunk)) return kNotBrief;
    if (b.count == 0 && Threads::thread() >= kThreads) return kDone;
    uint64_t found = 0;
    WaitResult result = waitTogether<kThreads>(watch, [&] {
      uint64_t words[2];
      task.heads[slot].fetch(0, words);
      uint32_t missing = tryReadSome(pieces, packets, apart(), b.count, lane, flag);
      uint2 data;
      if (!together(LL16Packet::unpack(words, flag, data))) return false;
      found = uint64_t(data.y) << 32 | data.x;
      return found != head || missing == 0;
    });
    if (result != WaitResult::Done) return kBroken;
    if (found != head) return kNotBrief;
#pragma unroll
    for (uint32_t k = 0; k < Brief::kMost; ++k) {
      uint32_t at = k * apart() * kPayload;
      if (k < b.count) pieces[k].store(b.at + at, b.left - at, lane);
    }
    return kDone;
  }

  // end counts a brief task's chunk, after a barrier that all threads have reached with kDone. One
  // thread calls it. The next kernel that receives by the lane gives the slot back: in this kernel
  // a store to the peer would delay its end.
  MSCCLGO_DEVICE void end() const { *done(tasks_[0], pairOf(tasks_[0])) = tasks_[0].chunk + 1; }

  // run does the tasks, and reports whether no wait has failed. launch is the number of the
  // kernel. All of the worker's threads call it and get the same result.
  MSCCLGO_DEVICE bool run(uint64_t launch) {
    for (uint32_t t = turn(); t < count_; t += Threads::threads()) begin(tasks_[t], launch);
    for (;;) {
      Threads::sync();
      for (uint32_t t = 0; t < count_; ++t) {
        if (tasks_[t].ready && !step(tasks_[t])) return false;
      }
      Threads::sync();
      if (Threads::thread() < 32) {
        uint32_t state = poll();
        if (Threads::thread() == 0) *state_ = state;
      }
      Threads::sync();
      uint32_t state = *state_;
      if (state != kReady) return state == kEnded;
    }
  }

 private:
  enum State : uint32_t { kFailed, kReady, kEnded };
  // kThreads is how many threads carry a packet together.
  static constexpr uint32_t kThreads = Piece<Packet>::kThreads;

  // apart returns how far the packets of a thread lie from each other, in packets.
  MSCCLGO_DEVICE static uint32_t apart() { return Threads::threads() / kThreads; }
  // together reports whether ok is true in all threads that carry a packet together.
  MSCCLGO_DEVICE static bool together(bool ok) {
    return kThreads == 1 ? ok : __all_sync(0xffffffffu, ok) != 0;
  }

  // turn returns the first task that the calling thread begins. With offers, consecutive tasks are
  // for different warps: threads of one warp that begin a send and a receive would wait for each
  // other, and the peer for the offer.
  MSCCLGO_DEVICE static uint32_t turn() {
    const uint32_t thread = Threads::thread(), warps = Threads::threads() / 32;
    return Places ? thread % 32 * warps + thread / 32 : thread;
  }

  MSCCLGO_DEVICE static uint32_t perBlock() { return blockDim.x / Threads::threads(); }
  MSCCLGO_DEVICE static uint32_t workers() { return gridDim.x * perBlock(); }
  MSCCLGO_DEVICE static uint32_t number() {
    return blockIdx.x * perBlock() + threadIdx.x / Threads::threads();
  }

  // share returns how many tasks a worker has: every workers()th, from its number on.
  MSCCLGO_DEVICE uint32_t share(uint32_t worker, uint32_t workers) const {
    return all_ > worker ? (all_ - worker - 1) / workers + 1 : 0;
  }

  MSCCLGO_DEVICE Box box(uint32_t rank) const {
    return {boxes_.of<uint8_t>(rank), group_.size, table_.lanes};
  }
  MSCCLGO_DEVICE Box own() const { return box(group_.rank); }
  MSCCLGO_DEVICE Pair pairOf(const Task& t) const { return table_.pair(t.pair); }

  // storing returns how many lanes of a pair may store messages at their place: none of a receiving
  // pair.
  MSCCLGO_DEVICE uint32_t storing(const Pair& pair) const {
    if (!Places || pair.direction() == kReceives) return 0;
    const uint32_t lanes = pair.lanes(), most = table_.storing;
    return pair.direction() == kSends && most < lanes ? most : lanes;
  }

  // locate finds the pair and the lane of task i. Lanes that store come first, and pairs take turns: blocks
  // whose numbers follow each other share paths to the links, which are faster if they store to
  // different ranks.
  MSCCLGO_DEVICE void locate(uint32_t i, uint32_t& p, uint32_t& lane) const {
    for (uint32_t row = 0; Places;) {
      // All pairs that have lane `row` have those up to `end`.
      uint32_t count = 0, end = ~uint32_t(0);
      for (uint32_t q = 0; q < table_.pairs; ++q) {
        const uint32_t lanes = storing(table_.pair(q));
        if (lanes <= row) continue;
        ++count;
        if (lanes < end) end = lanes;
      }
      if (count == 0) break;
      if (i < (end - row) * count) {
        lane = row + i / count;
        uint32_t before = i % count;
        for (p = 0; storing(table_.pair(p)) <= lane || before-- > 0;) ++p;
        return;
      }
      i -= (end - row) * count;
      row = end;
    }
    for (p = 0;; ++p) {
      const Pair pair = table_.pair(p);
      const uint32_t first = storing(pair), lanes = pair.lanes() - first;
      lane = first + i;
      if (i < lanes) return;
      i -= lanes;
    }
  }

  // place finds the worker's task t, by the table alone. One thread calls it, and then begin().
  MSCCLGO_DEVICE void place(Task& task, uint32_t t) const {
    uint32_t p, lane;
    locate(number() + t * workers(), p, lane);
    const Pair pair = table_.pair(p);
    task = {};
    task.pair = uint16_t(p), task.lane = uint8_t(lane);
    if (isNear(pair)) {
      // The receiver has the ring, and writes to the sender how many slots it has emptied.
      bool sends = pair.direction() == kSends;
      Box receivers = box(sends ? pair.peer() : group_.rank),
          senders = box(sends ? group_.rank : pair.peer());
      task.ring = receivers.ring(sends ? group_.rank : pair.peer(), lane);
      task.heads = receivers.heads(task.ring), task.packets = receivers.packets(task.ring);
      task.emptied = senders.emptied(senders.ring(sends ? pair.peer() : group_.rank, lane));
    }
    find(task, pair);
  }

  // learn reads how far the task's lane and pair are, in boxes. One thread calls it.
  MSCCLGO_DEVICE void learn(Task& task, const Pair& pair, uint64_t launch) const {
    // All loads before the first store to the task: a load after it would wait.
    bool sends = pair.direction() == kSends;
    const uint64_t* other = sends ? task.emptied : own().copied(own().ring(pair.peer(), task.lane));
    uint64_t chunk = *done(task, pair), seen = load<Scope::System, Order::Relaxed>(other);
    uint64_t number = own().numberNow(launch, pair.direction(), pair.peer());
    task.chunk = chunk, task.number = number, task.seen = seen;
    if (sends) return;
    task.packed = uint8_t(chunk - seen < kSlots ? chunk - seen : kSlots);
    // A brief task did not give back its slot, see end(). Its kernel has ended (awaitPrevious), and
    // so have its loads.
    if (task.packed > 0) giveBack(task, chunk);
  }

  // begin reads how far the task's lane and pair are.
  MSCCLGO_DEVICE void begin(Task& task, uint64_t launch) const {
    const Pair pair = pairOf(task);
    if (isNear(pair)) {
      learn(task, pair, launch);
      const bool sends = pair.direction() == kSends;
      // The peer has read the slots that it has emptied.
      if (sends) fence<Scope::System, Order::Acquire>();
      task.ready = sends && hasRoom(task);
      open(task, pair, false);
    } else if constexpr (Reach::kFar) {
      if (pair.far()) {
        task.chunk = reach_.chunks(pair);
        task.number = *reach_.number(pair);
      }
    }
    if (task.message == pair.messages()) task.ready = false, end(task, pair);
  }

  // done returns the count of chunks of a lane to or from the peer, in the task's direction.
  MSCCLGO_DEVICE uint64_t* done(const Task& task, const Pair& pair) const {
    uint32_t ring = own().ring(pair.peer(), task.lane);
    return pair.direction() == kSends ? own().sent(ring) : own().received(ring);
  }

  // hasRoom reports whether a slot to send by was free at the last look.
  MSCCLGO_DEVICE static bool hasRoom(const Task& task) {
    return int64_t(task.chunk - task.seen) < int64_t(kSlots);
  }

  // find goes on to the next message with a lot for the lane. One thread calls it.
  MSCCLGO_DEVICE void find(Task& task, const Pair& pair) const {
    for (; task.message < pair.messages(); ++task.message) {
      task.step = 0;
      const uint64_t bytes = messageOf(task).bytes();
      task.lot = lotOf(pair, bytes, task.lane);
      if (Places) task.stage = isLarge(pair, bytes) ? kCall : kChunks;
      if (task.lot.chunks(task.lane) > 0) return;
    }
  }

  // isLarge reports whether a message of a pair is large.
  MSCCLGO_DEVICE bool isLarge(const Pair& pair, uint64_t bytes) const {
    return Places && isNear(pair) && bytes > table_.large;
  }

  // open begins the task's message if that is large. For a send it announces the first chunk, if
  // there is room. For a receive it makes the offer, unless that was made ahead, and offers the
  // place of the next message too, so that the sender goes on without a trip between them. One
  // thread calls it.
  MSCCLGO_DEVICE void open(Task& task, const Pair& pair, bool ahead) const {
    if (!Places || task.message == pair.messages() || task.stage != kCall) return;
    if (pair.direction() == kSends) {
      if (hasRoom(task)) call(task);
      task.ready = false;
      return;
    }
    if (!ahead) offer(task, pair, task.message);
    const uint32_t next = task.message + 1;
    if (next == pair.messages()) return;
    const uint64_t bytes = messageOf(pair, next).bytes();
    if (isLarge(pair, bytes) && lotOf(pair, bytes, task.lane).chunks(task.lane) > 0) offer(task, pair, next);
  }

  // call announces the first chunk of a large message. One thread calls it.
  MSCCLGO_DEVICE void call(Task& task) const {
    announce(task, headOf(task, messageOf(task)));
    ++task.chunk;
    task.stage = kAwaitOffer;
  }

  // offer offers the sender the place of message i of the pair, or says that there is none. One
  // thread calls it, when the task is done with message i - 2. It releases nothing: kernels that
  // have read the place have ended, and this one does not read it.
  MSCCLGO_DEVICE void offer(const Task& task, const Pair& pair, uint32_t i) const {
    const Message& message = messageOf(pair, i);
    const Box senders = box(pair.peer());
    const uint64_t number = task.number + i;
    LL16Packet* packets = senders.offer(senders.ring(group_.rank, task.lane), number);
    const uint64_t words[kOffer] = {headOf(number, message), reinterpret_cast<uint64_t>(placeOf(message))};
#pragma unroll
    for (uint32_t k = 0; k < kOffer; ++k)
      packets[k].write(make_uint2(uint32_t(words[k]), uint32_t(words[k] >> 32)), flagOf(number));
  }

  // placeOf returns the sender's address of the place of a message that this rank receives, or
  // null.
  MSCCLGO_DEVICE static uint8_t* placeOf(const Message& message) { return (&message)[1].at; }

  // offerFor is the peer's offer for the message that the task sends.
  MSCCLGO_DEVICE LL16Packet* offerFor(const Task& task, const Pair& pair) const {
    return own().offer(own().ring(pair.peer(), task.lane), task.number + task.message);
  }

  // empty empties the task's offer. One thread calls it, and later announces a chunk after a
  // release.
  MSCCLGO_DEVICE void empty(const Task& task, const Pair& pair) const {
    uint64_t* words = offerFor(task, pair)->words;
    for (uint32_t k = 0; k < kOffer * 2; ++k) store<Scope::System, Order::Relaxed>(words + k, uint64_t(0));
  }

  // decided reports whether the peer has offered a place for the task's message, or said that there
  // is none. If the peer expects another message it reports that itself, and nothing is stored. One
  // thread calls it.
  MSCCLGO_DEVICE bool decided(Task& task, const Pair& pair) const {
    const LL16Packet* packets = offerFor(task, pair);
    const uint32_t flag = flagOf(task.number + task.message);
    uint2 words[kOffer];
    bool there = true;
#pragma unroll
    for (uint32_t k = 0; k < kOffer; ++k) there = packets[k].tryRead(flag, words[k]) && there;
    if (!there) return false;
    const uint64_t head = uint64_t(words[0].y) << 32 | words[0].x;
    uint8_t* place = reinterpret_cast<uint8_t*>(uint64_t(words[1].y) << 32 | words[1].x);
    if (head != headOf(task, messageOf(task))) {
      task.stuck = true;
      return false;
    }
    if (place == nullptr) {
      task.stage = kChunks;
      empty(task, pair);
    } else {
      task.stage = kPlace;
      task.place = place;
    }
    return true;
  }

  // end stores the counts of a task. One thread calls it.
  MSCCLGO_DEVICE void end(const Task& task, const Pair& pair) const {
    if constexpr (Reach::kFar) {
      if (pair.far()) {
        *reach_.number(pair) = task.number + pair.messages();
        return;
      }
    }
    if (!isNear(pair)) return;
    *done(task, pair) = task.chunk;
    if (pair.direction() == kReceives)
      *own().copied(own().ring(pair.peer(), task.lane)) = task.chunk - task.packed;
  }

  // advance ends a chunk. One thread calls it.
  MSCCLGO_DEVICE void advance(Task& task) const {
    ++task.chunk;
    if (++task.step < task.lot.chunks(task.lane)) return;
    next(task);
  }

  // next goes on to the next message, when a task is done with one. One thread calls it.
  MSCCLGO_DEVICE void next(Task& task) const {
    const Pair pair = pairOf(task);
    const bool large = Places && isLarge(pair, messageOf(task).bytes());
    const uint32_t following = ++task.message;
    find(task, pair);
    open(task, pair, large && task.message == following);
    if (task.message == pair.messages()) end(task, pair);
  }

  MSCCLGO_DEVICE const Message& messageOf(const Task& task) const {
    return messageOf(pairOf(task), task.message);
  }
  MSCCLGO_DEVICE const Message& messageOf(const Pair& pair, uint32_t i) const {
    uint32_t each = pair.direction() == kKeeps || (Places && pair.direction() == kReceives) ? 2 : 1;
    return table_.message(pair.first() + i * each);
  }

  MSCCLGO_DEVICE bool packed(uint64_t bytes) const { return bytes <= table_.small; }

  // lotOf divides a message among the lanes, by its size alone, so that both ends agree.
  MSCCLGO_DEVICE Lot lotOf(const Pair& pair, uint64_t bytes, uint32_t lane) const {
    if constexpr (Reach::kFar) {
      if (pair.far()) return reach_.lot(bytes);
    }
    constexpr uint32_t kPieces = 4;
    bool packets = packed(bytes);
    uint32_t lines = uint32_t(divideUp(bytes, kLine));
    uint32_t leastLot = uint32_t(packets ? table_.leastLots >> 32 : table_.leastLots) / kLine;
    constexpr uint32_t kPacketLines = kPacketSlot / sizeof(Packet) * Piece<Packet>::kPayload / kLine;
    uint32_t most = packets ? kPacketLines : uint32_t(table_.slotBytes / kLine);
    uint32_t used = (lines + leastLot - 1) / leastLot;
    uint32_t lanes = pair.direction() == kKeeps ? pair.lanes() : table_.most;
    if (used > lanes) used = lanes;
    if (used == 0) used = 1;
    uint32_t share = (lines + used - 1) / used, piece = packets ? share : (share + kPieces - 1) / kPieces;
    uint32_t least = leastLot / 2 < most ? leastLot / 2 : most;
    if (piece < least) piece = least;
    if (piece == 0) piece = 1;
    if (piece > most) {
      const uint32_t pieces = (share + most - 1) / most;
      piece = packets ? (share + pieces - 1) / pieces : most;
    }
    uint64_t from = uint64_t(lane) * share;
    if (from >= lines) return {0, 0, piece};
    return {uint32_t(from), share < lines - uint32_t(from) ? uint32_t(from) + share : lines, piece};
  }

  // poll waits until a task is ready, or all are done. A warp calls it together. Each of its lanes
  // looks at tasks of its own, in every call.
  MSCCLGO_DEVICE uint32_t poll() const {
    uint32_t state = kEnded;
    Watch watch = group_.watch;
    WaitResult result = waitTogether<32>(watch, [&] {
      uint32_t pending = ~uint32_t(0);
      bool ready = false;
      for (uint32_t t = Threads::thread(); t < count_; t += 32) {
        Task& task = tasks_[t];
        const Pair pair = pairOf(task);
        task.ready = task.message < pair.messages() && !task.stuck && isReady(task, pair);
        bool done = task.message == pair.messages();
        ready = ready || task.ready;
        if (!task.ready && !(done && isOver(task, pair))) pending = rankOf(pair);
      }
      if (__any_sync(0xffffffffu, ready)) {
        state = kReady;
        return true;
      }
      uint32_t waiting = __ballot_sync(0xffffffffu, pending != ~uint32_t(0));
      if (waiting == 0) return true;
      watch.peer = __shfl_sync(0xffffffffu, pending, __ffs(int(waiting)) - 1);
      return false;
    });
    return result == WaitResult::Done ? state : uint32_t(kFailed);
  }

  // isOver reports whether a task whose chunks are done has nothing left to wait for: a send to
  // another host may wait for answers.
  MSCCLGO_DEVICE bool isOver(const Task& task, const Pair& pair) const {
    if constexpr (Reach::kFar)
      return !pair.far() || pair.direction() != kSends || reach_.answered(pair, task.chunk, 0);
    return true;
  }

  // isReady reports whether the task's next chunk can be sent, or is there. The peer's earlier work
  // is then visible to the thread (acquire at system scope), but not for a send in kPlace.
  MSCCLGO_DEVICE bool isReady(Task& task, const Pair& pair) const {
    if (pair.direction() == kKeeps) return true;
    if constexpr (Reach::kFar) {
      if (pair.far())
        return pair.direction() == kSends ? reach_.answered(pair, task.chunk, Posts::kPosts - 1)
                                          : reach_.arrived(pair, task.chunk, task.seen);
    }
    if (pair.direction() == kSends) {
      if constexpr (Places) {
        if (task.stage == kAwaitOffer && !(hasRoom(task) && decided(task, pair))) {
          if (!hasRoom(task)) task.seen = load<Scope::System, Order::Relaxed>(task.emptied);
          return false;
        }
        // There is room for its last chunk still. No fence: the peer orders nothing before its
        // offer (see offer()), no slot is written, and the last head is announced after a fence,
        // whatever the load of the count acquired.
        if (task.stage == kPlace) return true;
      }
      if (!hasRoom(task)) task.seen = load<Scope::System, Order::Relaxed>(task.emptied);
      if (!hasRoom(task)) return false;
    } else {
      if (!arrived(task)) return false;
      if constexpr (Places) {
        if (task.stage != kChunks && !hear(task, pair)) return false;
      }
    }
    fence<Scope::System, Order::Acquire>();
    return true;
  }

  // arrived reports whether the head of the task's next chunk is there, and keeps it.
  MSCCLGO_DEVICE static bool arrived(Task& task) {
    uint2 head;
    if (!task.heads[task.chunk % kSlots].tryRead(flagOf(task.chunk), head)) return false;
    task.seen = uint64_t(head.y) << 32 | head.x;
    return true;
  }

  // hear ends chunks of large messages that are a head without data. One has arrived; the worker's
  // other threads have nothing to do for it. It reports whether the next chunk is there and is for
  // step(). One thread calls it.
  MSCCLGO_DEVICE bool hear(Task& task, const Pair& pair) const {
    do {
      if (task.seen != headOf(task, messageOf(task)) || isLast(task.chunk)) return true;
      // The thread acquires what the peer has stored in the message's place.
      if (task.stage == kPlace) fence<Scope::System, Order::Acquire>();
      heard(task, false);
      if (task.message == pair.messages() || !arrived(task)) return false;
    } while (task.stage != kChunks);
    return true;
  }

  // heard ends a chunk that is a head without data; cleared says whether its slot was cleared. One
  // thread calls it.
  MSCCLGO_DEVICE void heard(Task& task, bool cleared) const {
    // Nothing was read from the slot, so it is given back like a slot of packets: there is no load
    // that a peer's store could overtake. Slots that were read before were given back by a release.
    if (cleared) {
      task.packed = 0;
    } else if (task.packed < kSlots) {
      ++task.packed;
    }
    giveBack(task, ++task.chunk);
    if (task.stage == kPlace) {
      next(task);
    } else {
      task.stage = placeOf(messageOf(task)) != nullptr ? kPlace : kChunks;
    }
  }

  // Part is the data of a chunk.
  struct Part {
    uint8_t* at;
    uint64_t bytes;
  };

  // partOf returns the part of a task's next chunk.
  MSCCLGO_DEVICE static Part partOf(const Task& task, const Message& message) {
    uint64_t from = (task.lot.from + uint64_t(task.step) * task.lot.piece) * kLine;
    uint64_t end = from + task.lot.piece * kLine;
    if (end > task.lot.to * kLine) end = task.lot.to * kLine;
    if (end > message.bytes()) end = message.bytes();  // the last line is not whole
    return {message.at + from, end - from};
  }

  // headOf returns the head of a message's chunks: the low bits of its number in the pair, then its
  // type and bytes.
  MSCCLGO_DEVICE static uint64_t headOf(const Task& task, const Message& message) {
    return headOf(task.number + task.message, message);
  }
  MSCCLGO_DEVICE static uint64_t headOf(uint64_t number, const Message& message) {
    return number << Elements::kBits | message.what;
  }

  // step does a chunk. All of the worker's threads call it. It is false if a wait failed. Its parts
  // end with a barrier; after that only the first thread looks at the task.
  MSCCLGO_DEVICE bool step(Task& task) const {
    const Message& message = messageOf(task);
    if constexpr (Places) {
      if (task.stage != kChunks) return stepLarge(task, message);
    }
    const Part part = partOf(task, message);
    bool ok = true;
    switch (pairOf(task).direction()) {
      case kSends:
        ok = send(task, message, part.at, part.bytes);
        break;
      case kReceives:
        if (task.seen != headOf(task, message)) return mismatch(task, message);
        ok = receive(task, message, part.at, part.bytes);
        break;
      default: {
        uint8_t* place = (&message)[1].at + (part.at - message.at);
        if (place != part.at) copy(place, part.at, part.bytes, Threads::thread(), Threads::threads());
        Threads::sync();
      }
    }
    if (Threads::thread() == 0) advance(task);
    return ok;
  }

  // stepLarge is step for a large message not by slots, or not yet.
  MSCCLGO_DEVICE bool stepLarge(Task& task, const Message& message) const {
    const Pair pair = pairOf(task);
    if (pair.direction() == kReceives) {
      if (task.seen != headOf(task, message)) return mismatch(task, message);
      // The chunk has nothing in its slot, but old packets may be there.
      const bool cleared = clear(task.chunk, packets(task));
      Threads::sync();
      if (Threads::thread() == 0) heard(task, cleared);
      return true;
    }
    if (task.stage == kCall) {
      Threads::sync();
      if (Threads::thread() == 0) call(task);
      return true;
    }
    const bool last = storePiece(task, pair, message);
    Threads::sync();
    if (Threads::thread() == 0) {
      ++task.step;
      if (last) {
        empty(task, pair);
        fence<Scope::System, Order::Release>();
        announce(task, headOf(task, message));
        ++task.chunk;
        task.packets = box(pair.peer()).packets(task.ring);
        next(task);
      }
    }
    return true;
  }

  // storePiece stores the task's next piece of a message in the place that the peer has offered,
  // and reports whether it was the last one. All of the worker's threads call it. The lanes of a
  // pair go through the message together: they store words of the same stretch in turn. Links are
  // faster so than with a stretch for each lane.
  __device__ __noinline__ bool storePiece(const Task& task, const Pair& pair, const Message& message) const {
    const uint64_t bytes = message.bytes();
    // The lanes with lots. All lots but the last are as long as the first.
    const Lot first = lotOf(pair, bytes, 0);
    uint32_t lanes = (uint32_t(divideUp(bytes, kLine)) + first.to - 1) / first.to;
    if (lanes > table_.storing) lanes = table_.storing;
    if (task.lane >= lanes) return true;
    const uint64_t stretch = lanes * table_.piece, from = task.step * stretch;
    const bool last = bytes - from <= stretch;
    copy(task.place + from, message.at + from, last ? bytes - from : stretch,
         task.lane * Threads::threads() + Threads::thread(), lanes * Threads::threads());
    return last;
  }

  // send writes a chunk to the peer's box, or has the host send it to another host. It is false if
  // the group has failed. In a box the head goes before packets, and the receiver then waits for
  // these stores alone. It goes after other data, and releases at system scope.
  MSCCLGO_DEVICE bool send(const Task& task, const Message& message, const uint8_t* src, uint64_t n) const {
    if constexpr (Reach::kFar) {
      if (pairOf(task).far())
        return reach_.hosts.posts.template put<Threads>(pairOf(task).peer(), task.chunk,
                                                        headOf(task, message), 0, src, n);
    }
    uint32_t thread = Threads::thread(), threads = Threads::threads(), flag = flagOf(task.chunk);
    uint64_t head = headOf(task, message);
    if (packed(message.bytes())) {
      if (thread == 0) announce(task, head);
      putPackets(reinterpret_cast<Packet*>(packets(task)), src, n, thread, threads, flag);
      Threads::sync();
      return true;
    }
    copy(bytes(box(pairOf(task).peer()), task), src, n, thread, threads);
    Threads::sync();
    if (thread == 0) {
      fence<Scope::System, Order::Release>();
      announce(task, head);
    }
    return true;
  }

  // announce writes the head of a task's chunk.
  MSCCLGO_DEVICE static void announce(const Task& task, uint64_t head) {
    task.heads[task.chunk % kSlots].write(make_uint2(uint32_t(head), uint32_t(head >> 32)),
                                          flagOf(task.chunk));
  }

  // packets returns the slot of the task's chunk for packets, and bytes the slot for other data, in
  // the receiver's box.
  MSCCLGO_DEVICE static uint8_t* packets(const Task& task) {
    return task.packets + task.chunk % kSlots * kPacketSlot;
  }
  MSCCLGO_DEVICE uint8_t* bytes(const Box& receivers, const Task& task) const {
    return receivers.bytes(task.ring, table_.slotBytes) + task.chunk % kSlots * table_.slotBytes;
  }

  // receive copies a chunk from this rank's box, or its post, to its place, and then gives the slot
  // back. It is false if a wait failed.
  MSCCLGO_DEVICE bool receive(Task& task, const Message& message, uint8_t* dst, uint64_t n) const {
    if constexpr (Reach::kFar) {
      if (pairOf(task).far())
        return reach_.hosts.posts.template take<Threads>(pairOf(task).peer(), task.chunk, dst, n);
    }
    uint32_t peer = pairOf(task).peer(), thread = Threads::thread(), threads = Threads::threads();
    const uint64_t chunk = task.chunk;  // the first thread may go on to the next
    uint8_t* packets = this->packets(task);
    bool ok = true;
    if (packed(message.bytes())) {
      Watch watch = group_.watch;
      watch.peer = reach_.rankOf(peer);
      ok = unpackPackets(dst, reinterpret_cast<const Packet*>(packets), n, thread, threads, flagOf(chunk),
                         watch) == WaitResult::Done;
    } else {
      copy(dst, bytes(own(), task), n, thread, threads);
    }
    ok = Threads::all(ok);
    bool cleared = clear(chunk, packets);
    if (thread != 0 || !ok) return ok;
    if (!packed(message.bytes()) || cleared) {
      task.packed = 0;
    } else if (task.packed < kSlots) {
      ++task.packed;
    }
    giveBack(task, chunk + 1);
    return ok;
  }

  // giveBack gives the slots of the chunks before this one back to the sender. One thread calls it,
  // when task.packed counts the chunks of packets or heads alone up to there.
  MSCCLGO_DEVICE static void giveBack(const Task& task, uint64_t chunk) {
    if (task.packed == kSlots) {
      // Each thread has branched on the flags of its packets, which its loads returned with the
      // data, and a barrier or the end of a kernel has come after. GPUs do not store ahead of a
      // branch, though PTX's memory model alone does not promise it. So all loads are done, and the
      // peer can overwrite nothing that is still to be read. A fence would wait for the copy to dst
      // as well. The peer may see this count and none before, so the chunks in all slots were
      // packets, or heads alone.
      store<Scope::System, Order::Relaxed>(task.emptied, chunk);
    } else {
      store<Scope::System, Order::Release>(task.emptied, chunk);
    }
  }

  // isLast reports whether a chunk is the last one of its slot before the flags repeat.
  MSCCLGO_DEVICE static bool isLast(uint64_t chunk) { return chunk % kFlags >= kFlags - kSlots; }

  // clear empties a slot before the flags repeat, as an old packet would pass for a new one. It
  // reports whether it has.
  MSCCLGO_DEVICE bool clear(uint64_t chunk, uint8_t* slot) const {
    if (!isLast(chunk)) return false;
    for (uint32_t i = Threads::thread(); i < kPacketSlot / 8; i += Threads::threads())
      store<Scope::System, Order::Relaxed>(reinterpret_cast<uint64_t*>(slot) + i, uint64_t(0));
    Threads::sync();
    return true;
  }

  // mismatch reports that the peer sends other data than this rank receives, before anything is
  // written. If sizes differ, lanes but the first may see another message than theirs; then the
  // first lane sees the mismatch too.
  MSCCLGO_DEVICE bool mismatch(Task& task, const Message& message) const {
    if (Threads::thread() == 0) {
      task.stuck = true;
      if ((task.seen ^ headOf(task, message)) >> Elements::kBits == 0) tell(task, message);
    }
    Threads::sync();
    return true;
  }
  __device__ __noinline__ void tell(const Task& task, const Message& message) const {
    uint32_t peer = rankOf(pairOf(task));
    Elements theirs{task.seen & ((uint64_t(1) << Elements::kBits) - 1)}, mine{message.what};
    // By a call of all ranks and by a group, messages do not match even if they are alike.
    auto by = [&](const Elements& e) {
      return theirs.ofAll() == mine.ofAll() ? "" : e.ofAll() ? " in a call of all ranks" : " in a group";
    };
    detail::reportOnce(own().reported(), group_.watch.status, peer, "rank ", peer, " sends ", theirs.count(),
                       " ", theirs.type(), by(theirs), " to rank ", reach_.rankOf(group_.rank),
                       ", which receives ", mine.count(), " ", mine.type(), by(mine), " (message ",
                       task.number + task.message, " from rank ", peer, ")");
  }

  // isNear reports whether a pair's messages go through boxes, and isFar whether they go through
  // posts. On one host the compiler knows that isFar is false.
  MSCCLGO_DEVICE static bool isNear(const Pair& pair) { return pair.direction() != kKeeps && !isFar(pair); }
  MSCCLGO_DEVICE static bool isFar(const Pair& pair) { return Reach::kFar && pair.far(); }
  // rankOf returns the peer of a pair as a rank of the whole group.
  MSCCLGO_DEVICE uint32_t rankOf(const Pair& pair) const {
    return isFar(pair) ? pair.peer() : reach_.rankOf(pair.peer());
  }

  const GroupHandle& group_;
  const PeerMemory& boxes_;
  const Table& table_;
  const Reach reach_;
  Task* tasks_;      // of this worker
  uint32_t* state_;  // what poll() found
  uint32_t count_, all_ = 0;
};

// Calls exchanges and counts the messages of this kernel between the ranks of a host. A send ends
// only when the peer has called for its message, so a send without a receive ends by the deadline.
// This costs no extra trip if ranks send to each other. Ranks on other hosts answer each chunk, and
// tasks count their messages. The threads of the first block make an object and call it.
template <class Reach>
class Calls {
 public:
  MSCCLGO_DEVICE Calls(const GroupHandle& group, const PeerMemory& boxes, const Table& table,
                       const Reach& reach, Tasks& tasks, uint64_t launch)
      : group_(group), boxes_(boxes), table_(table), reach_(reach), tasks_(tasks), launch_(launch) {}

  // begin writes to the peers how many messages this rank receives.
  MSCCLGO_DEVICE void begin() const {
    forPairs([&](uint32_t p, const Pair& pair) {
      uint64_t all = own().numberNow(launch_, pair.direction(), pair.peer()) + pair.messages();
      tasks_.count[p] = all;
      if (pair.direction() == kReceives)
        store<Scope::System, Order::Relaxed>(box(pair.peer()).awaited(group_.rank), all);
    });
    // The next launch's counts; end() changes the pairs' ones.
    for (uint32_t i = blockDim.x - 1 - threadIdx.x; i < 2 * group_.size; i += blockDim.x)
      store<Scope::Device, Order::Relaxed>(own().number(launch_ + 1, 0, i), own().numberNow(launch_, 0, i));
  }

  // matched waits until the peers have called for all that this rank sends. Each thread gets its
  // own result.
  MSCCLGO_DEVICE bool matched() const {
    bool ok = true;
    forPairs([&](uint32_t p, const Pair& pair) {
      if (pair.direction() != kSends) return;
      Watch watch = group_.watch;
      watch.peer = reach_.rankOf(pair.peer());
      const uint64_t *awaited = own().awaited(pair.peer()), all = tasks_.count[p];
      if (waitUntil(watch, [&] {
            return int64_t(load<Scope::System, Order::Relaxed>(awaited) - all) >= 0;
          }) != WaitResult::Done)
        ok = false;
    });
    return ok;
  }

  // end counts the messages, after a barrier.
  MSCCLGO_DEVICE void end() const {
    forPairs([&](uint32_t p, const Pair& pair) {
      store<Scope::Device, Order::Relaxed>(own().number(launch_ + 1, pair.direction(), pair.peer()),
                                           tasks_.count[p]);
    });
  }

 private:
  // forPairs calls use(p, pair) for each pair of ranks of this host, by the last threads, since the first
  // ones have more to do.
  template <class Use>
  MSCCLGO_DEVICE void forPairs(Use use) const {
    for (uint32_t p = blockDim.x - 1 - threadIdx.x; p < table_.pairs; p += blockDim.x) {
      const Pair pair = table_.pair(p);
      if (pair.direction() != kKeeps && !(Reach::kFar && pair.far())) use(p, pair);
    }
  }

  MSCCLGO_DEVICE Box box(uint32_t rank) const {
    return {boxes_.of<uint8_t>(rank), group_.size, table_.lanes};
  }
  MSCCLGO_DEVICE Box own() const { return box(group_.rank); }

  const GroupHandle& group_;
  const PeerMemory& boxes_;
  const Table& table_;
  const Reach reach_;
  Tasks& tasks_;
  const uint64_t launch_;
};

template <class Threads, class Packet, bool Places, class Reach>
MSCCLGO_DEVICE void group(const GroupHandle& group, const PeerMemory& boxes, const Table& table,
                          const Reach& reach) {
  __shared__ Tasks tasks;
  // The parameters are read while the kernel before ends.
  if (table.more != nullptr) awaitPrevious();
  Worker<Threads, Packet, Reach, Places> worker(group, boxes, table, reach, tasks);
  auto brief = worker.brief();
  Box own{boxes.of<uint8_t>(group.rank), group.size, table.lanes};
  awaitPrevious();
  uint64_t launch = own.launches()[blockIdx.x];
  Calls<Reach> calls(group, boxes, table, reach, tasks, launch);
  if (blockIdx.x == 0) calls.begin();
  bool done = false;
  if (brief.is) {
    auto outcome = worker.exchange(brief, launch);
    // matched() comes after the sends: a peer may call for messages only then.
    bool ok = outcome != worker.kBroken && (outcome != worker.kDone || blockIdx.x != 0 || calls.matched());
    done = blockAll(ok && outcome == worker.kDone);
    if (!done && !blockAll(ok)) return;
  }
  if (done) {
    if (threadIdx.x == 0) worker.end();
  } else {
    bool ok = worker.run(launch);
    if (blockIdx.x == 0 && ok) ok = calls.matched();
    if (!blockAll(ok)) return;
  }
  if (blockIdx.x == 0) calls.end();
  // Every block counts the launch, also for blocks that were not launched.
  for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kMaxBlocks; b += blockDim.x * gridDim.x)
    own.launches()[b] = launch + 1;
}

}  // namespace

// storeMessages writes messages to device memory that do not fit the parameters of a group's
// kernel. That kernel comes next in the stream, and so sees them. One block of any threads.
extern "C" __global__ void storeMessages(__grid_constant__ const Some some) {
  for (uint32_t i = threadIdx.x; i < some.count; i += blockDim.x) some.to[i] = some.messages[i];
}

// boxes holds each rank's box, of zeros before its first kernel. Ranks of a host agree on the
// packets and on the table's numbers, except its messages. They may have different numbers of
// blocks and of threads, in whole warps. Kernels of one rank follow each other.
#define PARAMETERS                                                                      \
  __grid_constant__ const GroupHandle handle, __grid_constant__ const PeerMemory boxes, \
      __grid_constant__ const Table table

// The workers are blocks, or warps; packets are LL16 or LL128. If a message between ranks of a host
// is large, its two ranks launch the kernel with places; its workers are blocks.
#if !defined(SEVERAL_HOSTS) && !defined(ONLY_LL128)
extern "C" __global__ void __launch_bounds__(1024, 1) blocksLL16(PARAMETERS) {
  group<BlockThreads, LL16Packet, false>(handle, boxes, table, Near{});
}
extern "C" __global__ void __launch_bounds__(1024, 1) placesLL16(PARAMETERS) {
  group<BlockThreads, LL16Packet, true>(handle, boxes, table, Near{});
}
extern "C" __global__ void __launch_bounds__(512, 1) warpsLL16(PARAMETERS) {
  group<WarpThreads, LL16Packet, false>(handle, boxes, table, Near{});
}
#endif
#if !defined(SEVERAL_HOSTS) && !defined(ONLY_LL16)
extern "C" __global__ void __launch_bounds__(1024, 1) blocksLL128(PARAMETERS) {
  group<BlockThreads, LL128Packet, false>(handle, boxes, table, Near{});
}
extern "C" __global__ void __launch_bounds__(1024, 1) placesLL128(PARAMETERS) {
  group<BlockThreads, LL128Packet, true>(handle, boxes, table, Near{});
}
extern "C" __global__ void __launch_bounds__(512, 1) warpsLL128(PARAMETERS) {
  group<WarpThreads, LL128Packet, false>(handle, boxes, table, Near{});
}
#endif

// These are for ranks on several hosts: handle and boxes are for the ranks of this rank's host, and
// ranks of different hosts agree on their posts.
#if !defined(ONE_HOST) && !defined(ONLY_LL128)
extern "C" __global__ void __launch_bounds__(1024, 1) hostsBlocksLL16(PARAMETERS, const Hosts* hosts) {
  group<BlockThreads, LL16Packet, false>(handle, boxes, table, Far{*hosts});
}
extern "C" __global__ void __launch_bounds__(1024, 1) hostsPlacesLL16(PARAMETERS, const Hosts* hosts) {
  group<BlockThreads, LL16Packet, true>(handle, boxes, table, Far{*hosts});
}
extern "C" __global__ void __launch_bounds__(512, 1) hostsWarpsLL16(PARAMETERS, const Hosts* hosts) {
  group<WarpThreads, LL16Packet, false>(handle, boxes, table, Far{*hosts});
}
#endif
#if !defined(ONE_HOST) && !defined(ONLY_LL16)
extern "C" __global__ void __launch_bounds__(1024, 1) hostsBlocksLL128(PARAMETERS, const Hosts* hosts) {
  group<BlockThreads, LL128Packet, false>(handle, boxes, table, Far{*hosts});
}
extern "C" __global__ void __launch_bounds__(1024, 1) hostsPlacesLL128(PARAMETERS, const Hosts* hosts) {
  group<BlockThreads, LL128Packet, true>(handle, boxes, table, Far{*hosts});
}
extern "C" __global__ void __launch_bounds__(512, 1) hostsWarpsLL128(PARAMETERS, const Hosts* hosts) {
  group<WarpThreads, LL128Packet, false>(handle, boxes, table, Far{*hosts});
}
#endif
