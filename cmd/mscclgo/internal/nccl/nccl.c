#include "nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

// ncclCommWindowRegister: all ranks register alike.
enum { WINDOW_SYMMETRIC = 1 };

functions* nccl_load(const char* file, char* error, size_t size) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error, size, "%s", dlerror());
    return NULL;
  }
  functions* api = calloc(1, sizeof *api);
  if (!api) {
    snprintf(error, size, "out of host memory");
    return NULL;
  }
#define X(name, parameters)                                   \
  api->name = (int(*) parameters)dlsym(library, #name);       \
  if (!api->name) {                                           \
    snprintf(error, size, "%s has no function " #name, file); \
    free(api);                                                \
    return NULL;                                              \
  }
#define NCCL_FUNCTIONS
#include "functions.h"
#undef NCCL_FUNCTIONS
#undef X
#define X(name, parameters) api->name = (int(*) parameters)dlsym(library, #name);
#define NCCL_LATER_FUNCTIONS
#include "functions.h"
#undef NCCL_LATER_FUNCTIONS
#undef X
  api->ncclGetErrorString = (const char* (*)(int))dlsym(library, "ncclGetErrorString");
  api->ncclGetLastError = (const char* (*)(void*))dlsym(library, "ncclGetLastError");
  return api;
}

int nccl_version(const functions* api) {
  int version;
  return api->ncclGetVersion(&version) ? -1 : version;
}

static status result(const communicator* c, int code) {
  if (code == 0) return (status){0, NULL};
  const char* name = c->api->ncclGetErrorString ? c->api->ncclGetErrorString(code) : NULL;
  const char* last = c->api->ncclGetLastError ? c->api->ncclGetLastError(c->comm) : NULL;
  return (status){code, last && *last ? last : name};
}

static status missing(const char* function) { return (status){-1, function}; }

#define TRY(call)                \
  do {                           \
    status s_ = (call);          \
    if (s_.code != 0) return s_; \
  } while (0)
#define NCCL(c, function, ...) result(c, (c)->api->function(__VA_ARGS__))

static void* pointer(uint64_t address) { return (void*)(uintptr_t)address; }

void comm_open(communicator* c, const functions* api, uint64_t stream) {
  c->api = api;
  c->stream = pointer(stream);
}

status comm_unique_id(communicator* c, unique_id* id) { return NCCL(c, ncclGetUniqueId, id); }

// What stands in a config for NCCL's own choice (nccl.h: NCCL_CONFIG_UNDEF_INT)).
enum { UNDEFINED = INT_MIN };

status comm_join(communicator* c, int ranks, const unique_id* id, int rank, int blocks) {
  if (blocks == 0) return NCCL(c, ncclCommInitRank, &c->comm, ranks, *id, rank);
  if (!c->api->ncclCommInitRankConfig) return missing("ncclCommInitRankConfig");
  config wanted = {
      .size = sizeof wanted,
      .magic = 0xcafebeef,
      .version = 21700,
      .blocking = UNDEFINED,
      .cga_cluster_size = UNDEFINED,
      .min_ctas = blocks,
      .max_ctas = blocks,
  };
  return NCCL(c, ncclCommInitRankConfig, &c->comm, ranks, *id, rank, &wanted);
}

status comm_close(communicator* c, int abort) {
  void* comm = c->comm;
  c->comm = NULL;
  return abort ? NCCL(c, ncclCommAbort, comm) : NCCL(c, ncclCommDestroy, comm);
}

status comm_all_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op) {
  return NCCL(c, ncclAllReduce, pointer(in), pointer(out), count, type, op, c->comm, c->stream);
}

status comm_all_gather(communicator* c, uint64_t in, uint64_t out, size_t count, int type) {
  return NCCL(c, ncclAllGather, pointer(in), pointer(out), count, type, c->comm, c->stream);
}

status comm_reduce_scatter(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op) {
  return NCCL(c, ncclReduceScatter, pointer(in), pointer(out), count, type, op, c->comm, c->stream);
}

status comm_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op, int root) {
  return NCCL(c, ncclReduce, pointer(in), pointer(out), count, type, op, root, c->comm, c->stream);
}

status comm_broadcast(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int root) {
  return NCCL(c, ncclBroadcast, pointer(in), pointer(out), count, type, root, c->comm, c->stream);
}

status comm_all_to_all(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int ranks,
                       size_t part_bytes) {
  if (!c->api->ncclAlltoAll)  // how it was done before there was a function for it
    return comm_exchange(c, (side){0, ranks, in, part_bytes}, (side){0, ranks, out, part_bytes}, count, type);
  return NCCL(c, ncclAlltoAll, pointer(in), pointer(out), count, type, c->comm, c->stream);
}

status comm_exchange(communicator* c, side to, side from, size_t count, int type) {
  TRY(NCCL(c, ncclGroupStart));
  for (int k = 0; k < to.count || k < from.count; ++k) {
    if (k < to.count)
      TRY(NCCL(c, ncclSend, pointer(to.address + k * to.stride), count, type, to.first + k, c->comm,
               c->stream));
    if (k < from.count)
      TRY(NCCL(c, ncclRecv, pointer(from.address + k * from.stride), count, type, from.first + k, c->comm,
               c->stream));
  }
  return NCCL(c, ncclGroupEnd);
}

status comm_alloc(communicator* c, size_t bytes, uint64_t* memory, void** window) {
  if (!c->api->ncclMemAlloc || !c->api->ncclMemFree) return missing("ncclMemAlloc");
  if (!c->api->ncclCommWindowRegister || !c->api->ncclCommWindowDeregister)
    return missing("ncclCommWindowRegister");
  void* p = NULL;
  TRY(NCCL(c, ncclMemAlloc, &p, bytes));
  *memory = (uint64_t)(uintptr_t)p;
  return NCCL(c, ncclCommWindowRegister, c->comm, p, bytes, window, WINDOW_SYMMETRIC);
}

status comm_free(communicator* c, uint64_t memory, void* window) {
  if (window) TRY(NCCL(c, ncclCommWindowDeregister, c->comm, window));
  return NCCL(c, ncclMemFree, pointer(memory));
}
