// Launches that begin while the kernel before them ends.
#pragma once

#include <mscclgo/config.cuh>

namespace mscclgo {

// awaitPrevious waits until the kernel before this one in the stream has ended and
// its writes are visible here, and then lets the launch behind this one begin. All
// threads call it first, before they touch memory, in kernels that are launched
// with gpu.LaunchConfig.Overlap; launched without, it does nothing. What it saves
// is the latency of a launch.
//
// The launch behind begins only when every block of this grid is on the device and
// has come here. So its blocks, which wait here too, keep no block of this grid
// out, nor does a third grid begin before the first has ended. (PTX:
// griddepcontrol; CUDA programming guide, "Programmatic Dependent Launch")
MSCCLGO_DEVICE void awaitPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mscclgo
