// Package cuda drives NVIDIA GPUs through the CUDA driver API. It implements
// [backend.Driver]. libcuda.so.1, which the NVIDIA driver installs, is opened at run
// time, so the package builds on machines without it and needs no toolkit.
//
// A goroutine moves between threads and a CUDA context does not, so each operation
// crosses into C once, in a wrapper (device.h, memory.h, stream.h, module.h) that sets
// the context and calls the driver.
//
// # Calls that wait for running kernels
//
// The kernels of this library spin until a peer has done its part, so it matters which
// calls wait for running kernels. Copies, fills, launches and events of a stream never
// wait for another stream, and neither do CopyToHost and CopyFromHost, which have a
// stream of their own. But the driver may wait for the whole device in LoadModule, in
// AllocHost and whenever memory or a module is freed, and an allocation may have to
// wait for another goroutine that does so. Load and allocate before launching kernels
// that spin, and free after they have ended.
//
// Streams that share a hardware queue do wait for each other. A stream has a queue
// while it has work, and one of its own as long as there are enough. The driver only
// sees which queues are free if one thread at a time queues work for a GPU, so threads
// take turns (turn.h), except for a stream that already has its queue.
//
// # Environment
//
// Loading the driver sets two environment variables of the process, unless they are
// set: CUDA_MODULE_LOADING=EAGER, because a kernel that is loaded lazily waits for
// the ones that run, and CUDA_DEVICE_MAX_CONNECTIONS=32, the largest number of queues.
// They have no effect if other code has called cuInit before. LoadModule loads every
// kernel of a module in any case; but then ranks that share a GPU have 8 queues, and
// the driver loads its own kernels, such as Fill's, when they are first used.
//
// # Captures
//
// Streams capture in the relaxed mode, in which the driver permits all calls that do
// not use the capturing streams. So that other captures in the process, such as a
// framework's, neither fail nor are failed by the calls of this package that the driver
// considers unsafe, queries among them, these switch their thread to the relaxed mode
// (context.h). A stream that is capturing is not queried at all.
package cuda
