// A libcuda and a libnccl for tests, of one rank. What is queued runs at once; a
// graph is a record of the calls, which its launch makes again.
#include <stdlib.h>
#include <string.h>

typedef struct {
  char bytes[128];
} unique_id;

static struct call {
  void* out;
  const void* in;
  size_t bytes;
} recorded[64];
static int capturing, calls, launches;

static int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static int move(const void* in, void* out, size_t bytes) {
  if (capturing) {
    recorded[calls++] = (struct call){out, in, bytes};
  } else {
    memmove(out, in, bytes);
  }
  return 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int code, const char** name) {
  *name = code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "another";
  return 0;
}
int cuDeviceGetByPCIBusId(int* device, const char* id) {
  *device = 3;
  return strcmp(id, "0000:1b:00.0") ? 101 : 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &calls;
  return device == 3 ? 0 : 101;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return device == 3 ? 0 : 101; }
int cuCtxSetCurrent(void* context) { return context == &calls ? 0 : 201; }
int cuStreamCreate(void** stream, unsigned flags) {
  *stream = &launches;
  return flags == 1 ? 0 : 1;
}
int cuStreamDestroy_v2(void* stream) { return stream == &launches ? 0 : 1; }
int cuStreamQuery(void* stream) {
  static int polls;
  return stream == &launches && ++polls % 3 == 0 ? 0 : 600;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  capturing = 1, calls = 0;
  return stream == &launches && mode == 2 ? 0 : 1;
}
int cuStreamEndCapture(void* stream, void** graph) {
  capturing = 0, *graph = recorded;
  return stream == &launches ? 0 : 1;
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) {
  *exec = graph;
  return (int)flags;
}
int cuGraphDestroy(void* graph) { return graph == recorded ? 0 : 1; }
int cuGraphExecDestroy(void* exec) { return exec == recorded ? 0 : 1; }
int cuGraphLaunch(void* exec, void* stream) {
  for (int i = 0; i < calls; ++i) memmove(recorded[i].out, recorded[i].in, recorded[i].bytes);
  ++launches;
  return exec == recorded && stream == &launches ? 0 : 1;
}
int cuEventCreate(void** event, unsigned flags) {
  *event = calloc(1, sizeof(int));
  return (int)flags;
}
int cuEventDestroy_v2(void* event) {
  free(event);
  return 0;
}
int cuEventRecord(void* event, void* stream) {
  *(int*)event = launches;
  return stream == &launches ? 0 : 1;
}
// A launch takes two milliseconds.
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = 2.0f * (float)(*(int*)to - *(int*)from);
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 22803;
  return 0;
}
const char* ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "another"; }
int ncclGetUniqueId(unique_id* id) {
  memset(id, 7, sizeof *id);
  return 0;
}
int ncclCommInitRank(void** comm, int ranks, unique_id id, int rank) {
  *comm = sizes;
  return ranks == 1 && rank == 0 && id.bytes[127] == 7 ? 0 : 4;
}
int ncclCommDestroy(void* comm) { return comm == sizes ? 0 : 4; }
int ncclCommAbort(void* comm) { return ncclCommDestroy(comm); }
int ncclAllReduce(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return comm != sizes || stream != &launches || op == 1 ? 4 : move(in, out, n * sizes[type]);
}
int ncclAllGather(const void* in, void* out, size_t n, int type, void* comm, void* stream) {
  return comm != sizes || stream != &launches ? 4 : move(in, out, n * sizes[type]);
}
int ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return ncclAllReduce(in, out, n, type, op, comm, stream);
}
int ncclBroadcast(const void* in, void* out, size_t n, int type, int root, void* comm, void* stream) {
  return root ? 4 : ncclAllGather(in, out, n, type, comm, stream);
}
static const void* sent;
int ncclSend(const void* in, size_t n, int type, int peer, void* comm, void* stream) {
  sent = in;
  return peer || !n || !type || comm != sizes || stream != &launches ? 4 : 0;
}
int ncclRecv(void* out, size_t n, int type, int peer, void* comm, void* stream) {
  return peer ? 4 : ncclAllGather(sent, out, n, type, comm, stream);
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
#if !defined(OLD)
int ncclMemAlloc(void** memory, size_t bytes) {
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return 0;
}
int ncclMemFree(void* memory) {
  free(memory);
  return 0;
}
int ncclCommWindowRegister(void* comm, void* memory, size_t bytes, void** window, int flags) {
  *window = memory;
  return comm == sizes && bytes && flags == 1 ? 0 : 4;
}
int ncclCommWindowDeregister(void* comm, void* window) { return comm == sizes && window ? 0 : 4; }
#endif
