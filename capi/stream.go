package main

// #include "process.h"
import "C"

import (
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu"
)

//export capi_stream_create
func capi_stream_create(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	return newStream("make a stream", handle, result, true, (*gpu.Device).NewStream)
}

//export capi_stream_wrap
func capi_stream_wrap(handle, foreign C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	return newStream("wrap a stream", handle, result, false, func(d *gpu.Device) (*gpu.Stream, error) { return d.WrapStream(uintptr(foreign)) })
}

func newStream(op string, handle C.uintptr_t, result *C.uintptr_t, ours bool, get func(*gpu.Device) (*gpu.Stream, error)) C.mscclgo_status {
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		if err := objects.sweep(o); err != nil {
			return err
		}
		s, err := get(d)
		if err != nil {
			return err
		}
		objects.addStream(o, s, ours).store(result)
		return nil
	})
}

// busy reports whether an object is a stream that has work. Of one that captures nothing is known.
func busy(o *object) bool {
	s, ok := o.value.(*gpu.Stream)
	if !ok {
		return false
	}
	done, err := s.Query()
	return !done && err == nil
}

// stopCapture ends a capture of a stream of ours, to know of its work.
func stopCapture(o *object) error {
	s, ok := o.value.(*gpu.Stream)
	if !ok || !o.ours {
		return nil
	}
	if _, err := s.Query(); err == nil {
		return nil
	}
	g, err := s.EndCapture()
	if err != nil {
		return nil // its work has failed, or other code captures
	}
	return g.Close()
}

//export capi_stream_destroy
func capi_stream_destroy(handle C.uintptr_t) C.mscclgo_status {
	const op = "destroy a stream"
	return call(func() error {
		o, err := objects.use(op, aStream, handle)
		if err != nil {
			return err
		}
		if o.ours && busy(o) {
			return objects.retire(op, o)
		}
		return objects.close(op, o)
	})
}

//export capi_stream_handle
func capi_stream_handle(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handle of a stream"
	return withStream(op, handle, func(_ *object, s *gpu.Stream) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		*result = C.uintptr_t(s.Handle())
		return nil
	})
}

//export capi_stream_synchronize
func capi_stream_synchronize(handle C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	return withStream("synchronize a stream", handle, func(_ *object, s *gpu.Stream) error {
		ctx, cancel := within(ms)
		defer cancel()
		return s.Synchronize(ctx)
	})
}

//export capi_stream_query
func capi_stream_query(handle C.uintptr_t, done *C.int) C.mscclgo_status {
	const op = "query a stream"
	return withStream(op, handle, func(_ *object, s *gpu.Stream) error {
		if err := isNull(op, unsafe.Pointer(done)); err != nil {
			return err
		}
		is, err := s.Query()
		if err == nil {
			*done = truth(is)
		}
		return err
	})
}

func truth(is bool) C.int {
	if is {
		return 1
	}
	return 0
}

//export capi_stream_copy
func capi_stream_copy(handle, to C.uintptr_t, toOffset C.uint64_t, from C.uintptr_t, fromOffset, bytes C.uint64_t) C.mscclgo_status {
	const op = "queue a copy"
	return withStream(op, handle, func(_ *object, s *gpu.Stream) error {
		return of(op, aBuffer, to, func(_ *object, dst *gpu.Buffer) error {
			return of(op, aBuffer, from, func(_ *object, src *gpu.Buffer) error {
				return s.Copy(dst, uint64(toOffset), src, uint64(fromOffset), uint64(bytes))
			})
		})
	})
}

//export capi_stream_fill
func capi_stream_fill(handle, to C.uintptr_t, offset C.uint64_t, value C.int, bytes C.uint64_t) C.mscclgo_status {
	const op = "queue a fill"
	return withStream(op, handle, func(_ *object, s *gpu.Stream) error {
		return of(op, aBuffer, to, func(_ *object, dst *gpu.Buffer) error {
			if value < 0 || value > 255 {
				return invalid(op, "%d is not the value of a byte, 0 to 255", int(value))
			}
			return s.Fill(dst, uint64(offset), byte(value), uint64(bytes))
		})
	})
}

