package native

// #include <stdint.h>
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// Flag is set at most once, for threads in C to read.
type Flag struct{ c *C.uint32_t }

// NewFlag returns a flag that is not set.
func NewFlag() *Flag {
	f := &Flag{(*C.uint32_t)(allocate(C.sizeof_uint32_t))}
	free(f, unsafe.Pointer(f.c))
	return f
}

// Set sets the flag. Any goroutine may call it, any number of times.
func (f *Flag) Set() { atomic.StoreUint32((*uint32)(unsafe.Pointer(f.c)), 1) }

// Pointer returns the word, which is not 0 once the flag is set.
func (f *Flag) Pointer() unsafe.Pointer { return unsafe.Pointer(f.c) }
