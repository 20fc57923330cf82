package cuda

/*
#cgo noescape stream_launch
#cgo nocallback stream_launch
#cgo noescape stream_capture
#cgo nocallback stream_capture
#include "queue.h"
#include "stream.h"
*/
import "C"

import (
	"context"
	"errors"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
)

// stream is a non-blocking stream, which is not ordered with the legacy default stream.
type stream struct {
	held
	c       C.cuda_stream
	native  *native.Queue // nil unless threads in C may use the stream
	foreign bool          // other code owns it
}

func (d *device) NewStream() (backend.Stream, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	s := &stream{held: held{primary: d.primary}}
	if rc := C.stream_create(&s.c, d.context); rc != 0 {
		defer d.drop()
		return nil, d.fail(rc, "create a stream")
	}
	s.track(s)
	return s, nil
}

func (d *device) WrapStream(handle uintptr) (backend.Stream, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	s := &stream{held: held{primary: d.primary}, foreign: true}
	var owner C.CUdevice
	var primary C.bool
	err := d.result(C.stream_wrap(&s.c, d.context, C.handle_stream(C.uintptr_t(handle)), &owner, &primary), "wrap stream %#x", handle)
	if err == nil && !primary {
		err = mscclgo.Errorf(mscclgo.ErrInvalid, d.op("wrap stream %#x", handle), "%s", d.strange(owner))
	}
	if err != nil {
		return nil, errors.Join(err, d.drop())
	}
	return s, nil
}

// strange tells what is wrong with a stream that is not of the primary context but of one
// of this GPU.
func (d *device) strange(owner C.CUdevice) string {
	if owner == d.ordinal.facts.device {
		return "the context of the stream is not the primary one, which the CUDA runtime uses"
	}
	for _, o := range d.ordinal.driver.ordinals {
		if owner == o.facts.device {
			return "the stream is of " + o.name()
		}
	}
	return "the stream is of another GPU"
}

func (s *stream) Enter() error { return s.result(C.stream_enter(&s.c), "make the context current") }

func (s *stream) Copy(dst, src, n uint64) error {
	rc := C.stream_copy(&s.c, C.CUdeviceptr(dst), C.CUdeviceptr(src), C.size_t(n))
	if rc != 0 {
		return s.copyError(rc, dst, src, n)
	}
	return nil
}

func (s *stream) copyError(rc C.status, dst, src, n uint64) error {
	return s.fail(rc, "copy %d bytes from %#x to %#x", n, src, dst)
}

func (s *stream) Fill(dst uint64, value byte, n uint64) error {
	rc := C.stream_fill(&s.c, C.CUdeviceptr(dst), C.uchar(value), C.size_t(n))
	if rc != 0 {
		return s.fail(rc, "fill %d bytes at %#x", n, dst)
	}
	return nil
}

func (s *stream) WriteValue64(dst, value uint64) error {
	rc := C.stream_write_value(&s.c, C.CUdeviceptr(dst), C.uint64_t(value))
	if rc != 0 {
		return s.writeValueError(rc, dst)
	}
	return nil
}

func (s *stream) writeValueError(rc C.status, dst uint64) error {
	return s.fail(rc, "write a value to %#x", dst)
}

func (s *stream) WaitValue64(src, value uint64, equal bool) error {
	rc := C.stream_wait_value(&s.c, C.CUdeviceptr(src), C.uint64_t(value), C.bool(equal))
	if rc != 0 {
		return s.fail(rc, "wait for a value at %#x", src)
	}
	return nil
}

// Launch crosses into C once and does not allocate.
func (s *stream) Launch(k backend.Kernel, cfg backend.LaunchConfig, args []byte) error {
	kernel, ok := k.(*kernel)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrInvalid, s.op("launch a kernel"), "the kernel is not one of a CUDA device")
	}
	rc := C.stream_launch(&s.c, kernel.handle,
		C.uint32_t(cfg.Grid[0]), C.uint32_t(cfg.Grid[1]), C.uint32_t(cfg.Grid[2]),
		C.uint32_t(cfg.Block[0]), C.uint32_t(cfg.Block[1]), C.uint32_t(cfg.Block[2]),
		C.uint32_t(cfg.DynamicShared), C.bool(cfg.Cooperative), C.bool(cfg.Overlap && kernel.overlaps),
		unsafe.Pointer(unsafe.SliceData(args)), C.size_t(len(args)))
	if rc != 0 {
		a, err := kernel.Attributes()
		if err == nil && uint64(cfg.Block[0])*uint64(cfg.Block[1])*uint64(cfg.Block[2]) > uint64(a.MaxThreadsPerBlock) {
			return s.fail(rc, "launch %s with blocks %v, of which each can have %d threads", kernel.name, cfg.Block, a.MaxThreadsPerBlock)
		}
		if err == nil && int64(cfg.DynamicShared) > int64(a.MaxDynamicShared) {
			return s.fail(rc, "launch %s with %d bytes of dynamic shared memory, of which it may have %d (call Kernel.SetMaxDynamicShared first)", kernel.name, cfg.DynamicShared, a.MaxDynamicShared)
		}
		return s.fail(rc, "launch %s with grid %v, block %v, %d bytes of dynamic shared memory and %d of arguments",
			kernel.name, cfg.Grid, cfg.Block, cfg.DynamicShared, len(args))
	}
	return nil
}