//export capi_stream_begin_capture
func capi_stream_begin_capture(handle C.uintptr_t) C.mscclgo_status {
	return withStream("begin a capture", handle, func(_ *object, s *gpu.Stream) error { return s.BeginCapture() })
}

//export capi_stream_end_capture
func capi_stream_end_capture(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "end a capture"
	return withStream(op, handle, func(o *object, s *gpu.Stream) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		g, err := s.EndCapture()
		if err != nil {
			return err
		}
		// The stream is of a device, which its call of this function keeps.
		objects.add(o.parent, aGraph, g, g.Close).store(result)
		return nil
	})
}

//export capi_graph_launch
func capi_graph_launch(handle, stream C.uintptr_t) C.mscclgo_status {
	const op = "launch a graph"
	return withStream(op, stream, func(_ *object, s *gpu.Stream) error {
		return of(op, aGraph, handle, func(_ *object, g *gpu.Graph) error { return g.Launch(s) })
	})
}

//export capi_graph_destroy
func capi_graph_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a graph", aGraph, handle) })
}

//export capi_event_create
func capi_event_create(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	return newEvent("make an event", handle, result, (*gpu.Device).NewEvent)
}

//export capi_event_wrap
func capi_event_wrap(handle, foreign C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	return newEvent("wrap an event", handle, result, func(d *gpu.Device) (*gpu.Event, error) { return d.WrapEvent(uintptr(foreign)) })
}

//export capi_event_handle
func capi_event_handle(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "get the handle of an event"
	return withEvent(op, handle, func(_ *object, e *gpu.Event) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		*result = C.uintptr_t(e.Handle())
		return nil
	})
}

func newEvent(op string, handle C.uintptr_t, result *C.uintptr_t, get func(*gpu.Device) (*gpu.Event, error)) C.mscclgo_status {
	return withDevice(op, handle, func(o *object, d *gpu.Device) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		e, err := get(d)
		if err != nil {
			return err
		}
		objects.add(o, anEvent, e, e.Close).store(result)
		return nil
	})
}

//export capi_event_destroy
func capi_event_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy an event", anEvent, handle) })
}

//export capi_event_record
func capi_event_record(handle, stream C.uintptr_t) C.mscclgo_status {
	const op = "record an event"
	return withStream(op, stream, func(_ *object, s *gpu.Stream) error {
		return of(op, anEvent, handle, func(_ *object, e *gpu.Event) error { return s.Record(e) })
	})
}

//export capi_event_wait
func capi_event_wait(handle, stream C.uintptr_t) C.mscclgo_status {
	const op = "wait for an event"
	return withStream(op, stream, func(_ *object, s *gpu.Stream) error {
		return of(op, anEvent, handle, func(_ *object, e *gpu.Event) error { return s.Wait(e) })
	})
}

//export capi_event_synchronize
func capi_event_synchronize(handle C.uintptr_t, ms C.int64_t) C.mscclgo_status {
	return withEvent("synchronize an event", handle, func(_ *object, e *gpu.Event) error {
		ctx, cancel := within(ms)
		defer cancel()
		return e.Synchronize(ctx)
	})
}

//export capi_event_query
func capi_event_query(handle C.uintptr_t, reached *C.int) C.mscclgo_status {
	const op = "query an event"
	return withEvent(op, handle, func(_ *object, e *gpu.Event) error {
		if err := isNull(op, unsafe.Pointer(reached)); err != nil {
			return err
		}
		is, err := e.Query()
		if err == nil {
			*reached = truth(is)
		}
		return err
	})
}

//export capi_event_elapsed
func capi_event_elapsed(start, end C.uintptr_t, ms *C.double) C.mscclgo_status {
	const op = "get the time between two events"
	return withEvent(op, start, func(_ *object, first *gpu.Event) error {
		return of(op, anEvent, end, func(_ *object, last *gpu.Event) error {
			if err := isNull(op, unsafe.Pointer(ms)); err != nil {
				return err
			}
			took, err := last.Since(first)
			if err == nil {
				*ms = C.double(float64(took) / float64(time.Millisecond))
			}
			return err
		})
	})
}
