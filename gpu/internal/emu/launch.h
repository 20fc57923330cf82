// launch.h: one launch of a kernel, shared by the OS threads that run its blocks.
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "explore/engine.h"
#include "fault.h"
#include "mscclgo/emu/abi.h"
#include "race/engine.h"

// The layout of a module's thread-local storage, in bytes from its start.
typedef struct shared_layout {
  uint64_t anchor;      // the anchor symbol
  uint64_t begin, end;  // of __shared__ memory of fixed size
} shared_layout;

// The state of a launch.
typedef enum launch_state {
  LAUNCH_RUNNING,
  LAUNCH_FAILED,     // a thread failed
  LAUNCH_CANCELLED,  // the host cancelled it
} launch_state;

typedef struct launch {
  const mscclgo_emu_kernel* kernel;
  const mscclgo_emu_module* module;
  shared_layout shared;
  mscclgo_emu_dim grid, block;
  uint32_t dynamic_shared;  // bytes
  uint64_t blocks;          // of the grid

  _Atomic int claimed;  // by the thread that writes text
  _Atomic int state;    // launch_state, set after text
  char text[512];
  uint64_t code;        // behind the instruction that failed, or 0
  uint64_t back;        // where its function would return to, if it calls no other
  fault_access access;  // of a fault

  _Atomic int starved;  // 1: there was no memory for a block's stacks

  const explore_engine* explore;  // the explorer, or null
  explore_launch* explored;       // the launch there
  explore_party* stream;          // and the stream

  // Where launches overlap: whether the one before goes on, for which awaitPrevious waits, what the
  // race finder knows once it has ended, and the blocks that have let the next one begin.
  _Atomic int follows;
  uint32_t before;
  _Atomic uint64_t signalled;

  const race_engine* race;  // the race finder, or null
  race_launch raced;        // what it knows of the launch

  // Used by the pool under its lock.
  uint64_t next, finished;
  int counted;  // 1 while it counts as not ended
  struct launch* behind;

  _Alignas(64) unsigned char arguments[MSCCLGO_EMU_ARGUMENT_BYTES];
} launch;

// launch_claim reports to one thread that it may end the launch, by launch_finish.
static inline int launch_claim(launch* l) { return !atomic_exchange(&l->claimed, 1); }

// launch_finish ends the launch. Its threads notice when they next yield or wait.
static inline void launch_finish(launch* l, launch_state state, const char* text) {
  uint32_t n = 0;
  for (; text[n] && n < sizeof(l->text) - 1; n++) l->text[n] = text[n];
  l->text[n] = 0;
  atomic_store_explicit(&l->state, state, memory_order_release);
}

// launch_end ends the launch, unless it has ended.
static inline void launch_end(launch* l, launch_state state, const char* text) {
  if (launch_claim(l)) launch_finish(l, state, text);
}

// launch_ended reports whether the launch's threads must stop.
static inline int launch_ended(launch* l) {
  return atomic_load_explicit(&l->state, memory_order_relaxed) != LAUNCH_RUNNING;
}
