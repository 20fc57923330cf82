#pragma once

#include <stddef.h>

/* Both give the CUDA driver's status. The device's primary context stays retained
   once for each call: the process is a test's. */
int foreign_alloc(int device, size_t size, unsigned long long* ptr);
int foreign_free(int device, unsigned long long ptr);
