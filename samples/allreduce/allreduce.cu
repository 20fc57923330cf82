// Three all-reduces, from the one with the least latency to the one that moves
// the fewest bytes. All reduce in the order of the ranks, so that every rank
// gets the same bits; all take any element count and alignment, in place or not.
#include <mscclgo/group.cuh>
#include <mscclgo/packet.cuh>
#include <mscclgo/reduce.cuh>

using namespace mscclgo;

namespace {

using Packet = LL16Packet;
using Word = Packet::Payload;  // what a packet carries, 8 bytes
using Line = uint4;            // what direct access moves, 16 bytes

MSCCLGO_DEVICE uint64_t firstThread() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
MSCCLGO_DEVICE uint64_t allThreads() { return uint64_t(gridDim.x) * blockDim.x; }
MSCCLGO_DEVICE uint64_t divideUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// inbox gives the packets that `from` has for `to`, in the half of the scratch
// that belongs to this call. Calls take the halves in turn, and that is safe: a
// result depends on all ranks, so whoever has finished a call knows that all
// ranks began it, and were through with the call before, whose half comes next.
MSCCLGO_DEVICE Packet* inbox(const GroupHandle& group, uint32_t to, uint32_t from, uint32_t epoch) {
  uint64_t half = group.scratchSize / 2 / sizeof(Packet) * sizeof(Packet);
  uint64_t slot = half / group.size / sizeof(Packet) * sizeof(Packet);
  return reinterpret_cast<Packet*>(group.scratch(to) + epoch % 2 * half + from * slot);
}

// send writes a word into an inbox of every peer. Each rank starts with another
// peer, so that no link is crowded.
MSCCLGO_DEVICE void sendToAll(const GroupHandle& group, uint32_t epoch, uint64_t index, Word word) {
  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;
    inbox(group, peer, group.rank, epoch)[index].write(word, epoch);
  }
}

// receive waits for a word from a peer.
MSCCLGO_DEVICE bool receive(const GroupHandle& group, uint32_t epoch, uint32_t peer, uint64_t index,
                            Word& word) {
  Watch watch = group.watch;
  watch.peer = peer;
  return read(inbox(group, group.rank, peer, epoch) + index, epoch, word, watch) == WaitResult::Done;
}

// receiveAndReduce reduces this rank's word with the peers' in rank order.
template <class T, class Op>
MSCCLGO_DEVICE bool receiveAndReduce(const GroupHandle& group, uint32_t epoch, uint64_t index, Word mine,
                                     Word& result) {
  Word word = mine;
  if (group.rank != 0 && !receive(group, epoch, 0, index, word)) return false;
  Reducer<T, Op, Word> sum(word);
  for (uint32_t rank = 1; rank < group.size; ++rank) {
    word = mine;
    if (rank != group.rank && !receive(group, epoch, rank, index, word)) return false;
    sum.add(word);
  }
  result = sum.get();
  return true;
}

// One shot: every rank sends all its data to all, and reduces all by itself.
// One trip over the links; (n - 1) times the data, twice, as packets are half
// flag. An inbox must hold all the data.
template <class T, class Op>
MSCCLGO_DEVICE void oneShot(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  uint32_t epoch = group.epoch();
  for (uint64_t i = firstThread(); i * sizeof(Word) < bytes; i += allThreads()) {
    uint64_t at = i * sizeof(Word);
    sendToAll(group, epoch, i, loadPartial<Word>(in + at, bytes - at));
  }
  for (uint64_t i = firstThread(); i * sizeof(Word) < bytes; i += allThreads()) {
    uint64_t at = i * sizeof(Word);
    Word result;
    if (!receiveAndReduce<T, Op>(group, epoch, i, loadPartial<Word>(in + at, bytes - at), result)) return;
    storePartial(out + at, result, bytes - at);
  }
  group.nextEpoch();
}

