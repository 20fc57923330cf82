// pool.h: the OS threads of a device, each of which runs one block at a time.
#pragma once

#include "launch.h"
#include "stall.h"

typedef struct pool pool;

// pool_load is what a pool has to do.
typedef struct pool_load {
  uint32_t launches;  // that have not ended
  uint64_t unbegun;   // blocks of these
  uint64_t epoch;     // of the idle OS threads; see stall_answer
} pool_load;

// pool_new returns a pool with at most limit resident blocks, or NULL if there is not
// enough memory.
pool* pool_new(uint32_t limit);

// pool_begin begins a launch and returns 0 or an errno. Launches begin their blocks in the order of
// the calls.
int pool_begin(pool*, launch*);

// pool_ended reports whether a launch that was begun has ended, or could not be. pool_end waits for
// that.
int pool_ended(pool*, launch*);
void pool_end(pool*, launch*);

// pool_cancel ends a launch from another OS thread.
void pool_cancel(pool*, launch*);

// pool_ask asks all blocks, also ones that begin later, what they wait for.
void pool_ask(pool*, uint32_t question);

// pool_told returns how many blocks have answered a question, and copies their answers, at
// most one for each resident block, or returns -1 if a block has not, or one may begin.
int pool_told(pool*, uint32_t question, stall_answer* answers, pool_load* load);

// pool_free ends the OS threads. No launch may be running.
void pool_free(pool*);
