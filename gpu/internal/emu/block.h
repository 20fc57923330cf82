// block.h: runs one block of a launch on the calling OS thread, with a fiber for
// each of its CUDA threads.
#pragma once

#include "launch.h"

typedef struct block block;

// block_new returns what one OS thread needs to run blocks, one after the other, or NULL
// if there is not enough memory.
block* block_new(void);

// block_run runs the block with this index until all its threads, or the launch, have
// ended.
void block_run(block*, launch*, mscclgo_emu_dim index);

// block_trim gives back the memory of stacks, which the next block maps again. None runs.
void block_trim(block*);

void block_free(block*);
