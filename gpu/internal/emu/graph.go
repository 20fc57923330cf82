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
	s.capture = &graph{dev: s.dev}
	return nil
}

func (s *stream) Capture() (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture == nil {
		return nil, nil
	}
	return s.capture, nil
}

func (s *stream) EndCapture() (backend.Graph, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(s.dev.op("end a capture")); err != nil {
		return nil, err
	}
	g := s.capture
	if g == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, s.dev.op("end a capture"), "the stream is not capturing")
	}
	s.capture = nil
	s.native.unbar()
	return g, nil
}

func (s *stream) DropCapture() { s.EndCapture() }

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
		s.capture.makers = append(s.capture.makers, g.makers...)
		return nil
	}
	s.waitForRoom()
	return s.enqueue(op, g.makers...)
}

func (g *graph) Close() error { return nil }
