#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// Constants of the driver's and NCCL's interfaces.
enum {
  CUDA_NOT_READY = 600,     // cuStreamQuery: there is work left
  STREAM_NON_BLOCKING = 1,  // the legacy default stream does not order it
  CAPTURE_RELAXED = 2,      // begun and ended by any thread
  WINDOW_SYMMETRIC = 1,     // ncclCommWindowRegister: all ranks register alike
};

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

static status cuda_status(const queue* q, int code) {
  const char* name = NULL;
  if (code == 0) return fine();
  q->api->cuGetErrorName(code, &name);
  return (status){code, "the CUDA driver", name};
}

static status nccl_status(const queue* q, int code) {
  if (code == 0) return fine();
  const char* name = q->api->ncclGetErrorString ? q->api->ncclGetErrorString(code) : NULL;
  const char* last = q->api->ncclGetLastError ? q->api->ncclGetLastError(q->comm) : NULL;
  return (status){code, "NCCL", last && *last ? last : name};
}

static status missing(const char* function) {
  return (status){-1, "NCCL, which is too old: it has no", function};
}

// A goroutine moves between threads, a context does not: every call enters it.
#define TRY(call)                \
  do {                           \
    status s_ = (call);          \
    if (s_.code != 0) return s_; \
  } while (0)
#define CUDA(q, function, ...) cuda_status(q, (q)->api->function(__VA_ARGS__))
#define NCCL(q, function, ...) nccl_status(q, (q)->api->function(__VA_ARGS__))
#define ENTER(q) TRY(CUDA(q, cuCtxSetCurrent, (q)->context))

static void* pointer(uint64_t address) { return (void*)(uintptr_t)address; }

status queue_open(queue* q, const char* pci_bus_id) {
  TRY(CUDA(q, cuInit, 0));
  TRY(CUDA(q, cuDeviceGetByPCIBusId, &q->device, pci_bus_id));
  TRY(CUDA(q, cuDevicePrimaryCtxRetain, &q->context, q->device));
  ENTER(q);
  return CUDA(q, cuStreamCreate, &q->stream, STREAM_NON_BLOCKING);
}

status queue_unique_id(queue* q, unique_id* id) {
  ENTER(q);
  return NCCL(q, ncclGetUniqueId, id);
}

status queue_join(queue* q, int ranks, const unique_id* id, int rank) {
  ENTER(q);
  return NCCL(q, ncclCommInitRank, &q->comm, ranks, *id, rank);
}

status queue_close(queue* q, int abort) {
  status first = fine();
  if (!q->context) return first;
  ENTER(q);
  if (q->comm) first = abort ? NCCL(q, ncclCommAbort, q->comm) : NCCL(q, ncclCommDestroy, q->comm);
  if (q->stream) {
    status s = CUDA(q, cuStreamDestroy_v2, q->stream);
    if (first.code == 0) first = s;
  }
  status s = CUDA(q, cuDevicePrimaryCtxRelease_v2, q->device);
  q->comm = q->stream = q->context = NULL;
  return first.code != 0 ? first : s;
}

status queue_all_reduce(queue* q, uint64_t in, uint64_t out, size_t count, int type, int op) {
  ENTER(q);
  return NCCL(q, ncclAllReduce, pointer(in), pointer(out), count, type, op, q->comm, q->stream);
}

status queue_all_gather(queue* q, uint64_t in, uint64_t out, size_t count, int type) {
  ENTER(q);
  return NCCL(q, ncclAllGather, pointer(in), pointer(out), count, type, q->comm, q->stream);
}

status queue_reduce_scatter(queue* q, uint64_t in, uint64_t out, size_t count, int type, int op) {
  ENTER(q);
  return NCCL(q, ncclReduceScatter, pointer(in), pointer(out), count, type, op, q->comm, q->stream);
}

status queue_broadcast(queue* q, uint64_t in, uint64_t out, size_t count, int type, int root) {
  ENTER(q);
  return NCCL(q, ncclBroadcast, pointer(in), pointer(out), count, type, root, q->comm, q->stream);
}

