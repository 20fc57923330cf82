package gpu

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// capture is one sequence from BeginCapture to EndCapture. Streams join it by
// waiting for an event that was recorded in it.
type capture struct {
	id     uint64  // the backend's
	origin *Stream // that began it, or nil if other code did
	seen   *Stream // that was found in a capture of other code
	ended  atomic.Bool

	mu       sync.Mutex
	hooks    []launchHook // sorted by id
	kernels  []string     // the first ones
	of       uint64       // see launchGroups.find; of all kernels
	launches int          // of kernels

	grid, block [3]uint32 // of the kernels, if mixed is not set
	mixed       bool      // they differ
}

// launchHook is called instead of each launch of a graph; see Carry of inside.Stream.
type launchHook struct {
	id     uint64
	late   bool
	around func(stream *Stream, g inside.GraphLaunch) error
}

// number returns the backend's id, or 0 where c is nil.
func (c *capture) number() uint64 {
	if c == nil {
		return 0
	}
	return c.id
}

// isForeign reports whether other code began the capture. c may be nil.
func (c *capture) isForeign() bool { return c != nil && c.origin == nil }

// underway reports whether the capture has not ended. c may be nil.
func (c *capture) underway() bool {
	if c.isForeign() {
		return c.seen.captureID() == c.id
	}
	return c != nil && !c.ended.Load()
}

// captureID asks the backend which capture the stream takes part in.
func (s *Stream) captureID() uint64 {
	if s.closed.Load() || s.dev.closed.Load() {
		return 0
	}
	id, _ := s.b.Capture()
	return id
}

// capturing returns the capture that s takes part in, or nil. A stream that only the
// methods of this package have used is not looked up in the driver.
func (s *Stream) capturing() *capture {
	if !s.outside.Load() {
		if c := s.capture.Load(); c.underway() {
			return c
		}
		return nil
	}
	return s.captureBy(s.captureID())
}

// captureBy returns the capture that the backend knows by an id, or nil for 0.
func (s *Stream) captureBy(id uint64) *capture {
	c := s.capture.Load()
	switch {
	case id == 0:
		return nil
	case c != nil && c.id == id:
		return c
	}
	if c = s.dev.captureOf(id); c == nil {
		c = &capture{id: id, seen: s}
	}
	s.capture.Store(c)
	return c
}

// captureOf returns the capture of an id if a stream of the device began it, or nil.
func (d *Device) captureOf(id uint64) *capture {
	for _, s := range d.openStreams() {
		if c := s.capture.Load(); c != nil && c.origin == s && c.id == id && c.underway() {
			return c
		}
	}
	return nil
}

// endCapture ends the capture that s began, if any, and returns its hooks.
func (s *Stream) endCapture() (hooks []launchHook, began bool) {
	c := s.capturing()
	if c == nil || c.origin != s {
		return nil, false
	}
	c.ended.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hooks, true
}

// dropCapture ends the capture that s began, if any, and drops its work.
func (s *Stream) dropCapture() {
	if _, began := s.endCapture(); began {
		s.b.DropCapture()
	}
}

// carry implements Carry of inside.Stream.
func (s *Stream) carry(hook launchHook) {
	c := s.capturing()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, found := slices.BinarySearchFunc(c.hooks, hook.id, func(h launchHook, id uint64) int { return cmp.Compare(h.id, id) })
	if !found {
		c.hooks = slices.Insert(c.hooks, i, hook)
	}
}

