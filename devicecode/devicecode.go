// Package devicecode contains the device headers, such as <mscclgo/memory_channel.cuh>,
// and compiles CUDA sources that include them: for NVIDIA GPUs with NVIDIA's compiler,
// for emulated devices with the system's C++ compiler. Images are cached by content in
// the user's cache folder, so a source is compiled once. A [Bundle] has images that were
// compiled beforehand.
//
// Kernels are found by name, so they must be declared extern "C" __global__.
//
// # Environment
//
//   - MSCCLGO_CACHE is the cache folder.
//   - MSCCLGO_IMAGES is a folder of images that came with an installation; the Python package
//     sets it to its own, which has its collectives' kernels for emulated devices.
//   - CXX is the C++ compiler.
//   - CUDA_HOME or CUDA_PATH is the folder of NVIDIA's toolkit.
//   - MSCCLGO_NVRTC is NVIDIA's compiler library NVRTC or its folder.
//   - MSCCLGO_NVRTC_FALLBACK is that library where it is in none of the usual places; the
//     Python package sets it to the NVRTC of Python's own packages.
//   - MSCCLGO_CUDA_COMPILER selects "nvrtc" or "nvcc".
package devicecode

import (
	"embed"
	"io/fs"
)

//go:embed include
var tree embed.FS

// Headers returns the include folder for programs that run the compiler themselves. It
// contains mscclgo/*.cuh, the headers for kernels, and mscclgo/emu, which replaces
// CUDA's own headers for emulated devices.
func Headers() fs.FS {
	headers, err := fs.Sub(tree, "include")
	if err != nil {
		return tree // the name is valid, so this is not reached
	}
	return headers
}
