#define _GNU_SOURCE
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

// shortage returns the errno value of what the process has too little of, by what the loader says,
// which tells it in words only, or 0.
static int shortage(const char* why) {
  const int all[] = {EMFILE, ENFILE, ENOMEM};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    if (strstr(why, strerror(all[i]))) return all[i];
  }
  return 0;
}

int module_open(module* m, int fd, char* text, uint64_t size, int* lacked) {
  char path[64];
  *lacked = 0;
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  m->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!m->handle) {
    const char* why = dlerror();
    if (!why) why = "dlopen failed";
    *lacked = shortage(why);
    snprintf(text, size, "%s", why);
    return 0;
  }
  m->table = dlsym(m->handle, MSCCLGO_EMU_MODULE_SYMBOL);
  if (!m->table) {
    snprintf(text, size, "it has no symbol %s", MSCCLGO_EMU_MODULE_SYMBOL);
  } else if (m->table->abi != MSCCLGO_EMU_ABI || m->table->size != sizeof(*m->table)) {
    snprintf(text, size, "it is for version %u of the emulated device, this is version %u; compile it again",
             m->table->abi, MSCCLGO_EMU_ABI);
  } else {
    return 1;
  }
  module_close(m);
  return 0;
}

void module_close(module* m) { dlclose(m->handle); }

const mscclgo_emu_kernel* module_kernel(const module* m, uint64_t number) {
  const mscclgo_emu_module* t = m->table;
  return number < (uint64_t)(t->kernels_end - t->kernels) ? t->kernels[number] : NULL;
}
