// vector_types.h: what CUDA sources include for the short vectors alone.
#pragma once

#include "mscclgo/emu/vector_types.h"
