package emu

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// graph is captured work: the makers of its steps.
type graph struct {
	dev    *device
	makers []maker
}

func (s *stream) BeginCapture() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.idleable("begin a capture"); err != nil {
		return err
	}
	s.native.bar()
	s.capture = newCapture(s.workQueue)
	return nil
}

func (s *stream) Capture() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture == nil {
		return 0, nil
	}
	return s.capture.number, nil
}

func (s *stream) EndCapture() (backend.Graph, error) {
	op := s.dev.op("end a capture")
	s.mu.Lock()
	err, c := s.open(op), s.capture
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the stream is not capturing")
	case c.origin != s.workQueue:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "another stream began the capture, and must end it")
	}
	makers, joined := c.end()
	if !joined {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "another stream took part, and this one does not wait for its work: record an event there last, and have this one wait for it")
	}
	return &graph{s.dev, makers}, nil
}

func (s *stream) DropCapture() { s.EndCapture() }

// Make has nothing to do.
func (g *graph) Make() error { return nil }

// Launch queues the graph's work as one call. On a stream that is capturing, the work
// becomes part of the capture.
func (g *graph) Launch(b backend.Stream) error {
	op := g.dev.op("launch a graph")
	s, ok := b.(*stream)
	if !ok || s.dev != g.dev {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the stream is of another device")
	}
	s.giveTurns(op)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(op); err != nil {
		return err
	}
	if s.capture != nil {
		s.capture.add(s.workQueue, g.makers...)
		return nil
	}
	s.waitForRoom()
	return s.enqueue(op, g.makers...)
}

func (g *graph) Close() error { return nil }
