// The functions of NVRTC that this package uses, looked up in a library that is
// opened at run time, and one call that does a whole compilation.
#ifndef MSCCLGO_NVRTC_H
#define MSCCLGO_NVRTC_H

#include <stddef.h>

// What a compilation came to.
enum {
  MSCCLGO_NVRTC_DONE,
  MSCCLGO_NVRTC_LOAD,          // the library cannot be opened, or is not NVRTC; see log
  MSCCLGO_NVRTC_ARCHITECTURE,  // older than all that this NVRTC knows; see log
  MSCCLGO_NVRTC_SOURCE,        // the source or an option is wrong; see log
  MSCCLGO_NVRTC_CANCELLED,     // stop was set
  MSCCLGO_NVRTC_FAILED         // anything else; see log
};

typedef struct {
  int outcome;
  char* image;  // a cubin, or PTX for an architecture that NVRTC does not know yet
  size_t size;  // bytes of image
  char* log;    // text, or NULL
} mscclgo_nvrtc_result;

// mscclgo_nvrtc_compile compiles source for architecture, 90 for sm_90. options
// leave the architecture out. It looks at *stop now and then, if this NVRTC can,
// and ends when that is not 0. The caller frees image and log of the result.
mscclgo_nvrtc_result mscclgo_nvrtc_compile(const char* library, const char* source, int architecture,
                                           int option_count, const char** options, int* stop);

#endif
