package ethernet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	// slotsPerSocket is the number of parts of staging memory that a socket's receiver
	// fills in turn.
	slotsPerSocket = 4
	// headBytes is how much is read at once while a frame's head is due. More would
	// often include payload that could have been read straight into its memory.
	headBytes = 4 << 10
	// completions is the number of events that may be pending in the receiving stream.
	completions = 64
)

// receiver applies what the peer sends. One stream does all copies in the order of the
// operations, so that an update follows the data before it without waiting.
type receiver struct {
	c     *conn
	order *order
	message.Applier
	sockets []*socket
	reading sync.WaitGroup

	mu        sync.Mutex
	changed   sync.Cond
	ring      [completions]completion
	posted    uint64 // completions, ever
	completed uint64
	queued    uint64 // pieces of work queued on the stream, ever
	finished  uint64 // those among them that are done
	stalls    int    // sockets that wait for completions
	ended     bool   // no more are posted
}

// completion is an event in the receiving stream.
type completion struct {
	event *gpu.Event
	ops   uint64       // operations that are done with it
	work  uint64       // pieces of work that are done with it
	holds target.Holds // memories to release then

	requests []answer  // reads of the peer's to answer then
	arrivals []fetched // what is here then of this rank's reads
}

// socket receives the frames of one data socket.
type socket struct {
	rx      *receiver
	in      *input
	slots   [slotsPerSocket]slot
	cur     int
	r, w    int          // the bytes of the current slot that are read and not used yet
	copies  bool         // work was queued on the stream and not posted
	applied bool         // frames were applied and not posted
	holds   target.Holds // of that work

	requests []answer  // reads of the peer's that were accepted and not posted
	arrivals []fetched // likewise of this rank's reads
	midway   atomic.Bool
}

// slot is one part of the staging memory.
type slot struct {
	staging *gpu.Buffer
	bytes   []byte
	until   uint64 // it is free after so many completions
}

func (c *conn) newReceiver(data []net.Conn, part uint64) (*receiver, error) {
	rx := &receiver{c: c, order: newOrder(len(data))}
	rx.changed.L = &rx.mu
	err := rx.Prepare(&c.End)
	if err != nil {
		return nil, err
	}
	for i := range rx.ring {
		if rx.ring[i].event, err = c.NewEvent(); err != nil {
			return nil, err
		}
	}
	for _, nc := range data {
		s := &socket{rx: rx, in: c.t.newInput(nc)}
		for i := range s.slots {
			b, err := c.NewPinned(part)
			if err != nil {
				return nil, err
			}
			s.slots[i] = slot{staging: b, bytes: b.Bytes()}
		}
		rx.sockets = append(rx.sockets, s)
	}
	return rx, nil
}

// start begins to receive.
func (rx *receiver) start() {
	for _, s := range rx.sockets {
		rx.reading.Add(1)
		rx.c.Tasks.Go(func() {
			defer rx.reading.Done()
			s.run()
		})
	}
	rx.c.Tasks.Go(func() {
		rx.reading.Wait()
		rx.mu.Lock()
		defer rx.mu.Unlock()
		rx.ended = true
		rx.changed.Broadcast()
	})
	rx.c.Tasks.Go(rx.complete)
}

// wake ends all waiting, since the connection has ended.
func (rx *receiver) wake() { rx.order.end() }

// midFrame reports whether part of a frame has arrived and the rest is due.
func (rx *receiver) midFrame() bool {
	for _, s := range rx.sockets {
		if s.midway.Load() {
			return true
		}
	}
	return false
}

// run applies frames until the socket ends.
func (s *socket) run() {
	for {
		f, err := s.head()
		whole := err == nil
		if whole {
			if err = s.apply(&f); err == nil {
				continue
			}
		}
		s.post()
		c := s.rx.c
		switch {
		case c.Over():
		case whole && !errors.Is(err, errCut):
			c.Refuse(&f, err)
		default:
			c.broke(err)
		}
		return
	}
}

var (
	errEnd = errors.New("the socket has ended between two frames")
	errCut = errors.New("it ended in the middle of a frame")
)

