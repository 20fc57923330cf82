package cuda

// #include "stream.h"
import "C"

import (
	_ "embed"
	"unsafe"
)

// stampCode is a kernel that writes the time to a ring.
//
//go:embed stamp.ptx
var stampCode []byte

// newStamper returns the kernel of Stream.Stamp.
func newStamper() builtin {
	return builtin{what: "load the kernel that stamps times", code: stampCode, names: []string{"mscclgo_stamp"}}
}

// HostClock is false: a GPU's %globaltimer has an epoch of its own.
func (*device) HostClock() bool { return false }

// Stamp is a launch of one thread.
func (s *stream) Stamp(ring, what, value uint64) error {
	kernels, err := s.stamps.load(s.primary)
	if err != nil {
		return err
	}
	args := [3]uint64{ring, what, value}
	return s.result(s.launchOne(kernels[0], args[:]), "stamp the time")
}

// launchOne launches one thread of a kernel whose parameters are of 8 bytes.
func (s *stream) launchOne(kernel C.CUfunction, args []uint64) C.status {
	return C.stream_launch(&s.c, kernel, 1, 1, 1, 1, 1, 1, 0, false, false, unsafe.Pointer(&args[0]), C.size_t(8*len(args)))
}
