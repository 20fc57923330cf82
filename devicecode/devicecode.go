// Package devicecode holds the device headers, <mscclgo/memory_channel.cuh> and
// the others, and compiles CUDA sources that include them: for an NVIDIA GPU with
// NVIDIA's compiler, for an emulated device with the system's C++ compiler. What
// it compiles is kept in the user's cache folder by content, so the same source
// is compiled once.
//
// Kernels are found by name, so they are declared extern "C" __global__.
//
// The environment can say where things are: MSCCLGO_CACHE the cache folder; CXX
// the C++ compiler; CUDA_HOME or CUDA_PATH NVIDIA's toolkit, MSCCLGO_NVRTC the
// library or folder of NVRTC, and MSCCLGO_CUDA_COMPILER which of "nvrtc" and
// "nvcc" to use.
package devicecode

import (
	"embed"
	"io/fs"
)

//go:embed include
var tree embed.FS

// Headers gives the folder to put in a compiler's include path: it holds
// mscclgo/*.cuh, the headers for kernels, and mscclgo/emu, what the emulated
// device puts in the place of CUDA's own. For those who compile by themselves.
func Headers() fs.FS {
	headers, err := fs.Sub(tree, "include")
	if err != nil {
		return tree // the name is valid, so this is not reached
	}
	return headers
}