// head reads the next frame's head.
func (s *socket) head() (message.Frame, error) {
	for s.w-s.r < message.FrameSize {
		s.post() // before waiting for more
		if s.r == s.w && s.slots[s.cur].until == 0 {
			s.r, s.w = 0, 0 // no copy reads the slot
		}
		if len(s.slots[s.cur].bytes)-s.r < message.FrameSize {
			s.rotate()
		}
		partial := s.r < s.w
		s.midway.Store(partial)
		if err := s.more(headBytes); err != nil {
			if err == io.EOF && !partial {
				err = errEnd
			}
			return message.Frame{}, err
		}
	}
	s.midway.Store(false)
	head := s.slots[s.cur].bytes[s.r : s.r+message.FrameSize]
	f, err := message.Decode(head)
	if err == nil && !f.Kind.Operation() && f.Kind != message.Answer {
		err = fmt.Errorf("a frame of kind %d on a data socket", f.Kind)
	}
	s.r += message.FrameSize
	return f, err
}

// more reads at most limit bytes into the current slot, which has room.
func (s *socket) more(limit int) error {
	bytes := s.slots[s.cur].bytes
	n, err := s.in.read(bytes[s.w:min(len(bytes), s.w+limit)], nil)
	s.w += n
	s.rx.c.progress.Add(1)
	return err
}

// rotate moves to the next slot once that is free, with the bytes that are not used
// yet: less than a head.
func (s *socket) rotate() {
	s.post()
	left := s.slots[s.cur].bytes[s.r:s.w]
	s.cur = (s.cur + 1) % slotsPerSocket
	next := &s.slots[s.cur]
	s.rx.await(next.until)
	next.until = 0
	s.w = copy(next.bytes, left)
	s.r = 0
}

// awaitPayload reads at most limit bytes more of a payload into the current slot, which has room.
// What came before is posted first: it must not wait for the peer.
func (s *socket) awaitPayload(limit uint64) error {
	s.post()
	if err := s.more(int(limit)); err != nil {
		return cut(err)
	}
	return nil
}

// refill reads at most limit bytes more of a payload, when all that was read is used.
func (s *socket) refill(limit uint64) error {
	s.post()
	if s.slots[s.cur].until != 0 {
		s.rotate()
	}
	s.r, s.w = 0, 0
	return s.awaitPayload(min(limit, uint64(len(s.slots[s.cur].bytes))))
}

// forgo drops the rest of an answer whose memory was closed meanwhile, as err says: a rank that
// closes what it reads into gives up the bytes. It returns all other errors.
func (s *socket) forgo(f *message.Frame, err error, left uint64) error {
	var gone *target.Refusal
	if f.Kind != message.Answer || !errors.As(err, &gone) {
		return err
	}
	for left > 0 {
		if s.r == s.w {
			if err := s.refill(left); err != nil {
				return err
			}
		}
		n := min(left, uint64(s.w-s.r))
		s.r += int(n)
		left -= n
	}
	return nil
}

// apply applies a frame.
func (s *socket) apply(f *message.Frame) error {
	defer s.midway.Store(false)
	if f.Kind == message.Answer {
		s.midway.Store(true)
		return s.answer(f)
	}
	m, err := s.rx.c.t.target(f)
	if err != nil {
		return err
	}
	s.midway.Store(f.Kind == message.Data)
	host := s.rx.c.t.rank.Host(m.Buffer)
	if f.Kind == message.Data && host == nil {
		return s.toDevice(f, m)
	}
	switch ok, err := s.rx.order.enter(f); {
	case err != nil:
		return err
	case !ok:
		return errEnd
	}
	switch f.Kind {
	case message.Read:
		if host != nil {
			m.Moved(s.rx.c.Peer, f.Offset, f.Length, false)
		}
		err = s.accept(answer{op: f.Op, from: m, offset: f.Offset, n: f.Length})
	case message.Data:
		m.Moved(s.rx.c.Peer, f.Offset, f.Length, true)
		err = s.toHost(f, m, host[f.Offset:f.Offset+f.Length])
	default:
		err = s.word(f, m, host)
	}
	if err == nil {
		s.leave(f)
	}
	return err
}

func (s *socket) leave(f *message.Frame) {
	s.rx.order.leave(f)
	s.applied = true
}

