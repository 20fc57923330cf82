// pool.h: the OS threads of a device, each of which runs one block at a time.
#pragma once

#include "launch.h"

typedef struct pool pool;

// pool_new makes a pool in which at most that many blocks are resident. NULL
// when there is no memory.
pool* pool_new(uint32_t limit);

// pool_run runs a launch and returns when it has ended; the result is 0 or an
// errno. Launches begin their blocks in the order of the calls.
int pool_run(pool*, launch*);

// pool_cancel ends a launch from another OS thread.
void pool_cancel(pool*, launch*);

// pool_free ends the OS threads. No launch may be under way.
void pool_free(pool*);
