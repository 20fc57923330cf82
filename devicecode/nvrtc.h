// Compilation by NVRTC, a library that is opened at run time.
#ifndef MSCCLGO_NVRTC_H
#define MSCCLGO_NVRTC_H

#include <stddef.h>

// The outcomes of a compilation.
enum {
  MSCCLGO_NVRTC_DONE,
  MSCCLGO_NVRTC_LOAD,          // the library cannot be opened, or is not NVRTC; see log
  MSCCLGO_NVRTC_ARCHITECTURE,  // older than all that this NVRTC supports; see log
  MSCCLGO_NVRTC_SOURCE,        // the source or an option is wrong; see log
  MSCCLGO_NVRTC_CANCELLED,     // stop was set
  MSCCLGO_NVRTC_FAILED         // anything else; see log
};

typedef struct {
  int outcome;
  char* image;  // a cubin, or PTX for an architecture newer than this NVRTC
  size_t size;  // bytes of image
  char* log;    // text, or NULL
} mscclgo_nvrtc_result;

// mscclgo_nvrtc_compile compiles source for architecture, 90 for sm_90. options do not
// have the architecture. If this NVRTC supports it, the compilation ends soon after *stop
// becomes nonzero. The caller frees image and log of the result.
mscclgo_nvrtc_result mscclgo_nvrtc_compile(const char* library, const char* source, int architecture,
                                           int option_count, const char** options, int* stop);

#endif
