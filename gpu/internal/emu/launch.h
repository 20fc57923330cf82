// launch.h: one launch of a kernel, shared by the OS threads that run its blocks.
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "mscclgo/emu/abi.h"

// Where a module's thread-local storage holds what, in bytes from its start.
typedef struct shared_layout {
  uint64_t anchor;         // the anchor symbol
  uint64_t begin, end;     // what __shared__ memory occupies
  uint64_t dynamic;        // the dynamic array in it
  uint64_t dynamic_bytes;  // 0 where no kernel uses it
} shared_layout;

// What a launch came to.
typedef enum launch_state {
  LAUNCH_RUNNING,
  LAUNCH_FAILED,     // a thread failed
  LAUNCH_CANCELLED,  // the host ended it
} launch_state;

typedef struct launch {
  const mscclgo_emu_kernel* kernel;
  void* (*anchor)(void);  // of the module
  shared_layout shared;
  mscclgo_emu_dim grid, block;
  uint32_t dynamic_shared;  // bytes
  uint64_t blocks;          // of the grid

  _Atomic int claimed;  // by whoever writes text
  _Atomic int state;    // launch_state, set when text is written
  char text[512];

  // The pool's, under its lock.
  uint64_t next, finished;
  struct launch* behind;

  _Alignas(64) unsigned char arguments[MSCCLGO_EMU_ARGUMENT_BYTES];
} launch;

// launch_end ends the launch, unless something else has. Its threads see that
// when they next yield or wait.
static inline void launch_end(launch* l, launch_state state, const char* text) {
  if (atomic_exchange(&l->claimed, 1)) return;
  uint32_t n = 0;
  for (; text[n] && n < sizeof(l->text) - 1; n++) l->text[n] = text[n];
  l->text[n] = 0;
  atomic_store_explicit(&l->state, state, memory_order_release);
}

// launch_ended says whether the launch's threads have to stop.
static inline int launch_ended(launch* l) {
  return atomic_load_explicit(&l->state, memory_order_relaxed) != LAUNCH_RUNNING;
}
