#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// exchange asks the host to send `bytes` to the peer, and waits for the peer's. One thread.
extern "C" __global__ void exchange(const PortChannelHandle* channel, uint64_t bytes) {
  if (channel->putWithSignal(0, 0, bytes) != WaitResult::Done) return;
  if (channel->wait() != WaitResult::Done) return;  // the peer's data are in the inbox
  channel->flush();                                 // ours have left: the buffer may change
}
