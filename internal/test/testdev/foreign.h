#pragma once

#include <stddef.h>

/* Both give the CUDA driver's status. The device's primary context stays retained
   once for each call: the process is a test's. */
typedef enum {
  foreign_plain,      /* cuMemAlloc */
  foreign_pool,       /* cuMemAllocAsync */
  foreign_expandable, /* virtual memory in mappings of 2 MiB, without descriptors */
} foreign_kind;

int foreign_alloc(int device, foreign_kind kind, size_t size, unsigned long long* ptr);
int foreign_free(int device, foreign_kind kind, size_t size, unsigned long long ptr);
