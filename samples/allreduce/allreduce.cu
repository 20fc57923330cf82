// Four all-reduces as textbooks have them: oneShot, twoShot, ring and hier.
//
// ELEMENT and OPERATION are set when this is compiled. Buffers are taken as words of 16
// bytes: they start at a multiple of 16 and hold whole words, of which the last elements
// may mean nothing. The input may be the output.
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>
#include <mscclgo/reduce.cuh>

#ifndef ELEMENT
#define ELEMENT float
#define OPERATION Sum
#endif

using namespace mscclgo;

using Word = uint4;
using WordReducer = Reducer<ELEMENT, OPERATION, Word>;

// Range is of words.
struct Range {
  uint64_t first, last;
};

// partOf returns part i of a range cut into n parts of one size, the last ones smaller.
MSCCLGO_DEVICE Range partOf(Range whole, uint32_t i, uint32_t n) {
  uint64_t words = whole.last - whole.first, each = (words + n - 1) / n;
  uint64_t first = i * each < words ? i * each : words;
  uint64_t last = first + each < words ? first + each : words;
  return {whole.first + first, whole.first + last};
}

// meet waits until the blocks of this number on all ranks are here, and sees what they
// did before. peers holds a channel to each rank, this one included. All threads.
MSCCLGO_DEVICE bool meet(const MemoryChannelHandle* peers, uint32_t ranks) {
  __syncthreads();  // all threads are done before one signals
  bool ok = true;
  for (uint32_t r = threadIdx.x; r < ranks; r += blockDim.x) peers[r].signal();
  for (uint32_t r = threadIdx.x; r < ranks && ok; r += blockDim.x) ok = peers[r].wait() == WaitResult::Done;
  return blockAll(ok);
}

// One shot: every rank sends all its data to all others, as packets, and adds up what
// arrives. One trip between GPUs, and no barrier: for small sizes.
// LL16 packets carry 8 bytes.
using Half = uint2;
using HalfReducer = Reducer<ELEMENT, OPERATION, Half>;

// peers holds a channel from this rank's input to each rank's inbox. An inbox has two
// halves, and each of these a slot for each rank. flag is the number of the call, from
// 1.
//
// Calls take the halves in turn. A peer's packets of the next call but one may
// overwrite this call's: it sends them once it has the next call's, which this rank
// sends when it is through with this call.
extern "C" __global__ void oneShot(const MemoryChannelHandle* peers, uint32_t rank, uint32_t ranks,
                                   const Half* in, Half* out, uint64_t slotBytes, uint64_t bytes,
                                   uint32_t flag) {
  uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  uint64_t half = flag % 2 * ranks * slotBytes;
  for (uint32_t ahead = 1; ahead < ranks; ++ahead)
    peers[(rank + ahead) % ranks].putPackets<LL16Packet>(half + rank * slotBytes, 0, bytes, thread, threads,
                                                         flag);

  // A thread stores what it alone has read and sent, so out may be in. All ranks add
  // in one order, and so get the same bits.
  for (uint64_t i = thread; i * sizeof(Half) < bytes; i += threads) {
    HalfReducer sum;
    for (uint32_t r = 0; r < ranks; ++r) {
      const auto* slot = reinterpret_cast<const LL16Packet*>(peers[r].packets + half + r * slotBytes);
      Half data = in[i];
      if (r != rank && read(slot + i, flag, data, peers[r].semaphore.watch) != WaitResult::Done) return;
      if (r == 0) {
        sum = HalfReducer(data);
      } else {
        sum.add(data);
      }
    }
    out[i] = sum.get(ranks);
  }
}

// Two shots: every rank adds up a shard of all ranks' inputs, which it reads straight
// from their memory, and writes the result into all outputs. The least data between
// GPUs, between two barriers: for large sizes.
// ins and outs hold channels to all ranks' inputs and outputs, for each block. The
// input may be the output: the owner of a shard reads it before it writes it, and
// nobody else does either.
extern "C" __global__ void twoShot(const MemoryChannelHandle* ins, const MemoryChannelHandle* outs,
                                   uint32_t rank, uint32_t ranks, uint64_t words) {
  const MemoryChannelHandle* in = ins + blockIdx.x * ranks;
  const MemoryChannelHandle* out = outs + blockIdx.x * ranks;
  if (!meet(in, ranks)) return;  // all inputs are there

  Range mine = partOf(partOf({0, words}, rank, ranks), blockIdx.x, gridDim.x);
  for (uint64_t i = mine.first + threadIdx.x; i < mine.last; i += blockDim.x) {
    WordReducer sum(in[0].read<Word>(i));
    for (uint32_t r = 1; r < ranks; ++r) sum.add(in[r].read<Word>(i));
    for (uint32_t r = 0; r < ranks; ++r) out[r].write(i, sum.get(ranks));
  }
  meet(in, ranks);  // all outputs are written
}

