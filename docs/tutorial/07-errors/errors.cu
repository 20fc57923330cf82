#include <mscclgo/memory_channel.cuh>

using namespace mscclgo;

// pass waits for the rank before and then signals the rank behind, but for the one that
// forgets. One thread.
extern "C" __global__ void pass(const MemoryChannelHandle* before, const MemoryChannelHandle* behind,
                                bool first, bool forgets) {
  if (!first && before->wait() != WaitResult::Done) return;
  if (!forgets) behind->signal();
  if (first) before->wait();
}
