package message

import (
	"errors"
	"io"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// onDevice is what a connection has on the rank's device until Release.
type onDevice struct {
	streams []*gpu.Stream
	events  []*gpu.Event
	pinned  []io.Closer
}

// NewStream returns a stream for Release to close.
func (e *End) NewStream() (*gpu.Stream, error) {
	s, err := e.rank.Registry.Device().NewStream()
	if err == nil {
		e.streams = append(e.streams, s)
	}
	return s, err
}

// NewEvent returns an event for Release to close.
func (e *End) NewEvent() (*gpu.Event, error) {
	event, err := e.rank.Registry.Device().NewEvent()
	if err == nil {
		e.events = append(e.events, event)
	}
	return event, err
}

// NewPinned returns pinned memory for Release to close.
func (e *End) NewPinned(size uint64) (*gpu.Buffer, error) {
	b, err := e.rank.Registry.Device().AllocHost(size)
	if err == nil {
		e.Pinned(b)
	}
	return b, err
}

// Pinned has Release close pinned memory.
func (e *End) Pinned(memory io.Closer) { e.pinned = append(e.pinned, memory) }

// Release closes what the connection has on the device, once it has ended and its goroutines have, and ends
// the waiting for the device. If that was in vain, pinned memory stays, since a copy may still use it.
func (e *End) Release() error {
	var synced error
	for _, s := range e.streams {
		synced = errors.Join(synced, s.Synchronize(e.Drain))
	}
	e.timer.Stop()
	e.giveUp()
	errs := []error{synced}
	for _, event := range e.events {
		errs = append(errs, event.Close())
	}
	for _, s := range e.streams {
		errs = append(errs, s.Close())
	}
	if !errors.Is(synced, mscclgo.ErrTimeout) && !errors.Is(synced, mscclgo.ErrAborted) {
		for _, memory := range e.pinned {
			errs = append(errs, memory.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return e.rank.Wrap(mscclgo.ErrSystem, e.rank.Name+": close", e.Peer, err)
	}
	return nil
}
