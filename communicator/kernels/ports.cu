// Kernels of one thread, each an operation of a port channel, which StreamPort of Go queues.
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// works reports whether the group has not failed, and will not because of a wait that has. What
// comes behind a wait in a stream must not send on what has not come.
__device__ inline bool works(const PortChannelHandle* channel) {
  const GroupStatus* status = channel->base.semaphore.watch.status;
  uint32_t aborted = load<Scope::System, Order::Relaxed>(&status->aborted);
  uint64_t failed = load<Scope::System, Order::Relaxed>(&status->firstFailed);
  return aborted == 0 && failed == 0;
}

extern "C" __global__ void portPut(const PortChannelHandle* channel, uint64_t dstOffset, uint64_t srcOffset,
                                   uint64_t bytes) {
  if (works(channel)) channel->put(dstOffset, srcOffset, bytes);
}

extern "C" __global__ void portPutWithSignal(const PortChannelHandle* channel, uint64_t dstOffset,
                                             uint64_t srcOffset, uint64_t bytes) {
  if (works(channel)) channel->putWithSignal(dstOffset, srcOffset, bytes);
}

extern "C" __global__ void portPutWithSignalAndFlush(const PortChannelHandle* channel, uint64_t dstOffset,
                                                     uint64_t srcOffset, uint64_t bytes) {
  if (works(channel)) channel->putWithSignalAndFlush(dstOffset, srcOffset, bytes);
}

extern "C" __global__ void portGet(const PortChannelHandle* channel, uint64_t remoteOffset,
                                   uint64_t localOffset, uint64_t bytes) {
  if (works(channel)) channel->get(remoteOffset, localOffset, bytes);
}

extern "C" __global__ void portGetAndFlush(const PortChannelHandle* channel, uint64_t remoteOffset,
                                           uint64_t localOffset, uint64_t bytes) {
  if (works(channel)) channel->getAndFlush(remoteOffset, localOffset, bytes);
}

extern "C" __global__ void portStore(const PortChannelHandle* channel, uint64_t remoteOffset,
                                     uint64_t value) {
  if (works(channel)) channel->store(remoteOffset, value);
}

extern "C" __global__ void portStoreAndFlush(const PortChannelHandle* channel, uint64_t remoteOffset,
                                             uint64_t value) {
  if (works(channel)) channel->storeAndFlush(remoteOffset, value);
}

extern "C" __global__ void portAdd(const PortChannelHandle* channel, uint64_t remoteOffset, uint64_t value) {
  if (works(channel)) channel->add(remoteOffset, value);
}

extern "C" __global__ void portAddAndFlush(const PortChannelHandle* channel, uint64_t remoteOffset,
                                           uint64_t value) {
  if (works(channel)) channel->addAndFlush(remoteOffset, value);
}

extern "C" __global__ void portExchange(const PortChannelHandle* channel, uint64_t remoteOffset,
                                        uint64_t value, uint64_t localOffset) {
  if (works(channel)) channel->exchange(remoteOffset, value, localOffset);
}

extern "C" __global__ void portExchangeAndFlush(const PortChannelHandle* channel, uint64_t remoteOffset,
                                                uint64_t value, uint64_t localOffset) {
  if (works(channel)) channel->exchangeAndFlush(remoteOffset, value, localOffset);
}

extern "C" __global__ void portSignal(const PortChannelHandle* channel) {
  if (works(channel)) channel->signal();
}

extern "C" __global__ void portFlush(const PortChannelHandle* channel) {
  if (works(channel)) channel->flush();
}

extern "C" __global__ void portWait(const PortChannelHandle* channel) {
  if (works(channel)) channel->wait();
}
