// prelude.h: precedes every source that is compiled for the emulated device, with what
// CUDA's compilers know without an include.
#pragma once

#define MSCCLGO_EMU 1
#define __CUDACC__ 1

#include <assert.h>
#include <stdio.h>

#include "mscclgo/emu/atomics.h"
#include "mscclgo/emu/intrinsics.h"
#include "mscclgo/emu/kernel.h"
#include "mscclgo/emu/module.h"
#include "mscclgo/emu/race.h"
#include "mscclgo/emu/runtime.h"
#include "mscclgo/emu/vector_types.h"
#include "mscclgo/emu/warp.h"
