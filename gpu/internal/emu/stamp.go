package emu

/*
#include "native/trace.h"

static void stamp(uint64_t ring, uint64_t what, uint64_t value) {
	uint64_t now = native_trace_now();
	native_event e = {.what = what, .start = now, .end = now, .value = value};
	native_trace_add((const native_trace*)ring, &e);
}
*/
import "C"

// HostClock is true: kernels read the host's clock.
func (*device) HostClock() bool { return true }

// Stamp is work of the stream, as a kernel is.
func (s *stream) Stamp(ring, what, value uint64) error {
	return s.do(s.dev.op("stamp the time"), func(*workQueue) (step, error) {
		return step{run: func() error {
			C.stamp(C.uint64_t(ring), C.uint64_t(what), C.uint64_t(value))
			return nil
		}}, nil
	})
}
