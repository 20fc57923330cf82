package cuda

/*
#cgo CFLAGS: -I${SRCDIR}/../../../internal
#include "queue.h"
*/
import "C"

import "github.com/mscclgo/mscclgo/internal/native"

// Native returns the stream for threads in C. The driver keeps the order of the calls,
// whether they come from these threads or from the stream's methods.
func (s *stream) Native() *native.Queue {
	s.native = native.NewQueue(C.sizeof_cuda_queue)
	C.cuda_queue_init(s.queue(), s.context, s.c.handle)
	return s.native
}

func (s *stream) queue() *C.cuda_queue { return (*C.cuda_queue)(s.native.Pointer()) }

// NativeError returns the error of the method that does the same.
func (s *stream) NativeError(f native.Failure) error {
	rc := C.status(f.Code)
	switch f.Op {
	case native.Write, native.Read:
		return s.copyError(rc, f.Dst, f.Src, f.Bytes)
	case native.Store, native.Update:
		return s.writeValueError(rc, f.Dst)
	case native.Mark:
		return s.recordError(rc)
	case native.Reach:
		return s.reachError(rc)
	}
	return s.fail(rc, "make the context current")
}
