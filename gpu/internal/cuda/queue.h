// A stream as threads in C use it.
#ifndef MSCCLGO_CUDA_QUEUE_H
#define MSCCLGO_CUDA_QUEUE_H

#include "context.h"
#include "native/queue.h"

typedef struct {
  native_queue queue;
  cuda_context* context;
  CUstream stream;
  CUevent marks[NATIVE_MARKS];  // NULL if it could not be created
} cuda_queue;

// cuda_queue_init initialises a queue of zeros. It creates all events, so that none has
// to be created while kernels wait for work of the queue.
void cuda_queue_init(cuda_queue* queue, cuda_context* context, CUstream stream);

// cuda_queue_destroy destroys the events of a closed queue and returns the first
// failure.
status cuda_queue_destroy(cuda_queue* queue);

#endif
