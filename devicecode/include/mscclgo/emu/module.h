// module.h: what a module exports. A module is one translation unit.
#pragma once

#include "mscclgo/emu/abi.h"

extern "C" {

// The ends of the table of kernels, which the linker sets. They are null where there is no
// kernel.
extern const mscclgo_emu_kernel* const __start_mscclgo_emu_kernels[]
    __attribute__((weak, visibility("hidden")));
extern const mscclgo_emu_kernel* const __stop_mscclgo_emu_kernels[]
    __attribute__((weak, visibility("hidden")));

// The same for dynamic shared memory that is declared outside of functions.
extern void (*const __start_mscclgo_emu_dynamics[])(void*) __attribute__((weak, visibility("hidden")));
extern void (*const __stop_mscclgo_emu_dynamics[])(void*) __attribute__((weak, visibility("hidden")));

__thread uint32_t mscclgo_emu_anchor = MSCCLGO_EMU_ABI;

MSCCLGO_EMU_NO_STEPS static void* mscclgo_emu_get_anchor() { return &mscclgo_emu_anchor; }

extern const mscclgo_emu_module mscclgo_emu_table __attribute__((visibility("default")));
const mscclgo_emu_module mscclgo_emu_table = {
    MSCCLGO_EMU_ABI,
    sizeof(mscclgo_emu_module),
    __start_mscclgo_emu_kernels,
    __stop_mscclgo_emu_kernels,
    __start_mscclgo_emu_dynamics,
    __stop_mscclgo_emu_dynamics,
    mscclgo_emu_get_anchor,
#if defined(MSCCLGO_EMU_RACE)
    1,
#else
    0,
#endif
};

}  // extern "C"