// The ring: a rank talks to its two neighbours only, and the hosts move the data, over
// whatever leads from one to the next. One block, which only adds up.
// toInbox and toOutput hold channels from this rank's output to all ranks' inboxes and
// outputs. An inbox has a slot for each rank.
//
// The data are cut into a chunk for each rank, which go round twice. In the first lap
// partial sums go into the next rank's inbox: chunk c starts at rank c and is complete
// at the rank before. In the second lap the complete chunks go straight into outputs.
// Nothing comes too early: a complete chunk reaches a rank only after the rank's
// partial one has gone all the way round, and the last one that a rank receives is
// what the next rank made of its inbox.
extern "C" __global__ void ring(const PortChannelHandle* toInbox, const PortChannelHandle* toOutput,
                                uint32_t rank, uint32_t ranks, const Word* in, Word* out, const Word* inbox,
                                uint64_t words) {
  uint32_t next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  uint64_t slot = (words + ranks - 1) / ranks;
  auto chunk = [&](uint32_t behind) {
    return partOf({0, words}, (rank + 2 * ranks - behind) % ranks, ranks);
  };
  auto send = [&](const PortChannelHandle* to, uint64_t at, Range r) {
    return to[next].putWithSignal(at * sizeof(Word), r.first * sizeof(Word),
                                  (r.last - r.first) * sizeof(Word)) == WaitResult::Done &&
           to[before].wait() == WaitResult::Done;
  };
  for (uint64_t i = threadIdx.x; in != out && i < words; i += blockDim.x) out[i] = in[i];
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    __syncthreads();  // the whole chunk is there before one thread sends it
    bool ok = threadIdx.x != 0 || send(toInbox, step * slot, chunk(step));
    if (!blockAll(ok)) return;
    Range mine = chunk(step + 1);
    for (uint64_t i = threadIdx.x; i < mine.last - mine.first; i += blockDim.x) {
      WordReducer sum(inbox[step * slot + i]);
      sum.add(out[mine.first + i]);
      out[mine.first + i] = sum.get(ranks);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    Range r = chunk(step + ranks - 1);
    if (!send(toOutput, r.first, r)) return;
  }
  if (ranks > 1) toOutput[next].flush();  // the output may change once the kernel has ended
}

// Hierarchical, for several hosts with as many ranks each: threads read and write the
// memory of their own host's ranks, and the hosts move between them what cannot be
// mapped. One block.
// ins and outs hold channels to the inputs and outputs of this host's ranks, of which
// this is number `local`. That rank owns a shard, and across holds a channel from its
// inbox to the inbox of the shard's owner on each other host. An inbox has two halves, and
// each of these a slot for each host. Calls take the halves in turn, by their number.
//
// Each owner adds up its host's inputs, sends the sum to the shard's owners on the
// other hosts, and adds up all hosts' sums, in one order, so that all get the same
// bits. A half is free by the next call but one: to end the next, all hosts must have
// begun it, when they were through with this one.
extern "C" __global__ void hier(const MemoryChannelHandle* ins, const MemoryChannelHandle* outs,
                                uint32_t local, uint32_t locals, const PortChannelHandle* across,
                                uint32_t host, uint32_t hosts, Word* inbox, uint64_t slot, uint64_t words,
                                uint32_t call) {
  if (!meet(ins, locals)) return;  // the host's inputs are there
  Range mine = partOf({0, words}, local, locals);
  uint64_t n = mine.last - mine.first;
  Word* sums = inbox + call % 2 * hosts * slot;
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    WordReducer sum(ins[0].read<Word>(mine.first + i));
    for (uint32_t r = 1; r < locals; ++r) sum.add(ins[r].read<Word>(mine.first + i));
    sums[host * slot + i] = sum.get(locals);
  }

  __syncthreads();  // the sums are there before one thread sends them
  bool ok = true;
  if (threadIdx.x == 0) {
    uint64_t at = (sums - inbox + host * slot) * sizeof(Word);
    for (uint32_t h = 0; h + 1 < hosts && ok; ++h)
      ok = across[h].putWithSignal(at, at, n * sizeof(Word)) == WaitResult::Done;
    for (uint32_t h = 0; h + 1 < hosts && ok; ++h) ok = across[h].wait() == WaitResult::Done;
  }
  if (!blockAll(ok)) return;

  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    WordReducer sum(sums[i]);
    for (uint32_t h = 1; h < hosts; ++h) sum.add(sums[h * slot + i]);
    for (uint32_t r = 0; r < locals; ++r) outs[r].write(mine.first + i, sum.get(locals));
  }
  meet(ins, locals);  // the host's outputs are written
}
