package collective

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
)

// order puts the calls of all runners of a communicator in the order in which they are
// made, whatever streams they are made on: they share a scratch and
// flags. It costs nothing while one stream is used.
//
// When a call comes on another stream, an event is recorded on the previous stream, and
// the new one waits for it. In a capture that is done within it, so that the graph has the
// order. Each launch of the graph takes its place among the calls as if it were one call.
// A stream that closes leaves an event behind.
//
// The launches of a graph that other code captures are not seen here. From its first capture
// on there is an event for the order: every such graph, and every call that is not captured,
// waits for it and records it. Earlier calls on the very stream that captures cannot be
// marked for the graph any more.
//
// It outlives its group: Reform makes it the order of the next communicator, so that graphs that were
// captured before have their place among the calls there.
type order struct {
	id uint64 // of the hooks

	mu       sync.Mutex
	comm     *communicator.Communicator
	members  map[*Runner]bool // that are open
	last     *gpu.Stream      // that has the last call, or nil
	left     *gpu.Event       // the last call, where its stream was closed, or nil
	lost     bool             // the last call's stream was closed in a capture that it had not begun
	event    *gpu.Event       // made when a second stream comes
	inside   *gpu.Event       // likewise, for captures: event may still mark the call that was left
	across   *gpu.Event       // of all calls since other code first captured one, or nil
	captures map[uint64]*captured
	runners  uint64 // the largest of their numbers so far
	closed   bool
}

// captured is what a capture has of the communicator's calls.
type captured struct {
	last  *gpu.Stream // that has the last of them
	calls uint64
	first string
	sum   uint64 // of all their descriptions
	text  string // a description of all, or ""
	uses  []use  // of all calls, each once
	// sides are the callers' buffers that all calls use, each once, unless other code captures: then
	// nobody asks for them.
	sides []side
	kept  map[*gpu.Buffer]bool // those
	// handle is the handle of last if other code captures: it may wrap a stream anew for each
	// call, which is then the same. Else it is 0.
	handle uintptr
	of     *communicator.Communicator // when it began
}

// mostCaptured bounds the captures of other code that are kept although nothing tells
// whether they have ended.
const mostCaptured = 64

// orderedCall is a call as order knows it.
type orderedCall struct {
	op          string // for errors
	description string // for the other ranks; "" if they need not make the call
	matched     bool   // compared with theirs already, and numbered, before what the first such call prepares
	// What must be open when a graph that holds the call is launched.
	uses  []use
	sides []side
	queue func(*gpu.Stream) error
}

// use is something that calls use: a *Runner, a *Memory or a *validity.
type use interface {
	// wrong tells why graphs that hold such calls cannot be launched, or "".
	wrong() string
}

const usesClosed = ", which its calls use, is closed"

// orderOf returns the one order of a communicator.
func orderOf(comm *communicator.Communicator) *order {
	return comm.Internal().Keep(func() inside.Kept[*communicator.Communicator] {
		return &order{comm: comm, id: comm.Registry().Internal().Instance(), captures: map[uint64]*captured{}, members: map[*Runner]bool{}}
	}).(*order)
}

// next returns a number for a new runner of the communicator, which those before do not have.
func (o *order) next() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runners + 1
}

// enter adds a runner of that number.
func (o *order) enter(r *Runner, number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.members[r] = true
	o.runners = max(o.runners, number)
}

// part ends what enter began.
func (o *order) part(r *Runner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.members, r)
}

// Retire implements inside.Kept.
func (o *order) Retire() error {
	o.mu.Lock()
	o.forget()
	o.closed, o.left, o.lost = true, nil, false
	members := slices.Collect(maps.Keys(o.members))
	o.mu.Unlock()
	var errs []error
	for _, r := range members {
		errs = append(errs, r.retire())
	}
	return errors.Join(errs...)
}

// Follow implements inside.Kept.
func (o *order) Follow(comm *communicator.Communicator) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.comm, o.closed = comm, false
}

// do queues a call on a stream that is open, behind all calls before it. All ranks make
// the call of that description, if it has one; where one does not, the group fails. Nothing is queued
// then.
func (o *order) do(s *gpu.Stream, c *orderedCall) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return wrap(o.comm, c.op, o.add(s, c))
}