status queue_all_to_all(queue* q, uint64_t in, uint64_t out, size_t count, int type, int ranks,
                        size_t part_bytes) {
  ENTER(q);
  if (q->api->ncclAlltoAll)
    return NCCL(q, ncclAlltoAll, pointer(in), pointer(out), count, type, q->comm, q->stream);
  // How it was done before there was a call for it.
  TRY(NCCL(q, ncclGroupStart));
  for (int peer = 0; peer < ranks; ++peer) {
    TRY(NCCL(q, ncclSend, pointer(in + peer * part_bytes), count, type, peer, q->comm, q->stream));
    TRY(NCCL(q, ncclRecv, pointer(out + peer * part_bytes), count, type, peer, q->comm, q->stream));
  }
  return NCCL(q, ncclGroupEnd);
}

status queue_send_receive(queue* q, uint64_t in, uint64_t out, size_t count, int type, int to, int from) {
  ENTER(q);
  TRY(NCCL(q, ncclGroupStart));
  TRY(NCCL(q, ncclSend, pointer(in), count, type, to, q->comm, q->stream));
  TRY(NCCL(q, ncclRecv, pointer(out), count, type, from, q->comm, q->stream));
  return NCCL(q, ncclGroupEnd);
}

status queue_alloc(queue* q, size_t bytes, uint64_t* memory, void** window) {
  if (!q->api->ncclMemAlloc || !q->api->ncclMemFree) return missing("ncclMemAlloc");
  if (!q->api->ncclCommWindowRegister || !q->api->ncclCommWindowDeregister)
    return missing("ncclCommWindowRegister");
  ENTER(q);
  void* p = NULL;
  TRY(NCCL(q, ncclMemAlloc, &p, bytes));
  *memory = (uint64_t)(uintptr_t)p;
  return NCCL(q, ncclCommWindowRegister, q->comm, p, bytes, window, WINDOW_SYMMETRIC);
}

status queue_free(queue* q, uint64_t memory, void* window) {
  ENTER(q);
  if (window) TRY(NCCL(q, ncclCommWindowDeregister, q->comm, window));
  return NCCL(q, ncclMemFree, pointer(memory));
}

status queue_begin(queue* q) {
  ENTER(q);
  return CUDA(q, cuStreamBeginCapture_v2, q->stream, CAPTURE_RELAXED);
}

status queue_end(queue* q, void** graph) {
  ENTER(q);
  void* captured = NULL;
  TRY(CUDA(q, cuStreamEndCapture, q->stream, &captured));
  status made = CUDA(q, cuGraphInstantiateWithFlags, graph, captured, 0);
  status freed = CUDA(q, cuGraphDestroy, captured);
  return made.code != 0 ? made : freed;
}

status queue_launch(queue* q, void* graph) {
  ENTER(q);
  return CUDA(q, cuGraphLaunch, graph, q->stream);
}

status queue_free_graph(queue* q, void* graph) {
  ENTER(q);
  return CUDA(q, cuGraphExecDestroy, graph);
}

status queue_done(queue* q, int* done) {
  ENTER(q);
  int code = q->api->cuStreamQuery(q->stream);
  *done = code == 0;
  return code == CUDA_NOT_READY ? fine() : cuda_status(q, code);
}

status queue_new_event(queue* q, void** event) {
  ENTER(q);
  return CUDA(q, cuEventCreate, event, 0);
}

status queue_record(queue* q, void* event) {
  ENTER(q);
  return CUDA(q, cuEventRecord, event, q->stream);
}

status queue_elapsed(queue* q, void* from, void* to, float* milliseconds) {
  ENTER(q);
  return CUDA(q, cuEventElapsedTime, milliseconds, from, to);
}

status queue_free_event(queue* q, void* event) {
  ENTER(q);
  return CUDA(q, cuEventDestroy_v2, event);
}
