// Package verbs calls libibverbs, by which programs use RDMA devices: InfiniBand
// and RoCE cards, and Linux's Soft-RoCE. libibverbs.so.1 is opened at run time
// and its ABI declared here (abi.h), so that the package builds and its callers
// run on machines without it.
//
// The types are thin: they own one object of the library each, and close it.
// Objects are closed before those that they were made from. Unless said
// otherwise methods may be called from any goroutine, but not beside Close of
// the same object.
package verbs