// toDevice copies a frame's payload through the slots to device memory.
func (s *socket) toDevice(f *message.Frame, m *target.Memory) error {
	entered := f.Kind != message.Data // an answer has no place in the order
	for at := uint64(0); at < f.Length; {
		slot := &s.slots[s.cur]
		have := int(min(f.Length-at, uint64(s.w-s.r)))
		if uint64(have) < f.Length-at && s.w < len(slot.bytes) {
			if err := s.awaitPayload(min(f.Length-at-uint64(have), uint64(len(slot.bytes)))); err != nil {
				return err
			}
			continue
		}
		if !entered {
			entered = true
			s.midway.Store(false) // it waits for other sockets now, not for this one
			if ok, err := s.rx.order.enter(f); err != nil {
				return err
			} else if !ok {
				return errEnd
			}
		}
		if have > 0 {
			part := message.Frame{Kind: message.Data, Offset: f.Offset + at, Length: uint64(have)}
			if err := s.queue(&part, m, s.r); err != nil {
				return s.forgo(f, err, f.Length-at)
			}
			s.r += have
			at += uint64(have)
		}
		if at < f.Length {
			s.rotate()
			s.midway.Store(true)
		}
	}
	if f.Kind == message.Data {
		s.leave(f)
	}
	return nil
}

// word does an operation on a word behind all data before it, and answers an exchange with what the word was. host is
// the memory, or nil if the host cannot access it.
func (s *socket) word(f *message.Frame, m *target.Memory, host []byte) error {
	// For the device the value takes the place of the frame's head, which is longer and no longer needed, and so does
	// what the word was.
	at := (s.r - message.FrameSize + 7) &^ 7
	place := s.slots[s.cur].bytes[at : at+8]
	if host == nil || f.Kind == message.Update && !s.rx.idle() {
		binary.NativeEndian.PutUint64(place, f.Total)
		if err := s.queue(f, m, at); err != nil {
			return err
		}
	} else {
		if f.Kind != message.Update {
			s.settle() // the stream may have stores to do there
		}
		if !m.Hold() {
			return target.Gone(m)
		}
		s.rx.ByHost(f, m, host, place)
		m.Release()
	}
	if f.Kind == message.Exchange {
		return s.accept(answer{op: f.Op, n: 8, old: place})
	}
	return nil
}

// queue has the stream do what a frame says with memory and what is at a place of the slot. The memory is held
// until that is done.
func (s *socket) queue(f *message.Frame, m *target.Memory, at int) error {
	if err := s.holds.Add(m); err != nil {
		return err
	}
	s.copies = true
	if err := s.rx.ByDevice(f, m, s.slots[s.cur].staging, uint64(at)); err != nil {
		return err
	}
	// Counted once it is queued, so that an event recorded after the count follows it.
	s.rx.mu.Lock()
	s.rx.queued++
	s.rx.mu.Unlock()
	return nil
}

// toHost reads a frame's payload into memory that the host can access.
func (s *socket) toHost(f *message.Frame, m *target.Memory, dst []byte) error {
	// The stream may still store to a word in there.
	s.settle()
	for len(dst) > 0 {
		if s.r == s.w && s.in.straight() {
			s.post() // before waiting for more
			n, err := s.in.read(dst, m)
			if err == errWithdrawn {
				return s.forgo(f, target.Gone(m), uint64(len(dst)))
			}
			if err != nil {
				return cut(err)
			}
			s.rx.c.progress.Add(1)
			dst = dst[n:]
			continue
		}
		if s.r == s.w {
			if err := s.refill(uint64(len(dst))); err != nil {
				return err
			}
		}
		if !m.Hold() {
			return s.forgo(f, target.Gone(m), uint64(len(dst)))
		}
		n := copy(dst, s.slots[s.cur].bytes[s.r:s.w])
		m.Release()
		s.r += n
		dst = dst[n:]
	}
	return nil
}

// settle waits until the stream has done all that was queued before: also what another socket has
// queued and not posted, which may itself be waiting for this one.
func (s *socket) settle() {
	if !s.rx.idle() {
		s.copies = true // so that post records an event, behind all of that
		s.post()
		s.rx.awaitAll()
	}
}

// cut returns the error of a payload that is incomplete.
func cut(err error) error { return fmt.Errorf("%w: %w", errCut, err) }
