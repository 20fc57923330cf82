// cuda_fp8.h: CUDA's floating point numbers of 8 bits for the emulated device:
// conversions from and to float, which is what the library reduces them in.
#pragma once

#include "mscclgo/emu/float8.h"

using __nv_fp8_e4m3 = ::mscclgo::emu::Float8<4, 3>;
using __nv_fp8_e5m2 = ::mscclgo::emu::Float8<5, 2>;
using __nv_fp8_storage_t = unsigned char;
