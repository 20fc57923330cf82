// Kernels that nothing but the host's own doing orders.
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

// handlerFills has the trigger's handler write what it then has put.
extern "C" __global__ void handlerFills(FifoHandle fifo, const PortChannelHandle* port) {
  fifo.push(Trigger::user(kFirstUserKind));
  port->put(4096, 0, 4096);
  port->flush();
}

// exchangeOnly leaves the flush to the code that closes the channels.
extern "C" __global__ void exchangeOnly(const PortChannelHandle* port) { port->exchange(4096, 9, 8192); }

// Go tells readBehind and putBehind by their flag that it was told of the write, by writeBefore or by the
// stream behind writeOnly.
extern "C" __global__ void writeBefore(uint32_t* words, uint64_t* flag) {
  words[0] = 7;
  store<Scope::System, Order::Release>(flag, uint64_t(1));
}

extern "C" __global__ void writeOnly(uint32_t* words) { words[0] = 7; }

__device__ inline void await(const uint64_t* flag) {
  while (load<Scope::System, Order::Acquire>(flag) == 0) {
  }
}

extern "C" __global__ void readBehind(const PortChannelHandle*, uint32_t* words, const uint64_t* flag) {
  await(flag);
  words[1] = words[0];
}

extern "C" __global__ void putBehind(const PortChannelHandle* port, uint32_t*, const uint64_t* flag) {
  await(flag);
  port->put(4096, 0, 4096);
  port->flush();
}

// hostMemory has rank 1 read, behind a signal, memory of the host that rank 0 wrote.
extern "C" __global__ void hostMemory(const PortChannelHandle* port, uint32_t* words, uint32_t rank) {
  if (rank == 1) port->wait();
  words[rank] = rank == 0 ? 7 : words[0];
  port->signal();
  if (rank == 0) port->wait();
}
