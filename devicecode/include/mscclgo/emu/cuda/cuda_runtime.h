// cuda_runtime.h: what CUDA sources include. All of it is there already: the
// prelude is in front of every source.
#pragma once

#include "mscclgo/emu/prelude.h"
