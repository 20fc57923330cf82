// cuda_runtime.h: what CUDA sources include. The prelude, which precedes every source,
// already has all of it.
#pragma once

#include "mscclgo/emu/prelude.h"
