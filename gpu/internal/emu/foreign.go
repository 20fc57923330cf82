package emu

import (
	"runtime/cgo"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// The handles of default streams, which are the CUDA driver's.
const (
	handleNull      = 0
	handleLegacy    = 1 // the same as handleNull
	handlePerThread = 2 // on an emulated device one for all threads
)

// handle is what a stream or an event is to other code of the process. It is valid until
// the stream or the event is closed by its owner.
type handle uintptr

// handleShift keeps handles apart from the default streams' handles.
const handleShift = 4

// of returns the handle of a work queue or a point, the same each time.
func (h *handle) of(thing any) uintptr {
	if *h == 0 {
		*h = handle(cgo.NewHandle(thing) << handleShift)
	}
	return uintptr(*h)
}

// end makes the handle invalid.
func (h *handle) end() {
	if *h != 0 {
		cgo.Handle(*h >> handleShift).Delete()
		*h = 0
	}
}

// find returns what a handle is of, or false if it is not valid or of something else.
func find[T any](h uintptr) (thing T, ok bool) {
	defer func() {
		if recover() != nil { // as package cgo answers to a handle that is not valid
			ok = false
		}
	}()
	if h&(1<<handleShift-1) != 0 {
		return thing, false
	}
	thing, ok = cgo.Handle(h >> handleShift).Value().(T)
	return thing, ok
}

func (s *stream) Handle() uintptr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handle.of(s.workQueue)
}

func (e *event) Handle() uintptr {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.handle.of(e.point)
}

// WrapStream finds a stream of any Device of this number. Each Device has default streams
// of its own.
func (d *device) WrapStream(h uintptr) (backend.Stream, error) {
	op := d.op("wrap stream %#x", h)
	switch h {
	case handleNull, handleLegacy, handlePerThread:
		return &stream{d, d.standardQueue(max(h, handleLegacy)), true}, nil
	}
	l, ok := find[*workQueue](h)
	if !ok {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "that is not the handle of an open stream")
	}
	if err := d.same(op, "stream", l.owner); err != nil {
		return nil, err
	}
	return &stream{d, l, true}, nil
}

func (d *device) WrapEvent(h uintptr) (backend.Event, error) {
	op := d.op("wrap event %#x", h)
	p, ok := find[*point](h)
	if !ok {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "that is not the handle of an open event")
	}
	if err := d.same(op, "event", p.owner); err != nil {
		return nil, err
	}
	return &event{d, p, true}, nil
}

// same returns an error if the owner is open as another emulated device.
func (d *device) same(op, what string, owner *device) error {
	if owner.info.UUID != d.info.UUID {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the %s is of %s", what, owner.info.Name)
	}
	return nil
}

// standardQueue returns a default stream, the same each time.
func (d *device) standardQueue(h uintptr) *workQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.standard[h]
	if l == nil {
		l = newWorkQueue(d)
		l.handle = handle(h)
		if d.standard == nil {
			d.standard = map[uintptr]*workQueue{}
		}
		d.standard[h] = l
	}
	return l
}

// open returns an error if the stream was closed by its owner, when another device still
// has it wrapped. The caller holds mu.
func (w *workQueue) open(op string) error {
	if w.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the stream was closed by its owner")
	}
	return nil
}

// guarded returns m for the work queue of another device, which runs the work: the stream's own
// device is not closed meanwhile.
func (s *stream) guarded(op string, m maker) maker {
	if s.dev == s.owner {
		return m
	}
	return func(by *workQueue) (step, error) {
		st, err := m(by)
		run := st.run
		st.launch, st.overlap = nil, false
		st.run = func() error {
			if err := s.dev.begin(op); err != nil {
				return err
			}
			defer s.dev.end()
			return run()
		}
		return st, err
	}
}
