// Package gpu opens devices and gives their memory, streams, events, modules
// and kernels. It is the one seam between the library and what runs its
// kernels: an NVIDIA GPU through the CUDA driver ("cuda:0"), or a device
// emulated on the CPU ("emu:0") that runs the same kernels, slowly, on any
// Linux machine.
//
// Arguments are checked here, once, for both: ranges against buffers, kernel
// arguments against the kernel's parameters, devices against each other. Every
// method may be called from any goroutine. Sizes and offsets are bytes.
//
// A kernel that waits for another (spins) occupies its device until the other
// has run. While one does, allocate nothing, load nothing and free nothing on
// that device: the CUDA driver may hold such a call until the kernel ends.
//
// Kernels of one process run beside each other on a GPU only from streams of
// different hardware queues. A stream has one of its own while it has work, unless
// more streams have work than there are queues: leave some for the connections,
// which copy while kernels spin. This package asks the driver for the most, 32, when
// it starts it; a program in which other code starts the driver first sets
// CUDA_DEVICE_MAX_CONNECTIONS=32 itself.
package gpu
