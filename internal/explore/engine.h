// engine.h: what the emulated device calls of the explorer. Whoever has the turn runs, and all
// others that take part wait for theirs: a party is a block of a kernel, a stream, or a
// goroutine of the host. Only whoever has the turn calls these, unless they say otherwise.
#ifndef MSCCLGO_EXPLORE_ENGINE_H
#define MSCCLGO_EXPLORE_ENGINE_H

#include <stdint.h>

#include "mscclgo/emu/abi.h"
#include "race/engine.h"

typedef struct explore_party explore_party;

// explore_launch is one launch of a kernel.
typedef struct explore_launch explore_launch;

// What a thread is about to do at a place where another may have the turn instead.
typedef enum explore_point {
  EXPLORE_BEGIN,
  EXPLORE_READ,
  EXPLORE_WRITE,
  EXPLORE_LOAD,    // an atomic operation that only reads
  EXPLORE_UPDATE,  // any other
  EXPLORE_FENCE,
  EXPLORE_YIELD,
  EXPLORE_LOOK,     // in a wait: what it waits for has not happened
  EXPLORE_BARRIER,  // __syncthreads
  EXPLORE_WARP,     // a warp function
  EXPLORE_END,
  EXPLORE_STEP,      // of a stream
  EXPLORE_HOST,      // a call of the host
  EXPLORE_WAIT,      // a wait of the host or of a stream
  EXPLORE_PREVIOUS,  // a wait for the end of the launch before
  EXPLORE_OLD,       // a load that gets an older value than the newest
} explore_point;

typedef struct explore_engine {
  // launch has the blocks of a kernel take part, as many at a time as are resident on the
  // device, which is any address. It returns NULL if there is no memory.
  explore_launch* (*launch)(explore_party* stream, const void* device, uint32_t resident, const char* kernel,
                            const void* code, uint64_t blocks, uint32_t threads);
  // running reports whether a block of a launch has not ended.
  int (*running)(const explore_launch*);
  // finish has the stream wait until all blocks of its launch have ended.
  void (*finish)(explore_party* stream, explore_launch*);
  // block returns the party of a block. Any OS thread may call it while the launch lasts.
  explore_party* (*block)(explore_launch*, uint64_t number);
  // enter waits, on the OS thread of a block, for its first turn, and returns the thread that
  // has it, as all that return one: or a number below 0 if the exploration is over, when the
  // block is to end at once.
  int (*enter)(explore_party* block);
  // ready has a thread that was held go on.
  void (*ready)(explore_party* block, uint32_t thread);
  // ended tells that the thread that has the turn has ended.
  void (*ended)(explore_party* block);
  // next gives the turn away, as the thread is held until ready, or has ended. It returns -1
  // too, with the turn still here, if all threads of the block have ended.
  int (*next)(explore_party* block, explore_point, const void* code);
  // point may give the turn away.
  int (*point)(explore_party* block, explore_point, const void* code);
  // spins gives the turn away until somebody has written. looks tells that nothing but memory
  // decides whether the thread goes on, as what says; or else it polls, perhaps.
  int (*spins)(explore_party* block, explore_point, const mscclgo_emu_wait* what, const void* code);
  // old returns of how many writes ago the value is that the next load of the thread that has the
  // turn gets, of which there are so many, or 0 for the newest. of is what it does not get.
  uint32_t (*old)(explore_party* block, uint32_t most, const race_old* of, const void* code);
  // wrote tells that the thread that has the turn changes memory, before it gives it away.
  void (*wrote)(explore_party* block);
  // happened tells that what a stream waits for may have happened.
  void (*happened)(void);
  // left ends a block that has the turn. text is why its launch failed, or NULL.
  void (*left)(explore_party* block, const char* text);
  // why returns the reason if the exploration is over, or NULL. Any thread may call it.
  const char* (*why)(void);
  // clock returns nanoseconds, which depend on the schedule alone.
  uint64_t (*clock)(void);
} explore_engine;

#endif
