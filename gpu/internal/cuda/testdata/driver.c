// A driver without a GPU behind it, old enough to lack most functions. The
// tests build it to see how their absence, and failures, are reported.
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, DEVICE_UNAVAILABLE = 46, NOT_READY = 600, LAUNCH_FAILED = 719 };

static int retained;

#ifdef INIT
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
#else
// What cuInit reads must be set before it runs.
int cuInit(unsigned flags) {
  return !getenv("CUDA_MODULE_LOADING") || !getenv("CUDA_DEVICE_MAX_CONNECTIONS") ? 1 : (int)flags;
}
#endif
int cuDriverGetVersion(int* version) { return *version = 11000, 0; }
int cuGetErrorName(int code, const char** name) {
  *name = code == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
          : code == 900           ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
          : code == 803           ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
          : code == 906           ? "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"
                                  : NULL;
  return *name ? 0 : 1;
}
int cuGetErrorString(int code, const char** text) {
  return *text = code == OUT_OF_MEMORY ? "out of memory" : "fake", 0;
}
int cuDeviceGetCount(int* n) { return *n = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int size, int device) {
  return device ? 1 : (strncpy(name, "Fake", size), 0);
}
int cuDeviceGetPCIBusId(char* id, int size, int device) {
  return device ? 1 : (strncpy(id, "0000:1B:00.0", size), 0);
}
int cuDeviceGetUuid(char* uuid, int device) { return memset(uuid, 7, 16), device; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 1 << 20, device; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 8 : 0;
#ifdef RDMA_ORDERING
  if (attribute == 118) return *value = RDMA_ORDERING, device;
#endif
  return attribute > 100 ? 1 : device;  // as a driver that is older than the attribute
}
int cuDevicePrimaryCtxRetain(void** ctx, int device) {
  if (retained || device) return DEVICE_UNAVAILABLE;
  retained = 1;
  return *ctx = &retained, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return retained = 0, device; }
#if defined(FOREIGN)
// Streams of other code, by handle: one of the primary context, one of another context, and
// one that is capturing. While that captures, the legacy stream is of no use. A query of
// either would make the capture invalid.
enum { LEGACY = 1, PLAIN = 0x100, ELSEWHERE = 0x200, CAPTURING = 0x300 };
static int elsewhere;
int cuCtxSetCurrent(void* ctx) { return ctx == &elsewhere || (ctx == &retained && retained) ? 0 : 201; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuStreamGetCtx(void* stream, void** ctx) {
  *ctx = stream == (void*)ELSEWHERE ? (void*)&elsewhere : (void*)&retained;
  return (size_t)stream < PLAIN ? LAUNCH_FAILED : 0;
}
int cuStreamIsCapturing(void* stream, int* status) {
  return *status = stream == (void*)CAPTURING, stream == (void*)LEGACY ? 906 : 0;
}
static unsigned long long capture_id = 77;
static void* tails[16];  // of the graph being captured
static size_t tail_count;
int cuStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void* graph, void* nodes,
                              void* edges, void* count) {
  if (graph) {
    *(void**)graph = (void*)0x500;
    *(void***)nodes = tails;
    *(void**)edges = NULL;
    *(size_t*)count = stream == (void*)CAPTURING ? tail_count : 0;
  } else if (nodes || edges || count) {
    return LAUNCH_FAILED;
  }
  return *id = capture_id, cuStreamIsCapturing(stream, status);
}

