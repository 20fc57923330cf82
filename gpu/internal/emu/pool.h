// pool.h: the OS threads of a device, each of which runs one block at a time.
#pragma once

#include "launch.h"

typedef struct pool pool;

// pool_new returns a pool with at most limit resident blocks, or NULL if there is not
// enough memory.
pool* pool_new(uint32_t limit);

// pool_run runs a launch and returns 0 or an errno when it has ended. Launches begin
// their blocks in the order of the calls.
int pool_run(pool*, launch*);

// pool_cancel ends a launch from another OS thread.
void pool_cancel(pool*, launch*);

// pool_free ends the OS threads. No launch may be running.
void pool_free(pool*);
