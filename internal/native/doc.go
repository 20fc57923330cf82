// Package native is what C code of the library shares across packages, so that a
// thread in C can serve a proxy's ring without coming back to Go, where a garbage
// collection would stop it: the ring, the ranges that may be copied, the counts of
// semaphores, and the operations that a transport offers. The headers are the
// package's substance; who includes one imports the package as well.
//
// A thread in C never waits for Go: what it finds in use it leaves to Go, which
// waits as always. Go waits for a thread in C only as long as that takes for what
// one trigger asks.
//
// The memory of all types here is C's. Each lives until nothing in Go refers to
// it any more, so who hands one to C keeps it.
package native

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra
// #include <stdlib.h>
import "C"

import (
	"embed"
	"runtime"
	"unsafe"
)

// The go command looks for changes in a package's own headers alone. With these
// in what it built of this package, it sees that importers must be built anew.
//
//go:embed *.h
var headers embed.FS

var _ = headers

// free releases C's memory p once owner is unreachable.
func free[T any](owner *T, p unsafe.Pointer) {
	runtime.AddCleanup(owner, func(p unsafe.Pointer) { C.free(p) }, p)
}

// allocate gives zeroed memory of C's. Like Go's own allocation it ends the
// process where there is none.
func allocate(size uintptr) unsafe.Pointer {
	p := C.malloc(C.size_t(size))
	clear(unsafe.Slice((*byte)(p), size))
	return p
}