// The graph being captured. A copy to address 1000 + n adds node n behind the last ones, and
// to 2000 + n beside them. Node 0x600 records the event, and follows the nodes of edges.
static char edges[16];
static void* parents[16];  // of nodes behind one other
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t n, void* stream) {
  if (stream == (void*)CAPTURING && dst > 1000 && dst < 1016) {
    parents[dst % 1000] = tail_count == 1 ? tails[0] : NULL;
    tail_count = 0;
  }
  if (stream == (void*)CAPTURING && dst > 1000 && dst < 2016) tails[tail_count++] = (void*)(dst % 1000);
  if (stream == (void*)CAPTURING && dst == 3000) capture_id++, tail_count = 0, memset(edges, 0, sizeof edges);
  if (dst == 4000) memcpy((void*)src, edges, n);
  return !dst || !src || !n || !stream;
}
static int follow(void* node) {
  return (size_t)node < 16 && !edges[(size_t)node] ? edges[(size_t)node] = 1, 0 : 1;
}
int cuGraphAddEventRecordNode(void** node, void* graph, void** from, size_t count, void* event) {
  for (size_t i = 0; i < sizeof edges; i++)
    if (edges[i]) return LAUNCH_FAILED;  // there is a node already
  for (size_t i = 0; i < count; i++)
    if (follow(from[i])) return LAUNCH_FAILED;
  return *node = (void*)0x600, graph != (void*)0x500 || event != (void*)0x400;
}
int cuGraphAddDependencies_v2(void* graph, void** from, void** to, void* data, size_t count) {
  return graph != (void*)0x500 || *to != (void*)0x600 || data || count != 1 || follow(*from);
}
int cuGraphRemoveDependencies_v2(void* graph, void** from, void** to, void* data, size_t count) {
  if (graph != (void*)0x500 || *to != (void*)0x600 || data || count != 1 || !edges[(size_t)*from]) return 1;
  return edges[(size_t)*from] = 0;
}
int cuGraphNodeGetDependencies_v2(void* node, void** nodes, void* data, size_t* count) {
  void* parent = parents[(size_t)node];
  if (nodes) *nodes = parent;
  return *count = parent ? 1 : 0, nodes && !data;  // edges may have data, which must not be lost
}
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return event != (void*)0x400 || flags != (stream == (void*)CAPTURING);
}
#else
int cuCtxSetCurrent(void* ctx) { return ctx == &retained && retained ? 0 : 201; }
#endif

// The mode in which a thread's calls disturb no capture is RELAXED. What needs it
// fails without, and what is called often does not pay for it.
enum { RELAXED = 2, CAPTURE_UNSUPPORTED = 900 };
static __thread int mode;
int cuThreadExchangeStreamCaptureMode(int* other) {
  int was = mode;
  return mode = *other, *other = was, 0;
}
#if defined(HOSTS)
// Pinned memory is not freed while a stream has work, nor by a thread that would disturb a
// capture. cuMemGetInfo counts the pieces. A copy of 1 byte is work, until one of 3 bytes to
// the same stream or of 4 to any; after one of 2 bytes the stream captures.
static int busy_streams, round_of_work;
static size_t pieces;
static char piece[4096];
int cuMemHostAlloc(void** host, size_t size, unsigned flags) {
  return *host = piece, pieces++, mode != RELAXED || size > sizeof piece || flags != 3;
}
int cuMemHostGetDevicePointer_v2(unsigned long long* out, void* host, unsigned flags) {
  return *out = (size_t)host, flags;
}
int cuMemFreeHost(void* host) {
  return pieces--, busy_streams || mode != RELAXED || host != piece ? LAUNCH_FAILED : 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = pieces, *total = 1 << 20, 0; }
