// module.h: loading a shared object and reading its table.
#pragma once

#include <stdint.h>

#include "mscclgo/emu/abi.h"

typedef struct module {
  void* handle;
  const mscclgo_emu_module* table;
} module;

// module_open loads the object in the file of a descriptor. It returns 1, or 0 and an
// error text of at most size bytes; then *lacked is the errno value of what the process has too
// little of, or 0.
int module_open(module*, int fd, char* text, uint64_t size, int* lacked);

void module_close(module*);

// module_kernel returns the kernel of this number, or null.
const mscclgo_emu_kernel* module_kernel(const module*, uint64_t number);
