#define _GNU_SOURCE
#include "nvrtc.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct _nvrtcProgram* nvrtcProgram;
typedef int nvrtcResult;
enum {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_CANCELLED = 16
};

// X(function, parameters)
#define FUNCTIONS                                                                                   \
  X(nvrtcVersion, (int*, int*))                                                                     \
  X(nvrtcGetNumSupportedArchs, (int*))                                                              \
  X(nvrtcGetSupportedArchs, (int*))                                                                 \
  X(nvrtcCreateProgram, (nvrtcProgram*, const char*, const char*, int, const char**, const char**)) \
  X(nvrtcDestroyProgram, (nvrtcProgram*))                                                           \
  X(nvrtcCompileProgram, (nvrtcProgram, int, const char**))                                         \
  X(nvrtcGetProgramLogSize, (nvrtcProgram, size_t*))                                                \
  X(nvrtcGetProgramLog, (nvrtcProgram, char*))                                                      \
  X(nvrtcGetPTXSize, (nvrtcProgram, size_t*))                                                       \
  X(nvrtcGetPTX, (nvrtcProgram, char*))                                                             \
  X(nvrtcGetCUBINSize, (nvrtcProgram, size_t*))                                                     \
  X(nvrtcGetCUBIN, (nvrtcProgram, char*))

typedef struct {
#define X(name, parameters) nvrtcResult(*name) parameters;
  FUNCTIONS
#undef X
  const char* (*nvrtcGetErrorString)(nvrtcResult);
  // NULL before CUDA 12.9.
  nvrtcResult (*nvrtcSetFlowCallback)(nvrtcProgram, int (*)(void*, void*), void*);
  void* library;
  void* builtins;
} nvrtc;

static char* text(const char* format, ...) {
  char* s = NULL;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&s, format, arguments) < 0) s = NULL;
  va_end(arguments);
  return s;
}

static mscclgo_nvrtc_result outcome(int which, char* log) {
  return (mscclgo_nvrtc_result){.outcome = which, .log = log};
}

