package ethernet

import (
	"fmt"
	"math"
	"net"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	// sendBatches is how many batches a sender fills in turn: one is copied while
	// one is sent.
	sendBatches = 4
	// batchFrames is the most frames of a batch.
	batchFrames = 64
	// straightBytes is the most payload of a frame that is sent from where it lies.
	straightBytes = 1 << 20
	// joinedBytes is the most payload that is made one piece before it is sent.
	joinedBytes = 16 << 10
)

// sender sends a connection's operations on one data socket.
type sender struct {
	c       *conn
	conn    net.Conn
	stream  *gpu.Stream
	part    uint64      // bytes of a batch's staging memory
	unsent  uint64      // the first operation of which it has taken a part and not written it, or none; guarded by the connection's Mu
	writing atomic.Bool // it waits for the peer to take bytes, or has failed
	batches [sendBatches]*batch
	joined  []byte
}

// none is the number of no operation.
const none = math.MaxUint64

// batch is what is sent at once.
type batch struct {
	first   uint64 // the first operation of which it has a part, or none
	staging *gpu.Buffer
	bytes   []byte // of staging
	event   *gpu.Event
	copies  bool // the event must be waited for

	pieces [batchFrames]piece
	count  int
	used   uint64 // of staging
	size   uint64 // of all payloads
	heads  [batchFrames * message.FrameSize]byte
	out    [][]byte // slices of heads and payloads, in order
	vector net.Buffers
	holds  target.Holds // memories that copies of answers read
}

// piece is one frame of a batch.
type piece struct {
	message.Frame
	src       *gpu.Buffer // nil: in data
	srcOffset uint64
	data      []byte         // belongs to the batch's place, which uses it again
	from      *target.Memory // of an answer: where its bytes are, from srcOffset on; nil: in data
}

func (c *conn) newSender(nc net.Conn, part uint64) (*sender, error) {
	s := &sender{c: c, conn: nc, part: part, unsent: none, joined: make([]byte, 0, joinedBytes+2*batchFrames*message.FrameSize)}
	var err error
	if s.stream, err = c.NewStream(); err != nil {
		return nil, err
	}
	for i := range s.batches {
		b := &batch{out: make([][]byte, 0, 2*batchFrames)}
		if b.staging, err = c.NewPinned(part); err != nil {
			return nil, err
		}
		b.bytes = b.staging.Bytes()
		if b.event, err = c.NewEvent(); err != nil {
			return nil, err
		}
		s.batches[i] = b
	}
	return s, nil
}

// run sends until the connection ends. While a large batch is being sent the next one
// is copied. A small batch is sent together with what was queued while it was copied,
// most often the signal that follows it.
func (s *sender) run() {
	defer s.abandon()
	next := false // the next batch has been filled
	for turn := 0; ; {
		b := s.batches[turn%sendBatches]
		if !next && !s.fill(b, true) {
			return
		}
		turn++
		following := s.batches[turn%sendBatches]
		small := b.size <= joinedBytes
		if small && !s.copied(b) {
			return
		}
		next = s.fill(following, false)
		if !s.copied(b) {
			return
		}
		var err error
		s.writing.Store(true)
		if small && next && !following.copies && b.size+following.size <= joinedBytes {
			err = s.sendJoined(b, following)
			next = false
			turn++
		} else if small {
			err = s.sendJoined(b)
		} else {
			b.vector = net.Buffers(b.out)
			_, err = b.vector.WriteTo(s.conn)
		}
		if err != nil {
			s.c.broke(fmt.Errorf("sending to it: %w", err))
			return
		}
		s.writing.Store(false)
		s.c.progress.Add(1)
		if next {
			s.sent(following.first)
		} else {
			s.sent(none)
		}
	}
}

// sent notes that all before an operation that the sender has taken is written: what it was read
// from may be its owner's again, once the peer acknowledges it.
func (s *sender) sent(next uint64) {
	s.c.Mu.Lock()
	defer s.c.Mu.Unlock()
	s.unsent = next
	s.c.advance()
}

// sent returns the number of operations that senders have written whole. The caller holds Mu.
func (c *conn) sent() uint64 {
	n := c.Taken
	for _, s := range c.senders {
		n = min(n, s.unsent)
	}
	return n
}

// advance counts what the peer says is done, so far as it was sent: the peer may lie, and it may
// have had all bytes before the call that wrote them has returned. The caller holds Mu.
func (c *conn) advance() {
	done := min(c.claimed, c.sent())
	if done <= c.acked.Load() {
		return
	}
	if c.farAhead() {
		c.Work.Broadcast()
	}
	c.acked.Store(done)
	c.settled()
}

