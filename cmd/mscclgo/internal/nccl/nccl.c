#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// ncclCommWindowRegister: all ranks register alike.
enum { WINDOW_SYMMETRIC = 1 };

libraries* nccl_load(const char* nccl, const char* cuda, char* error, size_t size) {
  void* driver = dlopen(cuda, RTLD_NOW | RTLD_LOCAL);
  void* library = driver ? dlopen(nccl, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    snprintf(error, size, "%s", dlerror());
    return NULL;
  }
  libraries* api = calloc(1, sizeof *api);
  if (!api) {
    snprintf(error, size, "out of host memory");
    return NULL;
  }
#define REQUIRED(handle, file, name, parameters)              \
  api->name = (int(*) parameters)dlsym(handle, #name);        \
  if (!api->name) {                                           \
    snprintf(error, size, "%s has no function " #name, file); \
    free(api);                                                \
    return NULL;                                              \
  }
#define X(name, parameters) REQUIRED(driver, cuda, name, parameters)
#define CUDA_FUNCTIONS
#include "functions.h"
#undef CUDA_FUNCTIONS
#undef X
#define X(name, parameters) REQUIRED(library, nccl, name, parameters)
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

int nccl_version(const libraries* api) {
  int version;
  return api->ncclGetVersion(&version) ? -1 : version;
}

static status fine(void) { return (status){0, NULL, NULL}; }

static status cuda_status(const communicator* c, int code) {
  const char* name = NULL;
  if (code == 0) return fine();
  c->api->cuGetErrorName(code, &name);
  return (status){code, "the CUDA driver", name};
}

static status nccl_status(const communicator* c, int code) {
  if (code == 0) return fine();
  const char* name = c->api->ncclGetErrorString ? c->api->ncclGetErrorString(code) : NULL;
  const char* last = c->api->ncclGetLastError ? c->api->ncclGetLastError(c->comm) : NULL;
  return (status){code, "NCCL", last && *last ? last : name};
}

static status missing(const char* function) {
  return (status){-1, "NCCL, which is too old: it has no", function};
}

#define TRY(call)                \
  do {                           \
    status s_ = (call);          \
    if (s_.code != 0) return s_; \
  } while (0)
#define CUDA(c, function, ...) cuda_status(c, (c)->api->function(__VA_ARGS__))
#define NCCL(c, function, ...) nccl_status(c, (c)->api->function(__VA_ARGS__))
// A goroutine moves between threads, a context does not: every call enters it.
#define ENTER(c) TRY(CUDA(c, cuCtxSetCurrent, (c)->context))

static void* pointer(uint64_t address) { return (void*)(uintptr_t)address; }

status comm_open(communicator* c, uint64_t stream) {
  c->stream = pointer(stream);
  return CUDA(c, cuStreamGetCtx, c->stream, &c->context);
}

status comm_unique_id(communicator* c, unique_id* id) {
  ENTER(c);
  return NCCL(c, ncclGetUniqueId, id);
}

status comm_join(communicator* c, int ranks, const unique_id* id, int rank) {
  ENTER(c);
  return NCCL(c, ncclCommInitRank, &c->comm, ranks, *id, rank);
}

status comm_close(communicator* c, int abort) {
  if (!c->comm) return fine();
  ENTER(c);
  void* comm = c->comm;
  c->comm = NULL;
  return abort ? NCCL(c, ncclCommAbort, comm) : NCCL(c, ncclCommDestroy, comm);
}

status comm_all_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op) {
  ENTER(c);
  return NCCL(c, ncclAllReduce, pointer(in), pointer(out), count, type, op, c->comm, c->stream);
}

status comm_all_gather(communicator* c, uint64_t in, uint64_t out, size_t count, int type) {
  ENTER(c);
  return NCCL(c, ncclAllGather, pointer(in), pointer(out), count, type, c->comm, c->stream);
}

status comm_reduce_scatter(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op) {
  ENTER(c);
  return NCCL(c, ncclReduceScatter, pointer(in), pointer(out), count, type, op, c->comm, c->stream);
}

status comm_reduce(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int op, int root) {
  ENTER(c);
  return NCCL(c, ncclReduce, pointer(in), pointer(out), count, type, op, root, c->comm, c->stream);
}

status comm_broadcast(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int root) {
  ENTER(c);
  return NCCL(c, ncclBroadcast, pointer(in), pointer(out), count, type, root, c->comm, c->stream);
}

status comm_all_to_all(communicator* c, uint64_t in, uint64_t out, size_t count, int type, int ranks,
                       size_t part_bytes) {
  if (!c->api->ncclAlltoAll)  // how it was done before there was a function for it
    return comm_exchange(c, (side){0, ranks, in, part_bytes}, (side){0, ranks, out, part_bytes}, count, type);
  ENTER(c);
  return NCCL(c, ncclAlltoAll, pointer(in), pointer(out), count, type, c->comm, c->stream);
}

status comm_exchange(communicator* c, side to, side from, size_t count, int type) {
  ENTER(c);
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
  ENTER(c);
  void* p = NULL;
  TRY(NCCL(c, ncclMemAlloc, &p, bytes));
  *memory = (uint64_t)(uintptr_t)p;
  return NCCL(c, ncclCommWindowRegister, c->comm, p, bytes, window, WINDOW_SYMMETRIC);
}

status comm_free(communicator* c, uint64_t memory, void* window) {
  ENTER(c);
  if (window) TRY(NCCL(c, ncclCommWindowDeregister, c->comm, window));
  return NCCL(c, ncclMemFree, pointer(memory));
}
