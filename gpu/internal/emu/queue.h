// queue.h: a stream as threads in C use it. They do their work at once, while the
// stream has none of Go's.
#pragma once

#include "native/queue.h"

typedef struct {
  native_queue queue;
  native_gate* device;  // open as long as the device
  uint32_t claimed;     // 1 while a thread works, or Go queues
  uint32_t barred;      // reasons to leave the stream to Go: calls that have not ended, and others
} emu_queue;

// emu_queue_init makes a queue of zeros.
void emu_queue_init(emu_queue* queue, native_gate* device, uint32_t barred);
