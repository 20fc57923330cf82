#include "api.h"

#include <stdlib.h>

#include "native/library.h"

mscclgo_cuda* mscclgo_cuda_load(const char* library, char* error, size_t error_size, int* absent) {
  void* handle = native_open_library(library, error, error_size, absent);
  if (!handle) return NULL;
  mscclgo_cuda* api = calloc(1, sizeof *api);
  if (!api) {
    snprintf(error, error_size, "out of host memory");
    return NULL;
  }
#define X(name, version, parameters) api->name = (CUresult(*) parameters)dlsym(handle, #name);
#include "functions.h"
#undef X
  return api;
}

const char* mscclgo_cuda_function(int index, int* version) {
  static const struct {
    const char* name;
    int version;
  } functions[] = {
#define X(name, version, parameters) {#name, version},
#include "functions.h"
#undef X
  };
  *version = functions[index].version;
  return functions[index].name;
}
