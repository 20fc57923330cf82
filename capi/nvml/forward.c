// The functions of libnvidia-ml.so.1, which forward to it once go-nvml has loaded it. Without
// these, go-nvml leaves them undefined until they are first called, which a library that is
// loaded with RTLD_NOW, as Python does, cannot have. scripts/lib compiles this with a list of
// their names, X(name), in names.h.
#include <dlfcn.h>
#include <stddef.h>

// Parameters of these functions are pointers and integers, at most six in registers.
typedef long function(long, long, long, long, long, long, long, long);

enum { FUNCTION_NOT_FOUND = 13 };

static function* find(const char* name) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return library ? (function*)dlsym(library, name) : NULL;
}

#define X(name)                                                                                              \
  long name(long a, long b, long c, long d, long e, long f, long g, long h);                                 \
  long name(long a, long b, long c, long d, long e, long f, long g, long h) {                                \
    static function* found;                                                                                  \
    if (!__atomic_load_n(&found, __ATOMIC_RELAXED)) __atomic_store_n(&found, find(#name), __ATOMIC_RELAXED); \
    return found ? found(a, b, c, d, e, f, g, h) : FUNCTION_NOT_FOUND;                                       \
  }
#include "names.h"
#undef X

const char* nvmlErrorString(int result);
const char* nvmlErrorString(int result) {
  function* found = find("nvmlErrorString");
  return found ? (const char*)found(result, 0, 0, 0, 0, 0, 0, 0) : "libnvidia-ml.so.1 is not loaded";
}
