package gpu

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// capture is one sequence from BeginCapture to EndCapture. Streams join it by
// waiting for an event that was recorded in it.
type capture struct {
	origin *Stream
	ended  atomic.Bool

	mu    sync.Mutex
	hooks []launchHook // sorted by id
}

// launchHook is called instead of each launch of a graph; see native.Carry.
type launchHook struct {
	id     uint64
	around func(stream any, launch func() error) error
}

func (c *capture) underway() bool { return c != nil && !c.ended.Load() }

// capturing returns the capture that s takes part in, or nil.
func (s *Stream) capturing() *capture {
	if c := s.capture.Load(); c.underway() {
		return c
	}
	return nil
}

// endCapture ends the capture that s began, if any, and returns its hooks.
func (s *Stream) endCapture() []launchHook {
	c := s.capturing()
	if c == nil || c.origin != s {
		return nil
	}
	c.ended.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hooks
}

// carry implements native.Carry.
func (s *Stream) carry(id uint64, around func(stream any, launch func() error) error) {
	c := s.capturing()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, found := slices.BinarySearchFunc(c.hooks, id, func(h launchHook, id uint64) int { return cmp.Compare(h.id, id) })
	if !found {
		c.hooks = slices.Insert(c.hooks, i, launchHook{id, around})
	}
}

// BeginCapture makes the stream collect the work that it is given into a graph
// instead of running it, until [Stream.EndCapture]. Another stream of the device
// takes part in the capture once it waits for an event that was recorded in it; an
// emulated device captures one stream at a time and refuses such a wait.
//
// Memory can be allocated, and modules loaded, while a stream captures: that is done
// at once and is no part of the graph. But [Stream.Query], [Stream.Synchronize] and
// the use of captured events outside the capture fail with ErrInvalid and may
// invalidate the capture, which EndCapture then reports.
//
// Errors: ErrInvalid when the stream is capturing already.
func (s *Stream) BeginCapture() error {
	if err := s.usable("gpu: begin capture"); err != nil {
		return err
	}
	if err := s.b.BeginCapture(); err != nil {
		return err
	}
	s.capture.Store(&capture{origin: s})
	return nil
}

// EndCapture ends the capture that [Stream.BeginCapture] began and returns the graph
// of the work collected. The caller closes it.
//
// Errors: ErrInvalid when the stream is not capturing, or the capture was
// invalidated.
func (s *Stream) EndCapture() (*Graph, error) {
	if err := s.usable("gpu: end capture"); err != nil {
		return nil, err
	}
	hooks := s.endCapture()
	g, err := s.b.EndCapture()
	if err != nil {
		return nil, err
	}
	return &Graph{dev: s.dev, b: g, hooks: hooks}, nil
}

// Graph is captured work. It can be launched any number of times.
type Graph struct {
	dev    *Device
	b      backend.Graph
	hooks  []launchHook
	closed atomic.Bool
}

// Launch queues the graph's work on a stream of the graph's device. The memory,
// modules and events that the work uses must not have been closed.
func (g *Graph) Launch(s *Stream) error {
	const op = "gpu: launch a graph"
	if g == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the graph is nil")
	}
	if g.closed.Load() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the graph is closed")
	}
	if err := s.usable(op); err != nil {
		return err
	}
	if s.dev != g.dev {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the graph is of %v, the stream of %v", g.dev, s.dev)
	}
	return g.launch(s, g.hooks)
}

// launch calls the hooks, each inside the one before, and then the backend.
func (g *Graph) launch(s *Stream, hooks []launchHook) error {
	if len(hooks) == 0 {
		return g.b.Launch(s.b)
	}
	return hooks[0].around(s, func() error { return g.launch(s, hooks[1:]) })
}

// Close releases the graph. It is safe to call twice, and does nothing on nil.
func (g *Graph) Close() error {
	if g == nil || g.closed.Swap(true) {
		return nil
	}
	return g.b.Close()
}
