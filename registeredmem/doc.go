// Package registeredmem shares memory among ranks. A rank registers a buffer in its
// [Registry] and sends the bytes of [Memory.MarshalBinary] to a peer by any means.
// The peer's [Registry.Import] maps the memory, so that the peer's kernels and
// copies can access it.
//
// The bytes identify the memory and the server that provides it. They contain
// neither an address nor a secret: to get the memory, a process proves over a Unix
// socket of the same user on the same host that it is a member of the group. How
// the memory is passed depends on its origin and on the importing process:
//
//   - memory of [gpu.Device.Alloc] is passed as a file descriptor;
//   - memory that other code allocated ([gpu.Device.Wrap]) is passed as a legacy
//     IPC handle of the CUDA driver;
//   - ranks of one process share the pointer.
//
// Memory that cannot be mapped, such as memory of other hosts, is reached over a
// transport whose [Registrar] is attached to the registries. The bytes then contain
// the registrar's key for the memory.
//
// Sizes and offsets are in bytes. All functions and methods may be called from any
// goroutine.
package registeredmem
