package gpu

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Event marks a point in the work of a stream; see [Stream.Record].
type Event struct {
	dev    *Device
	b      backend.Event
	closed atomic.Bool

	outside atomic.Bool             // other code may record it
	capture atomic.Pointer[capture] // the capture of the stream that recorded it last
}

// NewEvent creates an event, which counts as reached until it is first recorded. The
// caller closes it.
func (d *Device) NewEvent() (*Event, error) {
	if err := d.usable("gpu: new event"); err != nil {
		return nil, err
	}
	b, err := d.b.NewEvent()
	if err != nil {
		return nil, err
	}
	return &Event{dev: d, b: b}, nil
}

// Handle returns a handle of the event, on an NVIDIA GPU a CUevent, with the rules of
// [Stream.Handle].
func (e *Event) Handle() uintptr {
	if e.usable("") != nil {
		return 0
	}
	e.outside.Store(true)
	return e.b.Handle()
}

// Query reports whether the stream has reached the point last recorded. If the work
// before that point failed, it returns the error.
func (e *Event) Query() (bool, error) {
	if err := e.reachable("gpu: query an event"); err != nil {
		return false, err
	}
	return e.b.Query()
}

// Synchronize waits until the stream has reached the point last recorded.
//
// Errors: ErrTimeout or ErrAborted if ctx ends first, ErrSystem if the work before
// that point failed.
func (e *Event) Synchronize(ctx context.Context) error {
	if err := e.reachable("gpu: synchronize an event"); err != nil {
		return err
	}
	return e.b.Synchronize(ctx)
}

// Since returns the time from start to e as the device measured it, with a resolution
// of about a microsecond.
//
// Errors: ErrInvalid if either was not recorded or has not been reached.
func (e *Event) Since(start *Event) (time.Duration, error) {
	const op = "gpu: time between events"
	if err := e.usable(op); err != nil {
		return 0, err
	}
	if err := start.usable(op); err != nil {
		return 0, err
	}
	if e.dev != start.dev {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the events are of %v and %v%s", start.dev, e.dev, native.Twice(start.dev, e.dev))
	}
	return e.b.Since(start.b)
}

// Close releases the event. One of [Device.WrapEvent] stays open to its owner. It is safe
// to call twice, and does nothing on nil.
func (e *Event) Close() error {
	if e == nil || e.closed.Swap(true) {
		return nil
	}
	return e.b.Close()
}

func (e *Event) usable(op string) error {
	if e == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the event is nil")
	}
	if e.closed.Load() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the event on %v is closed", e.dev)
	}
	return e.dev.usable(op)
}

// reachable returns an error unless the host can wait for the event: it is open, and the
// capture that it was recorded in, if any, has ended. The driver would make the capture
// invalid.
func (e *Event) reachable(op string) error {
	if err := e.usable(op); err != nil {
		return err
	}
	if e.capture.Load().underway() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the event on %v was recorded in a capture, which has not ended", e.dev)
	}
	return nil
}
