package cuda

// #include "stream.h"
import "C"

import (
	"context"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// event marks a point of a stream and records the time when it was reached.
type event struct {
	held
	handle  C.CUevent
	foreign bool // other code owns it
	across  C.across_node
}

func (d *device) NewEvent() (backend.Event, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	e := &event{held: held{primary: d.primary}}
	if rc := C.event_create(d.context, &e.handle); rc != 0 {
		defer d.drop()
		return nil, d.fail(rc, "create an event")
	}
	return e, nil
}

// WrapEvent cannot check the handle: the driver has only calls that use the event.
func (d *device) WrapEvent(handle uintptr) (backend.Event, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	return &event{held: held{primary: d.primary}, handle: C.handle_event(C.uintptr_t(handle)), foreign: true}, nil
}

// Query returns true for an event that was never recorded, as the driver does.
func (e *event) Query() (bool, error) {
	switch rc := C.event_query(e.context, e.handle); rc {
	case 0:
		return true, nil
	case C.CUDA_ERROR_NOT_READY:
		return false, nil
	default:
		return false, e.reachError(rc)
	}
}

func (p *primary) reachError(rc C.status) error { return p.fail(rc, "reach an event") }

func (e *event) Synchronize(ctx context.Context) error {
	return e.poll(ctx, "wait for an event", e.Query)
}

// Since has a resolution of about half a microsecond.
func (e *event) Since(start backend.Event) (time.Duration, error) {
	s, err := e.event(start)
	if err != nil {
		return 0, err
	}
	var ms C.float
	if rc := C.event_elapsed(e.context, s.handle, e.handle, &ms); rc != 0 {
		return 0, e.fail(rc, "measure the time between two events, both recorded and reached")
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

func (e *event) Handle() uintptr { return uintptr(unsafe.Pointer(e.handle)) }

func (e *event) Close() error {
	return e.end(func() error {
		if e.foreign {
			return nil
		}
		return e.result(C.event_destroy(e.context, e.handle), "close an event")
	})
}
