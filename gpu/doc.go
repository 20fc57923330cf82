// Package gpu provides devices, their memory, streams, events, graphs, modules and
// kernels. A device is an NVIDIA GPU, driven through the CUDA driver API ("cuda:0"), or
// is emulated on the CPU ("emu:0") and runs the same kernels, slowly, on any Linux
// machine.
//
// Arguments are checked: ranges against buffers, kernel arguments against the kernel's
// parameters, devices against each other. All methods may be called from any
// goroutine. Sizes and offsets are in bytes.
//
// # Kernels that wait
//
// A kernel that spins until another kernel, or a peer, has done its part occupies its
// device meanwhile. The CUDA driver may block a call that allocates, frees or loads
// until such a kernel ends, so allocate and load before it is launched and free after
// it has ended.
//
// Two kernels of one process run at the same time on a GPU only if their streams have
// different hardware queues. A stream with work has a queue of its own as long as there
// are enough; leave some for connections, which copy while kernels spin. This package
// asks for 32 queues, the most there can be, when it loads the driver. A program in
// which other code initialises the driver first must set CUDA_DEVICE_MAX_CONNECTIONS=32
// itself.
package gpu
