#include "foreign.h"

#include <dlfcn.h>

typedef int (*retain_fn)(void** context, int device);
typedef int (*push_fn)(void* context);
typedef int (*pop_fn)(void** context);
typedef int (*alloc_fn)(unsigned long long* ptr, size_t size);
typedef int (*free_fn)(unsigned long long ptr);

enum { no_driver = 999 }; /* CUDA_ERROR_UNKNOWN */

/* Makes the device's primary context current, calls, and puts all back. */
static int with_context(int device, int (*call)(void* library, void* arguments), void* arguments) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return no_driver;
  retain_fn retain = (retain_fn)dlsym(library, "cuDevicePrimaryCtxRetain");
  push_fn push = (push_fn)dlsym(library, "cuCtxPushCurrent_v2");
  pop_fn pop = (pop_fn)dlsym(library, "cuCtxPopCurrent_v2");
  void* context;
  if (!retain || !push || !pop) return no_driver;
  int rc = retain(&context, device);
  if (rc == 0) rc = push(context);
  if (rc == 0) {
    rc = call(library, arguments);
    pop(&context);
  }
  return rc;
}

struct allocation {
  unsigned long long ptr;
  size_t size;
};

static int call_alloc(void* library, void* arguments) {
  struct allocation* a = arguments;
  alloc_fn alloc = (alloc_fn)dlsym(library, "cuMemAlloc_v2");
  return alloc ? alloc(&a->ptr, a->size) : no_driver;
}

static int call_free(void* library, void* arguments) {
  struct allocation* a = arguments;
  free_fn release = (free_fn)dlsym(library, "cuMemFree_v2");
  return release ? release(a->ptr) : no_driver;
}

int foreign_alloc(int device, size_t size, unsigned long long* ptr) {
  struct allocation a = {0, size};
  int rc = with_context(device, call_alloc, &a);
  *ptr = a.ptr;
  return rc;
}

int foreign_free(int device, unsigned long long ptr) {
  struct allocation a = {ptr, 0};
  return with_context(device, call_free, &a);
}