#else
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  return *free = 4096, *total = 1 << 20, mode ? LAUNCH_FAILED : 0;
}
#endif
int cuMemAlloc_v2(unsigned long long* ptr, size_t size) {
  return *ptr = 0, mode != RELAXED ? CAPTURE_UNSUPPORTED : size > 4096 ? OUT_OF_MEMORY : 0;
}
#if defined(FOREIGN)
// Memory of other code, by page: of an allocator of which nothing is known, of virtual
// memory in three mappings, followed by another reserved range, of a pool, managed, and
// virtual memory with a descriptor.
static const struct {
  unsigned long long base, start;
  int pool, managed, mapped;
} memories[] = {
    {0x10000, 0x10000, 0, 0, 0}, {0x20000, 0x20000, 0, 0, 1}, {0x21000, 0x20000, 0, 0, 1},
    {0x22000, 0x20000, 0, 0, 1}, {0x23000, 0x23000, 0, 0, 1}, {0x30000, 0x30000, 1, 0, 0},
    {0x40000, 0x40000, 0, 1, 0}, {0x50000, 0x50000, 0, 0, 1},
};
enum { MEMORIES = sizeof memories / sizeof *memories };
static int find(unsigned long long ptr) {
  int i = 0;
  while (i < MEMORIES && ptr - memories[i].base >= 0x1000) i++;
  return i;
}
int cuMemGetAddressRange_v2(unsigned long long* base, size_t* size, unsigned long long ptr) {
  int i = find(ptr);
  if (i == MEMORIES) return 1;
  if (size) *size = 0x1000;
  return *base = memories[i].base, 0;
}
int cuPointerGetAttribute(void* value, int attribute, unsigned long long ptr) {
  int i = find(ptr);
  if (i == MEMORIES) return 1;
  if (attribute == 8) return *(unsigned*)value = memories[i].managed, 0;
  if (attribute == 11) return *(unsigned long long*)value = memories[i].start, 0;
  return *(void**)value = memories[i].pool ? &retained : NULL, attribute != 17;
}
static int handles;  // that are retained
int cuMemRetainAllocationHandle(unsigned long long* handle, void* ptr) {
  int i = find((size_t)ptr);
  if (i == MEMORIES || !memories[i].mapped) return 1;
  return handles++, *handle = (size_t)ptr, 0;
}
int cuMemRelease(unsigned long long handle) { return handles--, !handle; }
int cuMemExportToShareableHandle(void* fd, unsigned long long handle, int type, unsigned long long flags) {
  return *(int*)fd = 42, handle != 0x50000 || type != 1 || flags || handles != 1;
}
int cuIpcGetMemHandle(void* handle, unsigned long long ptr) { return !handle || ptr; }

