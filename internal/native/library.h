// Libraries that are loaded where the machine has them.
#ifndef MSCCLGO_NATIVE_LIBRARY_H
#define MSCCLGO_NATIVE_LIBRARY_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

// native_open_library opens a library. On failure it returns NULL, writes the loader's message to error, and
// sets absent if there is no such file. A file that is broken, or lacks a library that it needs, is
// not absent.
static inline void* native_open_library(const char* library, char* error, size_t size, int* absent) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle) return handle;
  snprintf(error, size, "%s", dlerror());
  const char* none = strerror(ENOENT);  // in the language of the loader's message, which ends so
  size_t length = strlen(error), end = strlen(none);
  *absent = strstr(error, library) && length >= end && !strcmp(error + length - end, none);
  return NULL;
}

#endif
