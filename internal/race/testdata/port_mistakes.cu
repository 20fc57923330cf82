// Mistakes with ports, as kernels of two ranks of which neither maps the other's memory, and the same without
// them where MENDED is defined. The two lines that race end in the kernel's name. Each has 8 KiB of its own.
#include <mscclgo/port_channel.cuh>

using namespace mscclgo;

#if defined(MENDED)
constexpr bool mended = true;
#else
constexpr bool mended = false;
#endif

constexpr uint64_t kBytes = 4096;

#define KERNEL(name) \
  extern "C" __global__ void name(const PortChannelHandle* port, uint32_t* words, uint64_t at, uint32_t rank)

// A put is asked for while the block still writes what it sends.
KERNEL(putTooEarly) {
  if (rank == 0) {
    words[at / 4 + threadIdx.x] = 7;  // putTooEarly
    if (mended) __syncthreads();
    if (threadIdx.x == 0) port->putWithSignal(at + 4096, at, kBytes);  // putTooEarly
    if (threadIdx.x == 0) port->wait();
  } else if (threadIdx.x == 0) {
    port->wait();
    port->signal();
  }
}

// What a put sends is overwritten before a flush.
KERNEL(noFlush) {
  if (threadIdx.x != 0) return;
  if (rank == 0) {
    port->putWithSignal(at + 4096, at, kBytes);  // noFlush
    if (mended) port->flush();
    words[at / 4] = 8;  // noFlush
    port->wait();
  } else {
    port->wait();
    port->signal();
  }
}

// What a put brings is read before the wait.
KERNEL(readTooEarly) {
  if (threadIdx.x != 0) return;
  if (rank == 0) {
    port->wait();  // rank 1 has begun, so that its launch does not come behind the put
    port->putWithSignal(at + 4096, at, kBytes);  // readTooEarly
    port->wait();
  } else {
    port->signal();
    if (mended) port->wait();
    words[at / 4] = words[at / 4 + 1024] + 1;  // readTooEarly
    if (!mended) port->wait();
    port->signal();
  }
}

// What a get brings is read before a flush.
KERNEL(getNotAwaited) {
  if (rank != 0 || threadIdx.x != 0) return;
  port->get(at, at + 4096, kBytes);  // getNotAwaited
  if (mended) port->flush();
  words[at / 4] = words[at / 4 + 1024] + 1;  // getNotAwaited
  if (!mended) port->flush();
}