// Host memory that is pinned, in pages. Page 3 of it is pinned by other code, and page 8 is the
// driver's own. A page that is
// pinned twice, or unpinned otherwise than it was pinned, is an error.
static char pages[16];
static char* host;  // the first page
int cuMemHostRegister_v2(void* ptr, size_t size, unsigned flags) {
  if (!host) host = ptr;
  size_t first = ((char*)ptr - host) / 4096, count = size / 4096;
  if (flags != 3 || (size_t)ptr % 4096 || size % 4096 || first + count > sizeof pages) return 1;
  for (size_t i = first; i < first + count; i++)
    if (pages[i] || i == 3 || i == 8) return i == 3 ? 712 : i == 8 ? 1 : LAUNCH_FAILED;
  memset(pages + first, 1, count);
  return pages[first] = (char)count, 0;
}
int cuMemHostUnregister(void* ptr) {
  size_t first = ((char*)ptr - host) / 4096, count = first < sizeof pages ? pages[first] : 0;
  if (!count || (size_t)ptr % 4096) return LAUNCH_FAILED;
  return memset(pages + first, 0, count), 0;
}
int cuMemHostGetDevicePointer_v2(unsigned long long* out, void* ptr, unsigned flags) {
  size_t page = ((char*)ptr - host) / 4096;
  *out = (size_t)ptr;
  return flags || page >= sizeof pages || !(pages[page] || page == 3 || page == 8);
}
#endif
int cuMemFree_v2(unsigned long long ptr) { return mode != RELAXED ? CAPTURE_UNSUPPORTED : (int)ptr; }
#if defined(HOSTS)
int cuStreamCreate(void** stream, unsigned flags) { return *stream = calloc(1, 16), !flags; }
#else
int cuStreamCreate(void** stream, unsigned flags) { return *stream = &retained, !flags; }
#endif
#if defined(HOSTS)
typedef struct {
  int round, working, capturing;
} fake_stream;
static int working(const fake_stream* s) { return s->working && s->round == round_of_work; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = ((fake_stream*)stream)->capturing, 0; }
int cuStreamQuery(void* stream) {
  fake_stream* s = stream;
  return s->capturing ? LAUNCH_FAILED : working(s) ? NOT_READY : 0;
}
int cuStreamDestroy_v2(void* stream) { return free(stream), 0; }  // what is queued goes on
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t n, void* stream) {
  fake_stream* s = stream;
  if (n == 4) {
    round_of_work++, busy_streams = 0;
  } else {
    busy_streams += (n == 1) - working(s);
    *s = (fake_stream){round_of_work, n == 1, n == 2};
  }
  return !dst || !src;
}
#elif defined(FOREIGN)
int cuStreamQuery(void* stream) { return stream != (void*)PLAIN || mode != RELAXED ? LAUNCH_FAILED : 0; }
int cuStreamDestroy_v2(void* stream) { return stream ? LAUNCH_FAILED : 1; }
int cuEventDestroy_v2(void* event) { return event ? LAUNCH_FAILED : 1; }
#else
int cuStreamQuery(void* stream) { return stream ? NOT_READY : 1; }
#endif
#if defined(FOREIGN) || defined(HOSTS)
#elif defined(TURNS)
// Streams whose copies fail if others are being queued at the same time, unless one of
// these is so for more than half a ms. To queue one of n bytes takes n microseconds.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long began[64];  // by places; 0 where there is none

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000 + 1;
}
int cuStreamDestroy_v2(void* stream) { return !stream; }
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t n, void* stream) {
  if (!dst || !src || !stream) return 1;
  int mine = 0, others = 0, slow = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < 64; i++) {
    if (!began[i]) mine = i;
    others += began[i] != 0;
    slow += began[i] && now() - began[i] > 500;
  }
  began[mine] = now();
  pthread_mutex_unlock(&mutex);
  for (long left, end = began[mine] + (long)n; (left = end - now()) > 0;)
    usleep(left);  // signals cut it short
  pthread_mutex_lock(&mutex);
  began[mine] = 0;
  pthread_mutex_unlock(&mutex);
  return others && !slow ? LAUNCH_FAILED : 0;
}
#elif defined(QUEUE)
// Streams whose work is done at once; a query says so at the second time of
// asking. A stream can only be destroyed when no event is left.
static int events, copied;
int cuStreamDestroy_v2(void* stream) { return !stream || events; }
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t n, void* stream) {
  if (!dst || !src || !n || !stream) return LAUNCH_FAILED;
  copied = 1;
  return memcpy((void*)dst, (void*)src, n), 0;
}
int cuStreamWriteValue64_v2(void* stream, unsigned long long dst, unsigned long long value, unsigned flags) {
  if (!stream || flags || !dst) return LAUNCH_FAILED;
  return *(unsigned long long*)dst = value, 0;
}
int cuEventCreate(void** event, unsigned flags) {
  if (copied) return LAUNCH_FAILED;  // where a driver may wait
  events++;
  return *event = calloc(1, sizeof(int)), !*event || flags & ~2u;
}
int cuEventDestroy_v2(void* event) { return events--, free(event), 0; }
int cuEventRecord(void* event, void* stream) { return *(int*)event = 1, !stream; }
int cuEventQuery(void* event) { return !event ? 1 : (*(int*)event)-- > 0 ? NOT_READY : 0; }
#else
int cuStreamDestroy_v2(void* stream) { return !stream; }
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t n, void* stream) {
  return !dst || !src || !n || !stream;
}
#endif
int cuStreamSynchronize(void* stream) { return stream ? LAUNCH_FAILED : 1; }
int cuModuleLoadDataEx(void** module, const void* image, unsigned n, int* options, void** values) {
  static char modules[64];
  static int loads;
  return *module = &modules[loads++ % 64], mode != RELAXED || !image || n != 2 || !options || !values;
}
int cuModuleUnload(void* module) { return !module; }
#if defined(OVERLAP)
// Kernels are named after what they were compiled for. Launches that may overlap are told
// from others by failing.
int cuModuleGetFunctionCount(unsigned* count, void* module) { return *count = 0, !module; }
int cuModuleEnumerateFunctions(void** functions, unsigned count, void* module) {
  for (unsigned i = 0; i < count; i++) functions[i] = module;
  return !module;
}
int cuFuncLoad(void* function) { return !function; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return *function = strdup(name), !module;
}
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  return *offset = *size = index, function ? 1 : LAUNCH_FAILED;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
  return *value = atoi(function), attribute == 5 ? 0 : 1;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  return !function || !(gx * gy * gz * bx * by * bz) || shared || !stream || parameters;
}
int cuLaunchKernelEx(const void* config, void* function, void** parameters, void** extra) {
  return !config || !function || parameters || extra ? 1 : LAUNCH_FAILED;
}
#else
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = module, !name; }
#endif
