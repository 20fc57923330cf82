// A libnccl for tests, of one rank. What is queued runs at once. A thread has the stream's
// context if that is its name.
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define STREAM ((void*)0x57)

typedef struct {
  char bytes[128];
} unique_id;

static int in_context(void) {
  char name[16];
  return !prctl(PR_GET_NAME, name) && !strcmp(name, "in context");
}

static int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// wrong checks that a call came with its communicator, its stream and its context.
static int wrong(const void* comm, const void* stream) {
  return comm != sizes || stream != STREAM || !in_context();
}

int ncclGetVersion(int* version) {
  *version = 22803;
  return 0;
}
const char* ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "another"; }
int ncclGetUniqueId(unique_id* id) {
  memset(id, 7, sizeof *id);
  return in_context() ? 0 : 4;
}
int ncclCommInitRank(void** comm, int ranks, unique_id id, int rank) {
  *comm = sizes;
  return ranks == 1 && rank == 0 && id.bytes[127] == 7 && in_context() ? 0 : 4;
}
#if !defined(OLD)
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
} config;
int ncclCommInitRankConfig(void** comm, int ranks, unique_id id, int rank, config* c) {
  const int none = -2147483647 - 1;
  if (c->size != sizeof *c || c->magic != 0xcafebeef || c->version != 21700 || c->net_name) return 4;
  if (c->blocking != none || c->cga_cluster_size != none) return 4;
  if (c->min_ctas != 3 || c->max_ctas != 3) return 4;
  return ncclCommInitRank(comm, ranks, id, rank);
}
#endif
int ncclCommDestroy(void* comm) { return comm == sizes && in_context() ? 0 : 4; }
int ncclCommAbort(void* comm) { return ncclCommDestroy(comm); }
int ncclAllGather(const void* in, void* out, size_t n, int type, void* comm, void* stream) {
  if (wrong(comm, stream)) return 4;
  memmove(out, in, n * sizes[type]);
  return 0;
}
int ncclAllReduce(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return op < 0 || op > 4 ? 4 : ncclAllGather(in, out, n, type, comm, stream);
}
int ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
  return ncclAllReduce(in, out, n, type, op, comm, stream);
}
int ncclBroadcast(const void* in, void* out, size_t n, int type, int root, void* comm, void* stream) {
  return root ? 4 : ncclAllGather(in, out, n, type, comm, stream);
}
int ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, void* comm, void* stream) {
  return root ? 4 : ncclAllReduce(in, out, n, type, op, comm, stream);
}
static const void* sent;
int ncclSend(const void* in, size_t n, int type, int peer, void* comm, void* stream) {
  sent = in;
  return peer || !n || !type || wrong(comm, stream) ? 4 : 0;
}
int ncclRecv(void* out, size_t n, int type, int peer, void* comm, void* stream) {
  return peer ? 4 : ncclAllGather(sent, out, n, type, comm, stream);
}
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
#if !defined(OLD)
int ncclMemAlloc(void** memory, size_t bytes) {
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return in_context() ? 0 : 4;
}
int ncclMemFree(void* memory) {
  free(memory);
  return in_context() ? 0 : 4;
}
int ncclCommWindowRegister(void* comm, void* memory, size_t bytes, void** window, int flags) {
  *window = memory;
  return comm == sizes && bytes && flags == 1 ? 0 : 4;
}
int ncclCommWindowDeregister(void* comm, void* window) { return comm == sizes && window ? 0 : 4; }
#endif
