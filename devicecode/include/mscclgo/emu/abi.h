// abi.h: what the emulated device and a module compiled for it agree on, in plain C: the
// Go side includes it through cgo, the C++ side through runtime.h. Any change of a layout
// or of a meaning raises MSCCLGO_EMU_ABI.
#pragma once

#include <stdint.h>

// The version of everything in this file.
#define MSCCLGO_EMU_ABI 12u

// The name of the one symbol that a module exports, of type mscclgo_emu_module.
#define MSCCLGO_EMU_MODULE_SYMBOL "mscclgo_emu_table"

// __shared__ memory of fixed size is the module's zero-initialised thread-local storage. The
// anchor is the one initialised variable: its address and its symbol's value tell where all
// the others are.
#define MSCCLGO_EMU_ANCHOR_SYMBOL "mscclgo_emu_anchor"

// Limits of a launch.
enum {
  MSCCLGO_EMU_WARP = 32,                  // threads
  MSCCLGO_EMU_MAX_THREADS = 1024,         // in a block
  MSCCLGO_EMU_SHARED_BYTES = 227 * 1024,  // in a block, static and dynamic
  MSCCLGO_EMU_SHARED_ALIGNMENT = 128,     // of dynamic shared memory, in bytes
  MSCCLGO_EMU_ARGUMENT_BYTES = 4096,      // of a kernel
};

// Each CUDA thread that is running has a stack of this many bytes, aligned to its size,
// with its mscclgo_emu_thread as the last object on it. So a thread finds its own from the
// stack pointer, which is faster than thread-local storage.
#define MSCCLGO_EMU_STACK_BYTES (256u * 1024u)

// What no thread of a kernel calls is not to be interrupted as those are.
#ifdef __clang__
#define MSCCLGO_EMU_NO_STEPS __attribute__((no_sanitize("coverage")))
#else
#define MSCCLGO_EMU_NO_STEPS __attribute__((no_sanitize_coverage))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mscclgo_emu_dim {
  uint32_t x, y, z;
} mscclgo_emu_dim;

struct mscclgo_emu_runtime;

// A block as its threads see it.
typedef struct mscclgo_emu_block {
  const struct mscclgo_emu_runtime* runtime;
  mscclgo_emu_dim block_dim, grid_dim, block_index;
  uint32_t dynamic_shared;  // bytes
  void* dynamic;            // those bytes; what follows them faults
  // For each page of the address space, 0 unless accesses are to be told; null if all are.
  const uint64_t* watched;
} mscclgo_emu_block;

// A CUDA thread. The members from `polls` to `steps` belong to runtime.h.
typedef struct mscclgo_emu_thread {
  mscclgo_emu_block* block;
  mscclgo_emu_dim index;
  uint32_t rank;  // in the block, x fastest
  uint32_t lane;  // rank % 32
  uint32_t polls, looks;
  const volatile void* polled;
  uint64_t seen;
  uint32_t steps;
  uint32_t calls;  // of groups, that it has ended; of group.cuh
} __attribute__((aligned(64))) mscclgo_emu_thread;

// What the lanes of a warp do together. The comments tell what each lane gets.
typedef enum mscclgo_emu_collective {
  MSCCLGO_EMU_SYNC,          // nothing
  MSCCLGO_EMU_SHUFFLE,       // the value of lane `source`
  MSCCLGO_EMU_BALLOT,        // a bit for each lane with a value that is not 0
  MSCCLGO_EMU_MATCH_ANY,     // a bit for each lane with the same value
  MSCCLGO_EMU_ADD,           // reductions of 32 bits
  MSCCLGO_EMU_MIN_SIGNED,    //
  MSCCLGO_EMU_MAX_SIGNED,    //
  MSCCLGO_EMU_MIN_UNSIGNED,  //
  MSCCLGO_EMU_MAX_UNSIGNED,  //
  MSCCLGO_EMU_AND,           //
  MSCCLGO_EMU_OR,            //
  MSCCLGO_EMU_XOR,           //
} mscclgo_emu_collective;

// Why a thread yields.
typedef enum mscclgo_emu_yield {
  MSCCLGO_EMU_WAITING,  // it waits for something that has not happened
  MSCCLGO_EMU_WORKING,  // it lets others run, but has work of its own
  MSCCLGO_EMU_LOOKED,   // what it said it awaits has not happened
} mscclgo_emu_yield;

// What a thread waits for, as its Watch says (wait.cuh).
typedef struct mscclgo_emu_wait {
  const void* group;       // the group's status
  uint32_t channel, peer;  // of the Watch
  uint64_t number;         // of the signal, or 0
} mscclgo_emu_wait;

