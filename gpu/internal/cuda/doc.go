// Package cuda drives NVIDIA GPUs through the CUDA driver API, as a
// [backend.Driver]. libcuda.so.1, which the NVIDIA driver installs, is opened
// at run time: the package builds and its callers run on machines without it,
// and no toolkit is needed anywhere.
//
// A goroutine moves between threads and a CUDA context does not, so each
// operation crosses into C once, in a wrapper (device.h, memory.h, stream.h,
// module.h) that sets the context and calls the driver in that one crossing.
//
// # What waits for running kernels
//
// The kernels of this library spin until a peer has done its part, so it
// matters which calls wait for kernels that run. Copies, fills, launches and
// events of one stream never wait for another stream, and neither do
// CopyToHost and CopyFromHost, which have a stream of their own. But the driver
// may wait for the whole device in LoadModule, in AllocHost and in every Free
// and Close of memory and modules, and an allocation may follow such a wait of
// another goroutine. Load and allocate first, then start kernels that spin, and
// free when they have ended.
//
// Streams that share a hardware queue do wait for each other. A stream has a queue
// while it has work, and one of its own as long as there are enough. For the driver
// to see which are free, threads take turns at queueing work for a GPU (turn.h);
// those need none whose stream has its queue already.
//
// Loading the driver sets two variables of the process's environment, unless
// the user has set them: CUDA_MODULE_LOADING=EAGER, because a kernel that is
// loaded lazily waits for those that run, and CUDA_DEVICE_MAX_CONNECTIONS=32,
// the most queues that there can be. They come too late where something else has
// called cuInit before. LoadModule loads every kernel of a module in any case; what
// is left is that ranks which share a GPU have 8 queues, and that the driver loads
// its own kernels, as for Fill, when they are first used.
package cuda
