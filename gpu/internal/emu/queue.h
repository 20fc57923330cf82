// queue.h: a stream as threads in C use it. They do their work at once, while the stream
// has no work that Go queued.
#pragma once

#include "native/queue.h"
#include "race/engine.h"

typedef struct {
  native_queue queue;
  native_gate* device;      // the device's, closed with it
  uint32_t claimed;         // 1 while a thread works, or Go bars it
  uint32_t barred;          // reasons not to use the stream: calls that have not ended, and others
  const race_engine* race;  // the race finder, or null, and what it knows of the stream
  race_sequence* sequence;
  const void* trigger;  // that a thread serves
} emu_queue;

// EMU_QUEUE_FAULT is the code of an operation on memory that is not mapped (any more).
enum { EMU_QUEUE_FAULT = 1 };

// emu_queue_init initialises a queue of zeros.
void emu_queue_init(emu_queue* queue, native_gate* device, uint32_t barred);