func (s *stream) Record(e backend.Event) error {
	ev, err := s.event(e)
	if err != nil {
		return err
	}
	return s.recordError(C.stream_record(&s.c, ev.handle))
}

func (s *stream) recordError(rc C.status) error { return s.result(rc, "record an event") }

func (s *stream) WaitEvent(e backend.Event) error {
	ev, err := s.event(e)
	if err != nil {
		return err
	}
	s.workMu.Lock() // it may join a capture
	defer s.workMu.Unlock()
	return s.result(C.stream_wait_event(&s.c, ev.handle), "wait for an event")
}

func (s *stream) RecordAcross(e backend.Event) error {
	ev, err := s.event(e)
	if err != nil {
		return err
	}
	return s.recordError(C.stream_record_across(&s.c, ev.handle, &ev.across))
}

func (s *stream) WaitAcross(e backend.Event) error {
	ev, err := s.event(e)
	if err != nil {
		return err
	}
	return s.result(C.stream_wait_across(&s.c, ev.handle), "wait for an event")
}

func (p *primary) event(e backend.Event) (*event, error) {
	ev, ok := e.(*event)
	if !ok {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, p.op("use an event"), "the event is not one of a CUDA device")
	}
	return ev, nil
}

func (s *stream) BeginCapture() error {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	return s.result(C.stream_begin_capture(&s.c), "begin a capture")
}

func (s *stream) EndCapture() (backend.Graph, error) {
	if err := s.hold(); err != nil {
		return nil, err
	}
	g := &graph{held: held{primary: s.primary}}
	if rc := C.stream_end_capture(&s.c, &g.captured); rc != 0 {
		defer s.drop()
		return nil, s.fail(rc, "end a capture")
	}
	return g, nil
}

func (s *stream) DropCapture() { C.stream_drop_capture(&s.c) }

// invalidCapture stands for the id of a capture that has become invalid.
const invalidCapture = 1<<64 - 1

// Capture returns the driver's id.
func (s *stream) Capture() (uint64, error) {
	var capturing C.bool
	var id C.cuuint64_t
	if rc := C.stream_capture(&s.c, &capturing, &id); rc != 0 {
		return 0, s.fail(rc, "use a stream")
	}
	switch {
	case !bool(capturing):
		return 0, nil
	case id == 0:
		return invalidCapture, nil
	}
	return uint64(id), nil
}

func (s *stream) Query() (bool, error) {
	switch rc := C.stream_query(&s.c); rc {
	case 0:
		return true, nil
	case C.CUDA_ERROR_NOT_READY:
		return false, nil
	default:
		return false, s.fail(rc, "run the work of a stream")
	}
}

func (s *stream) Synchronize(ctx context.Context) error {
	return s.poll(ctx, "synchronize a stream", s.Query)
}

func (s *stream) Handle() uintptr { return uintptr(unsafe.Pointer(s.c.handle)) }

// Close does not wait for the stream's work, which still runs. It leaves a wrapped stream
// alone.
func (s *stream) Close() error {
	return s.end(func() error {
		var first C.status
		if s.native != nil {
			first = C.cuda_queue_destroy(s.queue())
		}
		if !s.foreign {
			if rc := s.finish(s); first == 0 {
				first = rc
			}
		}
		return s.result(first, "close a stream")
	})
}

// graph is captured work.
type graph struct {
	held
	captured C.CUgraph // until Make
	exec     C.CUgraphExec
}

// Make waits a while, where several devices share the context, until no stream has work: the driver would
// wait for that too, and have other threads wait meanwhile.
func (g *graph) Make() error {
	if g.captured == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, g.op("make a graph"), "that has failed before")
	}
	if g.shared() {
		g.awaitIdle()
	}
	captured := g.captured
	g.captured = nil
	return g.result(C.graph_make(g.context, captured, &g.exec), "make a graph")
}

func (g *graph) Launch(on backend.Stream) error {
	s, ok := on.(*stream)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrInvalid, g.op("launch a graph"), "the stream is not one of a CUDA device")
	}
	return g.result(C.graph_launch(&s.c, g.exec), "launch a graph")
}

func (g *graph) Close() error {
	return g.end(func() error {
		if g.captured != nil {
			return g.result(C.graph_drop(g.context, g.captured), "close a graph")
		}
		if g.exec == nil {
			return nil
		}
		return g.result(C.graph_destroy(g.context, g.exec), "close a graph")
	})
}
