// A stream as threads in C use it.
#ifndef MSCCLGO_CUDA_QUEUE_H
#define MSCCLGO_CUDA_QUEUE_H

#include "context.h"
#include "native/queue.h"

typedef struct {
  native_queue queue;
  cuda_context* context;
  CUstream stream;
  CUevent marks[NATIVE_MARKS];  // NULL where one could not be made
} cuda_queue;

// cuda_queue_init makes a queue of zeros, with all its events, so that the driver makes
// nothing while kernels wait for what the queue is to do.
void cuda_queue_init(cuda_queue* queue, cuda_context* context, CUstream stream);

// cuda_queue_destroy destroys the marks of a queue that is closed, and gives the
// first failure.
status cuda_queue_destroy(cuda_queue* queue);

#endif
