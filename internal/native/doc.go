// Package native holds what C code of the library shares across packages: the ring,
// the ranges that may be copied, the counts of semaphores, and the operations that a
// transport offers. So a thread in C can serve a proxy's ring without coming back to
// Go, where a garbage collection would stop it. The headers are the substance of the
// package. A package that includes one imports this package as well.
//
// A thread in C never waits for Go. It leaves to Go what Go has in use. Go waits for
// a thread in C only for as long as one trigger takes.
//
// The memory of all types here is allocated in C. It is freed once nothing in Go
// refers to the type any more, so a caller that hands one to C keeps it.
package native

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra
// #include <stdlib.h>
import "C"

import (
	"embed"
	"runtime"
	"unsafe"
)

// The go command only looks for changes in a package's own headers. Embedding these
// makes it rebuild the importers of this package as well.
//
//go:embed *.h
var headers embed.FS

var _ = headers

// free frees p once owner is unreachable.
func free[T any](owner *T, p unsafe.Pointer) {
	runtime.AddCleanup(owner, func(p unsafe.Pointer) { C.free(p) }, p)
}

// allocate returns zeroed memory. Like Go's own allocator, it ends the process when
// there is none.
func allocate(size uintptr) unsafe.Pointer {
	p := C.malloc(C.size_t(size))
	clear(unsafe.Slice((*byte)(p), size))
	return p
}
