// block.h: runs one block of a launch on the calling OS thread, with a fiber for
// each of its CUDA threads.
#pragma once

#include "launch.h"

typedef struct block block;

// block_new makes what one OS thread needs to run blocks, one after the other.
// NULL when there is no memory.
block* block_new(void);

// block_run runs the block of that index until all its threads have ended or the
// launch has.
void block_run(block*, launch*, mscclgo_emu_dim index);

void block_free(block*);
