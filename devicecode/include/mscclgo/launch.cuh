// Launches that begin while the kernel before them ends.
#pragma once

#include <mscclgo/config.cuh>

namespace mscclgo {

// awaitPrevious waits until the kernel before this one in the stream has ended and its writes are
// visible, and then lets the next launch begin. In kernels launched with gpu.LaunchConfig.Overlap,
// all threads call it first, before they access memory; in others it does nothing. Code for
// architectures before sm_90 has no such wait, and is launched after the kernel before has ended.
// It saves the latency of a launch. On emulated devices launches overlap only under the race finder
// and the explorer (docs/RACES.md).
//
// The next launch begins only when every block of this grid is on the device and has
// called it. So its blocks, which wait here too, keep no block of this grid from
// running, and a third grid does not begin before the first has ended. (PTX:
// griddepcontrol; CUDA programming guide, "Programmatic Dependent Launch")
MSCCLGO_DEVICE void awaitPrevious() {
#if defined(MSCCLGO_EMU)
  emu::awaitPrevious();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mscclgo
