// NCCL and as much of the CUDA driver as it takes to time it, loaded at run time.
#ifndef MSCCLGO_NCCL_H
#define MSCCLGO_NCCL_H

#include <stddef.h>
#include <stdint.h>

// unique_id is 128 bytes that NCCL passes by value.
typedef struct {
  char bytes[128];
} unique_id;

typedef struct {
#define X(name, parameters) int(*name) parameters;
#define CUDA_FUNCTIONS
#define NCCL_FUNCTIONS
#define NCCL_LATER_FUNCTIONS
#include "functions.h"
#undef CUDA_FUNCTIONS
#undef NCCL_FUNCTIONS
#undef NCCL_LATER_FUNCTIONS
#undef X
  const char* (*ncclGetErrorString)(int);
  const char* (*ncclGetLastError)(void*);
} libraries;

// status is how a call ended. Where code is not 0, name says what it means, and
// from whom it is.
typedef struct {
  int code;
  const char* from;
  const char* name;
} status;

// Queue is where operations of one rank run: a context, a stream and a
// communicator.
typedef struct {
  const libraries* api;
  int device;
  void* context;
  void* stream;
  void* comm;
} queue;

// nccl_load loads both libraries. On failure it gives NULL and says why in error.
libraries* nccl_load(const char* nccl, const char* cuda, char* error, size_t size);

// nccl_version gives 10000 * major + 100 * minor + patch, or less than 0.
int nccl_version(const libraries* api);

// queue_open makes q's context current on this thread and gives it a stream;
// queue_join makes its communicator, with all other ranks. queue_close releases
// all; abort leaves operations that run unfinished.
status queue_open(queue* q, const char* pci_bus_id);
status queue_join(queue* q, int ranks, const unique_id* id, int rank);
status queue_close(queue* q, int abort);

status queue_unique_id(queue* q, unique_id* id);

// queue_all_reduce and the others queue an operation. Types and operations are
// NCCL's numbers; addresses are numbers to the caller.
status queue_all_reduce(queue* q, uint64_t in, uint64_t out, size_t count, int type, int op);
status queue_all_gather(queue* q, uint64_t in, uint64_t out, size_t count, int type);
status queue_reduce_scatter(queue* q, uint64_t in, uint64_t out, size_t count, int type, int op);
status queue_broadcast(queue* q, uint64_t in, uint64_t out, size_t count, int type, int root);
status queue_all_to_all(queue* q, uint64_t in, uint64_t out, size_t count, int type, int ranks,
                        size_t part_bytes);
status queue_send_receive(queue* q, uint64_t in, uint64_t out, size_t count, int type, int to, int from);

// queue_alloc gives memory of NCCL's in a symmetric window of all ranks, and
// queue_free takes it back.
status queue_alloc(queue* q, size_t bytes, uint64_t* memory, void** window);
status queue_free(queue* q, uint64_t memory, void* window);

// What is queued between queue_begin and queue_end becomes a graph.
status queue_begin(queue* q);
status queue_end(queue* q, void** graph);
status queue_launch(queue* q, void* graph);
status queue_free_graph(queue* q, void* graph);

// queue_done says in done whether all that was queued is done.
status queue_done(queue* q, int* done);

status queue_new_event(queue* q, void** event);
status queue_record(queue* q, void* event);
status queue_elapsed(queue* q, void* from, void* to, float* milliseconds);
status queue_free_event(queue* q, void* event);

#endif