// add is do for a caller that holds mu.
func (o *order) add(s *gpu.Stream, c *orderedCall) error {
	key, err := s.Internal().Enter(c.op)
	if err != nil {
		return err
	}
	if key != 0 {
		return o.capture(key, s, c)
	}
	if err := o.follow(s); err != nil {
		return err
	}
	description := c.description
	if c.matched {
		description = ""
	}
	if err := o.match(description, ""); err != nil {
		return err
	}
	err = c.queue(s)
	return errors.Join(err, o.turn(s))
}

// match compares a call with the other ranks' calls. The caller holds mu.
func (o *order) match(description, suffix string) error {
	if description == "" {
		return o.comm.Err()
	}
	return o.comm.MatchCall(description + suffix)
}

// follow has a stream that does not capture wait for the last call. The caller holds
// mu.
func (o *order) follow(s *gpu.Stream) error {
	if o.across != nil {
		if err := s.Wait(o.across); err != nil {
			return err
		}
	}
	switch {
	case o.lost:
		return errors.New("the stream of the call before it was closed while it took part in a capture, so that nothing can wait for that call: go on with another communicator, and close streams when their captures have ended")
	case o.left != nil:
		return s.Wait(o.left)
	case o.last == nil || o.last == s:
		return nil
	}
	event, err := o.marked(o.last)
	if err != nil {
		return err
	}
	return s.Wait(event)
}

// turn makes a stream that does not capture the one that has the last call. The caller
// holds mu.
func (o *order) turn(s *gpu.Stream) (err error) {
	o.left, o.lost = nil, false
	if o.across != nil {
		o.forget()
		return s.Record(o.across)
	}
	if s.Internal().OfThread() { // so that no other thread can mark its work
		o.forget()
		o.left, err = record(&o.event, s)
		return err
	}
	if o.last == s {
		return nil
	}
	o.forget()
	o.last = s
	s.Internal().BeforeClose(o.id, func() { o.leave(s) })
	return nil
}

// forget ends the part of the stream that had the last call. The caller holds mu.
func (o *order) forget() {
	if o.last != nil {
		o.last.Internal().BeforeClose(o.id, nil)
	}
	o.last = nil
}

// leave marks the last call, as its stream closes.
func (o *order) leave(s *gpu.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last != s || o.closed {
		return
	}
	o.last = nil
	var err error
	o.left, err = o.marked(s)
	o.lost = err != nil
}

// marked returns the event, recorded on a stream that does not capture.
func (o *order) marked(s *gpu.Stream) (*gpu.Event, error) {
	if s.Internal().Capture() != 0 {
		return nil, errors.New("the call before it is on a stream that captures now, and can only be waited for when the capture has ended; end it first, or make both calls on one stream")
	}
	return record(&o.event, s)
}

// record returns an event, recorded on a stream. It is made if there is none.
func record(event **gpu.Event, s *gpu.Stream) (*gpu.Event, error) {
	if *event == nil {
		var err error
		if *event, err = s.Device().NewEvent(); err != nil {
			return nil, err
		}
	}
	return *event, s.Record(*event)
}

// capture is add for a stream that captures. The calls of one capture follow each other
// in it. They are matched with the other ranks' when the graph is launched.
func (o *order) capture(key uint64, s *gpu.Stream, call *orderedCall) error {
	if o.closed {
		return errors.New("the communicator is closed")
	}
	if err := o.comm.Err(); err != nil {
		return err
	}
	c, others := o.captures[key], s.Internal().CapturedByOthers()
	if others {
		if err := o.match(call.description, ", captured by other code"); err != nil {
			return err
		}
	}
	switch {
	case c != nil && c.of != o.comm:
		return errors.New("the capture began with calls of the group before: end it, and begin another")
	case c == nil:
		o.dropEnded()
		c = &captured{kept: map[*gpu.Buffer]bool{}, of: o.comm}
		o.captures[key] = c
		if others {
			if err := o.reachAcross(s); err != nil {
				return err
			}
		}
		s.Internal().Carry(o.id, o.comm.Internal().Beside(), func(stream *gpu.Stream, g inside.GraphLaunch) error {
			return o.launch(stream, c, g)
		})
	case c.last != s && (c.handle == 0 || c.handle != s.Handle()):
		event, err := record(&o.inside, c.last)
		if err != nil {
			return err
		}
		if err := s.Wait(event); err != nil {
			return err
		}
	}
	c.last = s
	if others {
		c.handle = s.Handle()
	} else {
		c.keep(call.sides)
	}
	c.add(call)
	if err := call.queue(s); err != nil || !others {
		return err
	}
	return s.Internal().RecordAcross(o.across)
}

