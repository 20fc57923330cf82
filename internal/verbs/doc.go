// Package verbs binds libibverbs, the library for RDMA devices: InfiniBand and RoCE
// cards, and Linux's Soft-RoCE. libibverbs.so.1 is opened at run time and its ABI is
// declared here (abi.h), so that the package builds and its callers run on machines
// without it.
//
// Each type owns one object of the library. Objects are closed before the objects that they
// were made from. Unless documented otherwise, methods may be called from any
// goroutine, but not concurrently with Close of the same object.
package verbs