// Two shots: rank r reduces shard r of the data, which all send it, and sends
// the result to all. Two trips; 2 (n - 1) / n times the data, twice. An inbox
// must hold two shards: one that comes in to be reduced, one that is reduced.
// No barrier stands between the steps, since every packet says that it is there.
template <class T, class Op>
MSCCLGO_DEVICE void twoShot(const GroupHandle& group, const uint8_t* in, uint8_t* out, uint64_t bytes) {
  uint32_t epoch = group.epoch();
  uint64_t words = divideUp(bytes, sizeof(Word));
  uint64_t shard = divideUp(words, group.size);

  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;
    uint64_t first = peer * shard;
    for (uint64_t i = firstThread(); i < shard && first + i < words; i += allThreads()) {
      uint64_t at = (first + i) * sizeof(Word);
      inbox(group, peer, group.rank, epoch)[i].write(loadPartial<Word>(in + at, bytes - at), epoch);
    }
  }
  uint64_t first = group.rank * shard;
  for (uint64_t i = firstThread(); i < shard && first + i < words; i += allThreads()) {
    uint64_t at = (first + i) * sizeof(Word);
    Word result;
    if (!receiveAndReduce<T, Op>(group, epoch, i, loadPartial<Word>(in + at, bytes - at), result)) return;
    sendToAll(group, epoch, shard + i, result);
    storePartial(out + at, result, bytes - at);
  }
  for (uint32_t k = 1; k < group.size; ++k) {
    uint32_t peer = (group.rank + k) % group.size;
    uint64_t theirs = peer * shard;
    for (uint64_t i = firstThread(); i < shard && theirs + i < words; i += allThreads()) {
      uint64_t at = (theirs + i) * sizeof(Word);
      Word result;
      if (!receive(group, epoch, peer, shard + i, result)) return;
      storePartial(out + at, result, bytes - at);
    }
  }
  group.nextEpoch();
}

// Direct: rank r reads shard r of all inputs and writes the result into all
// outputs. 2 (n - 1) / n times the data and no flags, but two barriers. In
// place is safe: only rank r reads shard r of any input, each line before it
// writes that line.
template <class T, class Op>
MSCCLGO_DEVICE void direct(const GroupHandle& group, const PeerMemory& in, const PeerMemory& out,
                           uint64_t bytes) {
  if (group.barrier() != WaitResult::Done) return;  // all inputs are there
  uint64_t lines = divideUp(bytes, sizeof(Line));
  uint64_t shard = divideUp(lines, group.size);
  uint64_t first = group.rank * shard;
  for (uint64_t i = firstThread(); i < shard && first + i < lines; i += allThreads()) {
    uint64_t at = (first + i) * sizeof(Line);
    Reducer<T, Op, Line> sum(loadPartial<Line>(in.of<const uint8_t>(0) + at, bytes - at));
    for (uint32_t rank = 1; rank < group.size; ++rank) {
      sum.add(loadPartial<Line>(in.of<const uint8_t>(rank) + at, bytes - at));
    }
    Line result = sum.get();
    for (uint32_t k = 0; k < group.size; ++k) {
      uint32_t peer = (group.rank + k) % group.size;
      storePartial(out.of<uint8_t>(peer) + at, result, bytes - at);
    }
  }
  group.barrier();  // all outputs are there
}

}  // namespace

// The kernels: one for each algorithm, element type and operation, such as
// oneShot_f16_sum. in and out hold each rank's buffers; count is in elements.
#define PARAMETERS                                                                  \
  __grid_constant__ const GroupHandle group, __grid_constant__ const PeerMemory in, \
      __grid_constant__ const PeerMemory out, uint64_t count
#define KERNELS(type, T, op, Op)                                                                             \
  extern "C" __global__ void oneShot_##type##_##op(PARAMETERS) {                                             \
    oneShot<T, Op>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), count * sizeof(T)); \
  }                                                                                                          \
  extern "C" __global__ void twoShot_##type##_##op(PARAMETERS) {                                             \
    twoShot<T, Op>(group, in.of<const uint8_t>(group.rank), out.of<uint8_t>(group.rank), count * sizeof(T)); \
  }                                                                                                          \
  extern "C" __global__ void direct_##type##_##op(PARAMETERS) {                                              \
    direct<T, Op>(group, in, out, count * sizeof(T));                                                        \
  }
#define KERNELS_OF_TYPE(type, T) \
  KERNELS(type, T, sum, Sum)     \
  KERNELS(type, T, max, Max)     \
  KERNELS(type, T, min, Min)

KERNELS_OF_TYPE(f32, float)
KERNELS_OF_TYPE(f16, __half)
KERNELS_OF_TYPE(bf16, __nv_bfloat16)
KERNELS_OF_TYPE(i32, int32_t)
