#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static bool forked;  // this process is a child that has not called exec
static pthread_key_t failures;
static struct rlimit files;  // as it was before Go's runtime started

// failure is what the last call of a thread that failed has to tell.
typedef struct {
  char* text;
  int rank, peer;
} failure;

static void free_failure(void* of) {
  failure* f = of;
  free(f->text);
  free(f);
}

static void in_child(void) {
  if (!forked) capi_close_polled();
  forked = true;
}

// The driver's functions, once the process has loaded the driver, whoever did.
static int (*get_current)(void**);
static int (*set_current)(void*);

// loads stores how many libraries the process has loaded so far: the linker tells it with each.
static int loads(struct dl_phdr_info* info, size_t size, void* count) {
  (void)size;
  *(unsigned long long*)count = info->dlpi_adds;
  return 1;  // the first is enough
}

// current returns the calling thread's CUDA context, or NULL.
static void* current(void) {
  void* context = NULL;
  int (*get)(void**) = __atomic_load_n(&get_current, __ATOMIC_ACQUIRE);
  if (!get) {
    // To look for a library that is not there takes long, so only if something was loaded.
    static unsigned long long looked;
    unsigned long long now = 0;
    dl_iterate_phdr(loads, &now);
    if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE) == now) return NULL;
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) {  // nobody can have made one
      __atomic_store_n(&looked, now, __ATOMIC_RELEASE);
      return NULL;
    }
    __atomic_store_n(&set_current, (int (*)(void*))dlsym(driver, "cuCtxSetCurrent"), __ATOMIC_RELAXED);
    get = (int (*)(void**))dlsym(driver, "cuCtxGetCurrent");
    if (!get || !set_current) return NULL;  // not a driver
    __atomic_store_n(&get_current, get, __ATOMIC_RELEASE);
  }
  return get(&context) ? NULL : context;
}

// prepare runs before Go's runtime starts, which has no priority.
__attribute__((constructor(101))) static void prepare(void) {
  getrlimit(RLIMIT_NOFILE, &files);
  pthread_key_create(&failures, free_failure);
  pthread_atfork(NULL, NULL, in_child);
}

bool capi_enter(void** context) {
  if (forked) {
    char* text = strdup(
        "mscclgo: use the library: invalid use: this process is a fork of the one that loaded it, and may "
        "only "
        "call exec; start processes that use the library by exec (in Python by multiprocessing's method "
        "spawn)");
    capi_fail(text, -1, -1);
    return false;
  }
  *context = current();
  return true;
}

void capi_leave(void* context) {
  if (current() != context) set_current(context);
}

void capi_fail(char* text, int rank, int peer) {
  failure* f = pthread_getspecific(failures);
  if (!f) {
    f = calloc(1, sizeof *f);
    if (!f || pthread_setspecific(failures, f)) {
      free(f);
      free(text);
      return;
    }
  }
  free(f->text);
  *f = (failure){text, rank, peer};
}

const char* mscclgo_error_text(void) {
  const failure* f = pthread_getspecific(failures);
  return f && f->text ? f->text : "";
}

int mscclgo_error_rank(void) {
  const failure* f = pthread_getspecific(failures);
  return f ? f->rank : -1;
}

int mscclgo_error_peer(void) {
  const failure* f = pthread_getspecific(failures);
  return f ? f->peer : -1;
}

char** capi_environment(void) { return environ; }

int capi_keep_limit(void) { return setrlimit(RLIMIT_NOFILE, &files); }

void capi_log(mscclgo_log f, uintptr_t user, int level, const char* text) { f((void*)user, level, text); }

int capi_handle(mscclgo_handler f, uintptr_t user, const mscclgo_trigger* trigger, char* why) {
  return f((void*)user, trigger, why);
}