// What a module that is compiled for the race finder or the explorer tells: orders, a sum of bits, scopes,
// and operations on words. A fence or operation with both orders is sequentially consistent. A load
// of the newest gets that where it could get an older value: hardware promises it, and PTX does not.
enum { MSCCLGO_EMU_ACQUIRE = 1, MSCCLGO_EMU_RELEASE = 2, MSCCLGO_EMU_NEWEST = 4 };
enum { MSCCLGO_EMU_SYSTEM, MSCCLGO_EMU_DEVICE, MSCCLGO_EMU_BLOCK };
enum {
  MSCCLGO_EMU_LOAD,
  MSCCLGO_EMU_STORE,
  MSCCLGO_EMU_EXCHANGE,
  MSCCLGO_EMU_COMPARE,
  MSCCLGO_EMU_FETCH_ADD
};

// How memory is accessed, else than by atomic operations. What a constant read reads is not written during
// the launch.
enum { MSCCLGO_EMU_WRITE = 1, MSCCLGO_EMU_VOLATILE = 2, MSCCLGO_EMU_CONSTANT = 4 };

typedef struct mscclgo_emu_atomic {
  void* at;
  uint64_t value, expected;           // expected of a load: the least value that is awaited, or 0
  uint32_t what, size, order, scope;  // size in bytes
} mscclgo_emu_atomic;

// What the device does for a thread; each is called by the thread it names.
typedef struct mscclgo_emu_runtime {
  // yield runs other threads of the block.
  void (*yield)(mscclgo_emu_thread*, mscclgo_emu_yield);
  // await tells what the thread waits for, before it first yields there, or, with null, that
  // it waits no more. In between it does nothing but look whether memory has changed.
  void (*await)(mscclgo_emu_thread*, const mscclgo_emu_wait*);
  // barrier waits until every live thread of the block has called it. It returns how many
  // of them passed a predicate that is not 0 (low 32 bits), and how many called (high 32
  // bits).
  uint64_t (*barrier)(mscclgo_emu_thread*, int predicate);
  // collective waits until every live lane in mask has called it with that mask. A lane
  // that is not in its own mask gets its value back.
  uint64_t (*collective)(mscclgo_emu_thread*, mscclgo_emu_collective, uint32_t mask, uint64_t value,
                         uint32_t source);
  // active_mask returns the lanes of the warp that are at the same place, which is not 0.
  uint32_t (*active_mask)(mscclgo_emu_thread*, uint32_t place);
  // sleep returns after a number of nanoseconds, in which other threads run.
  void (*sleep)(mscclgo_emu_thread*, uint32_t nanoseconds);
  // fail ends the kernel, unless another thread has: with an error of that text, and the line that the
  // return address `code` is of, unless that is null. It does not return.
  void (*fail)(mscclgo_emu_thread*, const char* text, const void* code);
  // The rest is for the race finder and the explorer; code is where the thread makes the access.
  // accessed tells of an access to watched memory, and precedes it. how is of MSCCLGO_EMU_WRITE and so
  // on.
  void (*accessed)(mscclgo_emu_thread*, const void* at, uint64_t size, uint32_t how, const void* code);
  // atomic does an operation on a word, and returns what it was.
  uint64_t (*atomic)(mscclgo_emu_thread*, const mscclgo_emu_atomic*, const void* code);
  // fence tells of a fence.
  void (*fence)(mscclgo_emu_thread*, uint32_t order, uint32_t scope, const void* code);
  // clock returns nanoseconds, as all clocks of CUDA do.
  uint64_t (*clock)(mscclgo_emu_thread*);
  // previous waits for the end of the launch before, and lets the next one begin.
  void (*previous)(mscclgo_emu_thread*);
} mscclgo_emu_runtime;

// Where a parameter is in the bytes of a launch's arguments.
typedef struct mscclgo_emu_param {
  uint32_t offset, size;
} mscclgo_emu_param;

// A kernel that can be loaded by name.
typedef struct mscclgo_emu_kernel {
  const char* name;
  void (*invoke)(const void* arguments);  // one thread's run; aligned to 64
  const mscclgo_emu_param* params;
  uint32_t param_count;
  uint32_t argument_bytes;
  uint32_t max_threads;  // of a block, from __launch_bounds__, or 0
} mscclgo_emu_kernel;

// A module. abi comes first in every version.
typedef struct mscclgo_emu_module {
  uint32_t abi;
  uint32_t size;  // of this struct
  const mscclgo_emu_kernel* const* kernels;
  const mscclgo_emu_kernel* const* kernels_end;
  // Each stores the block's dynamic shared memory for the calling OS thread, where the
  // module declares it outside of functions.
  void (*const* dynamics)(void*);
  void (*const* dynamics_end)(void*);
  // anchor returns the calling OS thread's MSCCLGO_EMU_ANCHOR_SYMBOL, which allocates its
  // __shared__ memory.
  void* (*anchor)(void);
  uint32_t watched;  // 1 if it is compiled for the race finder and the explorer
} mscclgo_emu_module;

#ifdef __cplusplus
}
#endif
