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

#ifdef NO_GPU
int cuInit(unsigned flags) { return flags ? 1 : NO_DEVICE; }
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
  return attribute > 100 ? 1 : device;  // as a driver that is older than the attribute
}
int cuDevicePrimaryCtxRetain(void** ctx, int device) {
  if (retained || device) return DEVICE_UNAVAILABLE;
  retained = 1;
  return *ctx = &retained, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { return retained = 0, device; }
int cuCtxSetCurrent(void* ctx) { return ctx == &retained && retained ? 0 : 201; }

// The mode in which a thread's calls disturb no capture is RELAXED. What needs it
// fails without, and what is called often does not pay for it.
enum { RELAXED = 2, CAPTURE_UNSUPPORTED = 900 };
static __thread int mode;
int cuThreadExchangeStreamCaptureMode(int* other) {
  int was = mode;
  return mode = *other, *other = was, 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  return *free = 4096, *total = 1 << 20, mode ? LAUNCH_FAILED : 0;
}
int cuMemAlloc_v2(unsigned long long* ptr, size_t size) {
  return *ptr = 0, mode != RELAXED ? CAPTURE_UNSUPPORTED : size > 4096 ? OUT_OF_MEMORY : 0;
}
int cuMemFree_v2(unsigned long long ptr) { return mode != RELAXED ? CAPTURE_UNSUPPORTED : (int)ptr; }
int cuStreamCreate(void** stream, unsigned flags) { return *stream = &retained, !flags; }
int cuStreamQuery(void* stream) { return stream ? NOT_READY : 1; }
#if defined(TURNS)
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
  for (long end = began[mine] + (long)n; now() < end;) usleep(end - now());  // signals cut it short
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
  return *module = &retained, mode != RELAXED || !image || n != 2 || !options || !values;
}
int cuModuleUnload(void* module) { return !module; }
#if defined(OVERLAP)
// Kernels are named after what they were compiled for. Launches that may overlap are told
// from others by failing.
int cuModuleGetFunctionCount(unsigned* count, void* module) { return *count = 0, !module; }
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
  return !function || !(gx * gy * gz * bx * by * bz) || shared || !stream || parameters || extra;
}
int cuLaunchKernelEx(const void* config, void* function, void** parameters, void** extra) {
  return !config || !function || parameters || extra ? 1 : LAUNCH_FAILED;
}
#else
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = module, !name; }
#endif