// fill takes operations off the queue into a batch and begins to copy them. It
// reports false if the queue is empty and it may not wait, or the connection has
// ended.
func (s *sender) fill(b *batch, wait bool) bool {
	if !s.take(b, wait) {
		return false
	}
	b.copies = false
	b.out = b.out[:0]
	at := uint64(0)
	for i := range b.count {
		p := &b.pieces[i]
		head := b.heads[i*message.FrameSize : (i+1)*message.FrameSize]
		p.Encode(head)
		b.out = append(b.out, head)
		if p.Kind == message.Answer {
			if err := s.copyAnswer(b, p, at); err != nil {
				s.c.Refuse(&message.Frame{Kind: message.Read, Memory: p.from.ID, Op: p.Op, Offset: p.srcOffset - p.Offset, Length: p.Total, Total: p.Total}, err)
				return false
			}
			b.out = append(b.out, b.bytes[at:at+p.Length])
			at += p.Length
			continue
		}
		if p.Kind != message.Data {
			continue
		}
		if host := s.host(p.src, p.data); host != nil {
			b.out = append(b.out, host[p.srcOffset:p.srcOffset+p.Length])
			continue
		}
		if err := s.stream.Copy(b.staging, at, p.src, p.srcOffset, p.Length); err != nil {
			s.c.Broken(err)
			return false
		}
		b.out = append(b.out, b.bytes[at:at+p.Length])
		at += p.Length
		b.copies = true
	}
	if b.copies {
		if err := s.stream.Record(b.event); err != nil {
			s.c.Broken(err)
			return false
		}
	}
	return s.awaitAnswers(b)
}

// host returns a write's bytes, or nil if the host cannot access them.
func (s *sender) host(src *gpu.Buffer, data []byte) []byte {
	if src == nil {
		return data
	}
	return s.c.t.rank.Host(src)
}

// take takes the pieces of a batch off the queue. It waits for the first if it may.
func (s *sender) take(b *batch, wait bool) bool {
	c := s.c
	if wait {
		seen := c.Queued.Load()
		c.Mu.Lock()
		ready := c.answers.ready.Load()
		idle := c.Taken == seen && c.answers.done == ready
		c.Mu.Unlock()
		if idle {
			c.t.rank.Spin.Until(func() bool {
				return c.Queued.Load() != seen || c.answers.ready.Load() != ready || c.Over()
			})
		}
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for c.Err == nil && c.answers.done == c.answers.ready.Load() && (c.farAhead() || !c.due()) {
		if !wait {
			return false
		}
		c.Work.Wait()
	}
	if c.Err != nil {
		return false
	}
	b.count, b.used, b.size, b.first = 0, 0, 0, none
	s.takeAnswers(b)
operations:
	for ahead := c.farAhead(); !ahead && b.count < batchFrames && c.due(); {
		o := c.Oldest()
		p := &b.pieces[b.count]
		*p = piece{Frame: o.Frame(c.Taken), data: p.data}
		if o.Kind != message.Data {
			o.Given = o.N
		} else {
			host := s.host(o.Src, o.Data)
			room := s.part - b.used
			if host != nil {
				room = straightBytes - min(b.size, straightBytes)
			}
			n := min(o.N-o.Given, room)
			if o.Src == nil && n < o.N {
				break operations // it goes whole into the next batch
			}
			if n == 0 || b.size >= straightBytes {
				break operations
			}
			p.Length, p.src, p.srcOffset = n, o.Src, o.SrcOffset+o.Given
			o.Given += n
			b.size += n
			if host == nil {
				b.used += n
			}
			if o.Src == nil {
				p.data, o.Data = o.Data, p.data // the queue uses the place again
			}
		}
		b.count++
		if b.first == none {
			b.first = c.Taken
			s.unsent = min(s.unsent, b.first)
		}
		if o.Given == o.N {
			c.Sent()
		}
	}
	return true
}

// due reports whether there is an operation that may be sent: the reads that it waits for are
// answered. The caller holds Mu.
func (c *conn) due() bool {
	if c.Taken == c.Queued.Load() {
		return false
	}
	return c.reads.answered.Load() >= c.Oldest().After
}

// farAhead reports whether no more may be sent before the peer acknowledges: a socket
// that is quicker than another could be farther ahead than the peer allows. The caller
// holds Mu.
func (c *conn) farAhead() bool {
	return len(c.senders) > 1 && c.Taken-c.acked.Load() > maxAhead-batchFrames
}

// copied waits until a batch's copies are done. It reports false if the connection
// has ended.
func (s *sender) copied(b *batch) bool {
	if !b.copies {
		return true
	}
	if err := b.event.Synchronize(s.c.Ctx); err != nil {
		s.c.Broken(err)
		return false
	}
	b.copies = false
	return true
}

// sendJoined writes small batches to the socket with one call.
func (s *sender) sendJoined(batches ...*batch) error {
	all := s.joined[:0]
	for _, b := range batches {
		for _, part := range b.out {
			all = append(all, part...)
		}
	}
	_, err := s.conn.Write(all)
	return err
}
