// module.h: loading a shared object and reading its table.
#pragma once

#include <stdint.h>

#include "mscclgo/emu/abi.h"

typedef struct module {
  void* handle;
  const mscclgo_emu_module* table;
} module;

// module_open loads the object that a descriptor names. It gives 1, or 0 and a
// text that says why not, cut off at size.
int module_open(module*, int fd, char* text, uint64_t size);

void module_close(module*);

// module_kernel gives the kernel of that number, or null.
const mscclgo_emu_kernel* module_kernel(const module*, uint64_t number);