// load returns what is missing, or NULL. unload follows in either case.
static char* load(const char* library, nvrtc* api) {
  void* handle = api->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return text("%s", dlerror());
#define X(name, parameters)                                    \
  api->name = (nvrtcResult(*) parameters)dlsym(handle, #name); \
  if (!api->name) return text("%s has no %s", library, #name);
  FUNCTIONS
#undef X
  api->nvrtcGetErrorString = (const char* (*)(nvrtcResult))dlsym(handle, "nvrtcGetErrorString");
  if (!api->nvrtcGetErrorString) return text("%s has no nvrtcGetErrorString", library);
  api->nvrtcSetFlowCallback =
      (nvrtcResult(*)(nvrtcProgram, int (*)(void*, void*), void*))dlsym(handle, "nvrtcSetFlowCallback");
  // NVRTC opens its second half by bare name. Where the two are in a folder that
  // the loader does not search, it finds what is already open.
  int major, minor;
  char second[4096];
  const char* slash = strrchr(library, '/');
  if (slash && !api->nvrtcVersion(&major, &minor) &&
      (size_t)snprintf(second, sizeof second, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - library),
                       library, major, minor) < sizeof second)
    api->builtins = dlopen(second, RTLD_NOW | RTLD_LOCAL);
  return NULL;
}

// unload frees the library's 60 MB: most programs find all their images in the cache
// after the first run.
static void unload(nvrtc* api) {
  if (api->library) dlclose(api->library);
  if (api->builtins) dlclose(api->builtins);
  malloc_trim(0);
}

static int stopped(void* stop, void* reserved) {
  (void)reserved;
  return __atomic_load_n((int*)stop, __ATOMIC_RELAXED) != 0;
}

// choose returns the architecture to compile for: the wanted one, or else the newest
// older one, whose PTX the driver can compile for the wanted one. It returns 0 if all are
// newer.
static int choose(const nvrtc* api, int wanted, int* oldest) {
  int count = 0, best = 0;
  if (api->nvrtcGetNumSupportedArchs(&count) || count <= 0) return 0;
  int* known = calloc((size_t)count, sizeof *known);
  if (known && !api->nvrtcGetSupportedArchs(known)) {
    *oldest = known[0];
    for (int i = 0; i < count; i++) {
      if (known[i] <= wanted && known[i] > best) best = known[i];
      if (known[i] < *oldest) *oldest = known[i];
    }
  }
  free(known);
  return best;
}

static char* program_log(const nvrtc* api, nvrtcProgram program) {
  size_t size = 0;
  if (api->nvrtcGetProgramLogSize(program, &size) || size == 0) return NULL;
  char* log = calloc(1, size + 1);
  if (log && api->nvrtcGetProgramLog(program, log)) log[0] = 0;
  return log;
}

// compile runs an existing program.
static mscclgo_nvrtc_result compile(const nvrtc* api, nvrtcProgram program, int count, const char** options,
                                    int ptx, int* stop) {
  nvrtcResult rc = NVRTC_SUCCESS;
  if (api->nvrtcSetFlowCallback) rc = api->nvrtcSetFlowCallback(program, stopped, stop);
  if (!rc) rc = api->nvrtcCompileProgram(program, count, options);
  if (rc == NVRTC_ERROR_COMPILATION || rc == NVRTC_ERROR_INVALID_OPTION)
    return outcome(MSCCLGO_NVRTC_SOURCE, program_log(api, program));
  if (rc == NVRTC_ERROR_CANCELLED) return outcome(MSCCLGO_NVRTC_CANCELLED, NULL);
  mscclgo_nvrtc_result result = {.outcome = MSCCLGO_NVRTC_DONE};
  if (!rc) rc = (ptx ? api->nvrtcGetPTXSize : api->nvrtcGetCUBINSize)(program, &result.size);
  if (!rc && !(result.image = malloc(result.size + 1)))
    return outcome(MSCCLGO_NVRTC_FAILED, text("no memory for an image of %zu bytes", result.size));
  if (!rc) rc = (ptx ? api->nvrtcGetPTX : api->nvrtcGetCUBIN)(program, result.image);
  if (!rc) return result;
  free(result.image);
  char* log = program_log(api, program);
  mscclgo_nvrtc_result failed =
      outcome(MSCCLGO_NVRTC_FAILED, text("%s %s", api->nvrtcGetErrorString(rc), log ? log : ""));
  free(log);
  return failed;
}

// run compiles with a loaded library.
static mscclgo_nvrtc_result run(const nvrtc* api, const char* source, int architecture, int option_count,
                                const char** options, int* stop) {
  int oldest = 0, target = choose(api, architecture, &oldest);
  if (!target) return outcome(MSCCLGO_NVRTC_ARCHITECTURE, text("the oldest it knows is sm_%d", oldest));
  int ptx = target != architecture;
  char option[64];
  snprintf(option, sizeof option, "--gpu-architecture=%s_%d", ptx ? "compute" : "sm", target);
  const char** all = calloc((size_t)option_count + 1, sizeof *all);
  if (!all) return outcome(MSCCLGO_NVRTC_FAILED, text("out of host memory"));
  all[0] = option;
  for (int i = 0; i < option_count; i++) all[i + 1] = options[i];

  // The name's folder does not exist: NVRTC would search it for #include "...".
  nvrtcProgram program = NULL;
  nvrtcResult rc = api->nvrtcCreateProgram(&program, source, "/mscclgo/source.cu", 0, NULL, NULL);
  mscclgo_nvrtc_result result;
  if (rc) {
    result = outcome(MSCCLGO_NVRTC_FAILED, text("%s", api->nvrtcGetErrorString(rc)));
  } else {
    result = compile(api, program, option_count + 1, all, ptx, stop);
    api->nvrtcDestroyProgram(&program);
  }
  free(all);
  return result;
}

mscclgo_nvrtc_result mscclgo_nvrtc_compile(const char* library, const char* source, int architecture,
                                           int option_count, const char** options, int* stop) {
  nvrtc api = {0};
  char* missing = load(library, &api);
  mscclgo_nvrtc_result result = missing ? outcome(MSCCLGO_NVRTC_LOAD, missing)
                                        : run(&api, source, architecture, option_count, options, stop);
  unload(&api);
  return result;
}
