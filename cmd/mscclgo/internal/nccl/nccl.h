// NCCL, loaded at run time, on a stream of somebody else's.
#ifndef MSCCLGO_NCCL_H
#define MSCCLGO_NCCL_H

#include <stddef.h>
#include <stdint.h>

// unique_id is 128 bytes that NCCL passes by value.
typedef struct {
  char bytes[128];
} unique_id;

// config is ncclConfig_t of NCCL 2.17, the first with these fields. Later versions take it with
// their own defaults for what it does not have, since it tells its version and size.
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
} config;

typedef struct {
#define X(name, parameters) int(*name) parameters;
#define NCCL_FUNCTIONS
#define NCCL_LATER_FUNCTIONS
#include "functions.h"
#undef NCCL_FUNCTIONS
#undef NCCL_LATER_FUNCTIONS
#undef X
  const char* (*ncclGetErrorString)(int);
  const char* (*ncclGetLastError)(void*);
} functions;

// status is the result of a call. When code is not 0, name is its meaning, or below 0 the
// function that NCCL lacks.
typedef struct {
  int code;
  const char* name;
} status;

// communicator is one rank's. NCCL takes the GPU from the calling thread's current
// context, so every function is called where that is the stream's.
typedef struct {
  const functions* api;
  void* stream;
  void* comm;
} communicator;

// nccl_load loads NCCL. On failure it returns NULL and says why in error.
functions* nccl_load(const char* file, char* error, size_t size);

// nccl_version returns 10000 * major + 100 * minor + patch, or less than 0.
int nccl_version(const functions* api);

// comm_open makes an end without peers; comm_join makes the communicator, with all other ranks.
// Its kernels have `blocks` blocks, or as many as NCCL chooses if that is 0. comm_close
// releases it; abort leaves operations that run unfinished.
void comm_open(communicator* c, const functions* api, uint64_t stream);
status comm_join(communicator* c, int ranks, const unique_id* id, int rank, int blocks);
status comm_close(communicator* c, int abort);

status comm_unique_id(communicator* c, unique_id* id);

// comm_all_reduce and the others queue an operation. Types and operations are
// NCCL's numbers; addresses are numbers to the caller.
status comm_all_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op);
status comm_all_gather(communicator* c, uint64_t in, uint64_t out, size_t count, int type);
status comm_reduce_scatter(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op);
status comm_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op, int root);
status comm_broadcast(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int root);
status comm_all_to_all(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int ranks,
                       size_t part_bytes);

// comm_exchange sends parts of count elements to the ranks from first_to on, as many
// as to_count, and receives from those from first_from on. The part for or of the
// k-th of them is stride bytes behind the one before.
typedef struct {
  int first, count;
  uint64_t address;
  size_t stride;
} side;
status comm_exchange(communicator* c, side to, side from, size_t count, int type);

// comm_alloc allocates memory of NCCL's in a symmetric window of all ranks, and
// comm_free releases it.
status comm_alloc(communicator* c, size_t bytes, uint64_t* memory, void** window);
status comm_free(communicator* c, uint64_t memory, void* window);

#endif
