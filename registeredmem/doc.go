// Package registeredmem holds memory that peers may reach. A rank registers a
// buffer in its [Registry], sends the bytes of [Memory.MarshalBinary] to a peer
// by any means, and the peer's [Registry.Import] maps the memory, so that the
// peer's kernels and copies reach it.
//
// The bytes name the memory and say where to ask for it. They hold neither an
// address nor a secret: who wants the memory itself must prove to be a member
// of the group, over a Unix socket of the same user on the same host. By what
// means the memory then passes depends on who made it and who asks:
//
//   - memory of [gpu.Device.Alloc] goes as a file descriptor;
//   - memory that somebody else allocated ([gpu.Device.Wrap]) goes as a legacy
//     IPC handle of the CUDA driver;
//   - ranks of the same process use the pointer itself.
//
// A [Carrier] attached to the registries reaches memory that cannot be mapped, on
// other hosts: the bytes then hold its key for the memory besides.
//
// Sizes and offsets are bytes. Everything may be called from any goroutine.
package registeredmem
