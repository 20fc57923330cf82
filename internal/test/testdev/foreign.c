#include "foreign.h"

#include <dlfcn.h>

typedef int (*retain_fn)(void** context, int device);
typedef int (*push_fn)(void* context);
typedef int (*pop_fn)(void** context);

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
  int device;
  foreign_kind kind;
  unsigned long long ptr;
  size_t size;
};

enum { piece = 2 << 20 };

/* The properties of memory: pinned, without a handle, on the device. */
struct properties {
  int type, handles, location, device;
  void* windows;
  unsigned char flags[8];
};

struct access {
  int location, device, flags;
};

/* Calls a function of the driver by its name. */
#define DRIVER(library, name, parameters, ...)                           \
  __extension__({                                                        \
    int(*function) parameters = (int(*) parameters)dlsym(library, name); \
    function ? function(__VA_ARGS__) : no_driver;                        \
  })

typedef unsigned long long number;

static int expand(void* library, struct allocation* a) {
  size_t size = (a->size + piece - 1) / piece * piece;
  struct properties p = {1, 0, 1, a->device, NULL, {0}};
  struct access access = {1, a->device, 3};
  int rc = DRIVER(library, "cuMemAddressReserve", (number*, size_t, size_t, number, number), &a->ptr, size, 0,
                  0, 0);
  for (size_t at = 0; !rc && at < size; at += piece) {
    number handle;
    rc = DRIVER(library, "cuMemCreate", (number*, size_t, struct properties*, number), &handle, piece, &p, 0);
    if (!rc)
      rc = DRIVER(library, "cuMemMap", (number, size_t, size_t, number, number), a->ptr + at, piece, 0,
                  handle, 0);
    if (!rc) rc = DRIVER(library, "cuMemRelease", (number), handle);
  }
  return rc ? rc
            : DRIVER(library, "cuMemSetAccess", (number, size_t, struct access*, size_t), a->ptr, size,
                     &access, 1);
}

static int call_alloc(void* library, void* arguments) {
  struct allocation* a = arguments;
  switch (a->kind) {
    case foreign_expandable:
      return expand(library, a);
    case foreign_pool: {
      int rc = DRIVER(library, "cuMemAllocAsync", (number*, size_t, void*), &a->ptr, a->size, NULL);
      return rc ? rc : DRIVER(library, "cuStreamSynchronize", (void*), NULL);
    }
    default:
      return DRIVER(library, "cuMemAlloc_v2", (number*, size_t), &a->ptr, a->size);
  }
}

static int call_free(void* library, void* arguments) {
  struct allocation* a = arguments;
  size_t size = (a->size + piece - 1) / piece * piece;
  switch (a->kind) {
    case foreign_expandable: {
      int rc = DRIVER(library, "cuMemUnmap", (number, size_t), a->ptr, size);
      return rc ? rc : DRIVER(library, "cuMemAddressFree", (number, size_t), a->ptr, size);
    }
    case foreign_pool:
      return DRIVER(library, "cuMemFreeAsync", (number, void*), a->ptr, NULL);
    default:
      return DRIVER(library, "cuMemFree_v2", (number), a->ptr);
  }
}

int foreign_alloc(int device, foreign_kind kind, size_t size, unsigned long long* ptr) {
  struct allocation a = {device, kind, 0, size};
  int rc = with_context(device, call_alloc, &a);
  *ptr = a.ptr;
  return rc;
}

int foreign_free(int device, foreign_kind kind, size_t size, unsigned long long ptr) {
  struct allocation a = {device, kind, ptr, size};
  return with_context(device, call_free, &a);
}
