// device_launch_parameters.h: what CUDA sources include for threadIdx and the like.
#pragma once

#include "mscclgo/emu/prelude.h"
