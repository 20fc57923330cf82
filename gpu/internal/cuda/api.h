// The loaded driver: one pointer for each function in functions.h.
#ifndef MSCCLGO_CUDA_API_H
#define MSCCLGO_CUDA_API_H

#include "types.h"

typedef struct {
#define X(name, version, parameters) CUresult(*name) parameters;
#include "functions.h"
#undef X
} mscclgo_cuda;

enum {
#define X(name, version, parameters) MSCCLGO_INDEX_##name,
#include "functions.h"
#undef X
  MSCCLGO_FUNCTIONS
};

// status is the result of every wrapper: a CUresult, or -(index of the function in
// functions.h) - 1 if the driver lacks the function.
typedef int status;

// mscclgo_cuda_load opens the library and looks up every function. On failure it
// returns NULL, writes the loader's message to error, and sets absent if there is no such
// library. The library is never closed: drivers do not support being unloaded.
mscclgo_cuda* mscclgo_cuda_load(const char* library, char* error, size_t error_size, int* absent);

// mscclgo_cuda_function returns the name of a function that the driver lacks and the
// version of CUDA that introduced it.
const char* mscclgo_cuda_function(int index, int* version);

// CALL calls a function that may be missing.
#define CALL(api, name, ...) \
  ((api)->name ? (status)(api)->name(__VA_ARGS__) : -(status)MSCCLGO_INDEX_##name - 1)

// TRY returns from the wrapper with the status of the call, unless that is 0.
#define TRY(call)                      \
  do {                                 \
    status mscclgo_rc = (call);        \
    if (mscclgo_rc) return mscclgo_rc; \
  } while (0)

#endif