// dropEnded forgets the captures that have ended. The caller holds mu.
func (o *order) dropEnded() {
	unknown := func(c *captured) bool { return c.handle != 0 && c.last.Handle() == 0 } // last is closed
	for key, c := range o.captures {
		if c.last.Internal().Capture() != key && (!unknown(c) || len(o.captures) >= mostCaptured) {
			delete(o.captures, key)
		}
	}
}

// reachAcross has the graph that other code captures on a stream wait for the calls before
// each launch. The caller holds mu.
func (o *order) reachAcross(s *gpu.Stream) (err error) {
	switch {
	case o.across != nil:
	case o.left != nil:
		o.across, o.event, o.left = o.event, nil, nil
	default:
		if o.across, err = s.Device().NewEvent(); err != nil {
			return err
		}
		if o.last != nil && o.last.Internal().Capture() == 0 {
			if err := o.last.Record(o.across); err != nil {
				return err
			}
			o.forget()
		}
	}
	return s.Internal().WaitAcross(o.across)
}

// add counts a call.
func (c *captured) add(call *orderedCall) {
	if call.description != "" {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s", c.sum, call.description)
		c.sum, c.text = h.Sum64(), ""
		if c.calls++; c.calls == 1 {
			c.first = call.description
		}
	}
	for _, u := range call.uses {
		if !slices.Contains(c.uses, u) {
			c.uses = append(c.uses, u)
		}
	}
}

// keep adds buffers that calls use.
func (c *captured) keep(sides []side) {
	for _, x := range sides {
		if x.bytes > 0 && !c.kept[x.Buffer] {
			c.kept[x.Buffer] = true
			c.sides = append(c.sides, x)
		}
	}
}

// wrong returns why the graph cannot be launched, or "".
func (c *captured) wrong() string {
	for _, u := range c.uses {
		if why := u.wrong(); why != "" {
			return why
		}
	}
	for _, b := range c.sides {
		if b.Internal().Freed() {
			return fmt.Sprintf("a buffer of %d bytes%s", b.Size(), usesClosed)
		}
	}
	return ""
}

// launch launches a capture's graph, as one call.
func (o *order) launch(s *gpu.Stream, c *captured, g inside.GraphLaunch) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	const op = "collective: launch a graph"
	if why := c.wrong(); why != "" {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s", why).At(o.comm.Rank(), mscclgo.NoRank)
	}
	if c.text == "" && c.calls > 0 {
		c.text = fmt.Sprintf("a graph of %d calls (%016x), first %s", c.calls, c.sum, c.first)
	}
	return wrap(o.comm, op, o.add(s, &orderedCall{op, c.text, false, c.uses, c.sides, func(s *gpu.Stream) error { return o.queue(s, g) }}))
}

// queue queues a graph that is launched as the last call. While CUDA's driver makes one, it may wait for the kernels
// of all ranks of the process on that GPU, which may wait for this one. So these ranks make a graph when all of
// them have come to its launch, and launch it when all have made theirs.
func (o *order) queue(s *gpu.Stream, g inside.GraphLaunch) error {
	if !o.comm.Internal().Beside() || s.Internal().Capture() != 0 {
		return g.Launch()
	}
	made := g.Made()
	if !made {
		o.comm.Internal().Together(false, true)
	}
	err := g.Make()
	o.comm.Internal().Together(true, !made) // whether or not, so that no other waits for this one
	if err != nil {
		return err
	}
	return g.Launch()
}

// serves reports whether this is the order of a communicator that is open.
func (o *order) serves(comm *communicator.Communicator) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.closed && o.comm == comm
}

// Close implements inside.Kept.
func (o *order) Close() error {
	err := o.Leave()
	o.mu.Lock()
	members := slices.Collect(maps.Keys(o.members))
	o.mu.Unlock()
	for _, r := range members {
		err = errors.Join(err, r.Close(context.Background())) // which waits for nobody now
	}
	return err
}

// Leave implements inside.Kept: it releases the events.
func (o *order) Leave() error {
	o.mu.Lock()
	event, inside, across := o.event, o.inside, o.across
	o.forget()
	o.closed, o.left, o.event, o.inside, o.across = true, nil, nil, nil, nil
	o.mu.Unlock()
	return errors.Join(event.Close(), inside.Close(), across.Close())
}
