package cudaipc

import (
	"context"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
)

// mark is an event on the driver's stream.
type mark struct {
	d     *driver
	event *gpu.Event
}

// NewMark makes an event.
func (d *driver) NewMark() (connection.DriverMark, error) {
	event, err := d.device.NewEvent()
	if err != nil {
		return nil, err
	}
	return &mark{d, event}, nil
}

// Set records the event. The stream need not have reached it where it was.
func (m *mark) Set() error { return m.d.stream.Record(m.event) }

// Reached reports whether the device has reached the event.
func (m *mark) Reached() (bool, error) { return m.event.Query() }

// Wait waits for the event.
func (m *mark) Wait(ctx context.Context) error { return m.event.Synchronize(ctx) }

// Close releases the event.
func (m *mark) Close() error { return m.event.Close() }
