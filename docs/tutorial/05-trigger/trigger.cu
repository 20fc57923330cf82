#include <mscclgo/fifo.cuh>

using namespace mscclgo;

constexpr uint8_t kSquare = kFirstUserKind;  // what the program's handler knows

// ask sends the host numbers, each with the place of its answer in pinned memory, and waits
// until the host has answered. One thread.
extern "C" __global__ void ask(FifoHandle fifo, const uint64_t* answers, uint64_t* sum, uint32_t n) {
  PushResult last{};
  for (uint32_t i = 0; i < n; ++i) {
    last = fifo.push(Trigger::user(kSquare, i, i + 1));
    if (last.result != WaitResult::Done) return;
  }
  if (fifo.sync(last.position) != WaitResult::Done) return;  // all were handled
  uint64_t total = 0;
  for (uint32_t i = 0; i < n; ++i) total += answers[i];
  *sum = total;
}