// BeginCapture makes the stream collect the work that it is given into a graph
// instead of running it, until [Stream.EndCapture]. Another stream of the device
// takes part in the capture once it waits for an event that was recorded in it, and this
// one waits for its work before the capture ends. A graph of an emulated device runs the work in
// the order of the calls, so that what streams leave unordered is not done at the same time.
//
// Memory can be allocated, and modules loaded, while a stream captures: that is done
// at once and is no part of the graph. But [Stream.Query], [Stream.Synchronize] and
// the use of captured events outside the capture fail with ErrInvalid. Some such uses
// invalidate the capture, which EndCapture then reports.
//
// Other code of the process may capture as well, on a stream that it shares; see
// [Device.WrapStream].
//
// Errors: ErrInvalid when the stream is capturing already.
func (s *Stream) BeginCapture() error {
	if err := s.usable("gpu: begin capture"); err != nil {
		return err
	}
	if s.capturing() != nil { // which the driver would make invalid
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: begin a capture on "+s.dev.String(), "the stream is capturing already")
	}
	if err := s.b.BeginCapture(); err != nil {
		return err
	}
	id, err := s.b.Capture()
	if err != nil {
		return err
	}
	s.capture.Store(&capture{origin: s, id: id})
	return nil
}

// EndCapture ends the capture that [Stream.BeginCapture] began and returns the graph
// of the work collected. The caller closes it.
//
// The driver of a GPU may wait meanwhile until kernels that run there have ended (seen:
// 580), also kernels of other ranks of this process. Where such ranks share a GPU, graphs with
// calls of package collective are made at their first launch, for which these ranks wait for
// each other, a second at most. Of other graphs, let no kernel wait for a rank that makes one.
//
// Errors: ErrInvalid when the stream is not capturing, or the capture was
// invalidated.
func (s *Stream) EndCapture() (*Graph, error) {
	if err := s.usable("gpu: end capture"); err != nil {
		return nil, err
	}
	if s.capturing().isForeign() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: end capture", "other code began the capture on %v, and must end it", s.dev)
	}
	launch, of := s.capturing().launch()
	hooks, _ := s.endCapture()
	b, err := s.b.EndCapture()
	if err != nil {
		return nil, err
	}
	g := &Graph{dev: s.dev, b: b, hooks: hooks, what: launch, of: of}
	if slices.ContainsFunc(hooks, func(h launchHook) bool { return h.late }) {
		return g, nil
	}
	if err := g.make(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Graph is captured work. It can be launched any number of times.
type Graph struct {
	dev    *Device
	b      backend.Graph
	hooks  []launchHook
	what   inside.Launch // a launch of it, but for the numbers
	of     uint64        // see launchGroups.find; of all kernels
	closed atomic.Bool
	making sync.Mutex
	made   atomic.Bool
}

// make makes the graph ready to be launched, unless it is.
func (g *Graph) make() error {
	if g.made.Load() {
		return nil
	}
	g.making.Lock()
	defer g.making.Unlock()
	if g.made.Load() {
		return nil
	}
	defer g.dev.driver("makes a graph")()
	err := g.b.Make()
	g.made.Store(err == nil)
	return err
}

// graphLaunch is a launch of a graph on a stream, inside some of its hooks.
type graphLaunch struct {
	*Graph
	stream *Stream
	hooks  []launchHook
}

// Made, Make and Launch implement inside.GraphLaunch.
func (l graphLaunch) Made() bool    { return l.made.Load() }
func (l graphLaunch) Make() error   { return l.make() }
func (l graphLaunch) Launch() error { return l.launch(l.stream, l.hooks) }

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
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the graph is of %v, the stream of %v%s", g.dev, s.dev, native.Twice(g.dev, s.dev))
	}
	return g.launch(s, g.hooks)
}

// launch calls the hooks, each inside the one before, and then the backend.
func (g *Graph) launch(s *Stream, hooks []launchHook) error {
	if len(hooks) == 0 {
		if err := g.make(); err != nil {
			return err
		}
		if err := g.b.Launch(s.b); err != nil {
			return err
		}
		if c := s.capturing(); c != nil {
			c.mixes()
		} else {
			s.launched(g.what, g.of)
		}
		return nil
	}
	return hooks[0].around(s, graphLaunch{g, s, hooks[1:]})
}

// Close releases the graph. It is safe to call twice, and does nothing on nil.
func (g *Graph) Close() error {
	if g == nil || g.closed.Swap(true) {
		return nil
	}
	return g.b.Close()
}
