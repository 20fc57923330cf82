package ethernet

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// readDepth is the number of reads that may wait for their answers; a power of two.
const readDepth = 256

// reading is what this rank has asked the peer for, in the order of the operations. The
// connection's Mu guards it.
type reading struct {
	asked    uint64        // reads, ever
	answered atomic.Uint64 // those among them that are here
	ring     [readDepth]asked
}

// asked is a read under way.
type asked struct {
	op     uint64
	to     *target.Memory // of this rank
	offset uint64
	n      uint64
	due    uint64 // bytes of which no frame has come
	left   uint64 // bytes that are not here
}

// answering is what the peer has asked this rank for. The connection's Mu guards it.
type answering struct {
	accepted uint64        // requests, ever
	ready    atomic.Uint64 // requests whose memory has all that was sent before them
	done     uint64        // requests that senders have taken whole
	ring     [readDepth]answer
}

// answer is a read of the peer's, or an exchange.
type answer struct {
	op       uint64
	from     *target.Memory // of this rank; nil: an exchange
	offset   uint64
	n, given uint64 // bytes, and how many of them senders have taken
	old      []byte // where what an exchanged word was comes to; nil once that is in value
	value    uint64
}

// fetched is a part of what this rank has asked for, at a place of reading's ring.
type fetched struct{ place, n uint64 }

// ask notes a read or an exchange that is queued next, and which of these a read must wait
// for: an exchange changes what they read, and waits for all. The caller holds Mu.
func (c *conn) ask(o *message.Op) {
	if o.Kind == message.Read {
		o.After = 0
		if len(c.senders) > 1 { // one socket has the answers in order
			o.After = c.reads.into(o)
		}
	}
	c.reads.ring[c.reads.asked%readDepth] = asked{op: c.Queued.Load(), to: o.Into, offset: o.IntoOffset, n: o.N, due: o.N, left: o.N}
	c.reads.asked++
}

// into returns the number of reads up to the last unanswered one that goes to the same bytes
// as o, or 0. Memories may share a buffer, so it compares addresses. The caller holds Mu.
func (r *reading) into(o *message.Op) uint64 {
	at := uint64(o.Into.Buffer.Ptr()) + o.IntoOffset
	for i := r.asked; i > r.answered.Load(); i-- {
		a := &r.ring[(i-1)%readDepth]
		if to := uint64(a.to.Buffer.Ptr()) + a.offset; at < to+a.n && to < at+o.N {
			return i
		}
	}
	return 0
}

// awaits returns the place of a read of which something is due. The caller holds Mu.
func (r *reading) awaits(op uint64) (place uint64, ok bool) {
	for i := r.answered.Load(); i < r.asked; i++ {
		if r.ring[i%readDepth].op == op {
			return i % readDepth, true
		}
	}
	return 0, false
}

// missing returns how many of the reads before an operation are not answered. The caller holds Mu.
func (r *reading) missing(until uint64) (n uint64) {
	for i := r.answered.Load(); i < r.asked && r.ring[i%readDepth].op < until; i++ {
		n++
	}
	return n
}

// underWay reports whether the peer owes bytes, for operations before sent. The caller holds Mu.
func (r *reading) underWay(sent uint64) bool {
	for i := r.answered.Load(); i < r.asked; i++ {
		if a := &r.ring[i%readDepth]; a.due > 0 && a.op < sent {
			return true
		}
	}
	return false
}

// expect finds what a frame with an answer is part of.
func (c *conn) expect(f *message.Frame) (to *target.Memory, offset, place uint64, err error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	place, ok := c.reads.awaits(f.Op)
	if !ok || f.Op >= c.Taken {
		return nil, 0, 0, fmt.Errorf("it answers operation %d, which is no read that waits for it", f.Op)
	}
	a := &c.reads.ring[place]
	if f.Total != a.n || f.Length > a.due {
		return nil, 0, 0, fmt.Errorf("it sent %d bytes as part of the %d of a read, of which %d of %d are due", f.Length, f.Total, a.due, a.n)
	}
	a.due -= f.Length
	return a.to, a.offset + f.Offset, place, nil
}

// arrived notes that parts of reads are here.
func (c *conn) arrived(parts ...fetched) {
	if len(parts) == 0 {
		return
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	r := &c.reads
	for _, a := range parts {
		r.ring[a.place].left -= a.n
	}
	answered := r.answered.Load()
	for answered < r.asked && r.ring[answered%readDepth].left == 0 {
		answered++
	}
	r.answered.Store(answered)
	c.settled()
	c.Work.Broadcast()
}

// answer applies a frame with a part of what was read.
func (s *socket) answer(f *message.Frame) error {
	m, offset, place, err := s.rx.c.expect(f)
	if err != nil {
		return err
	}
	part := fetched{place, f.Length}
	if host := s.rx.c.t.rank.Host(m.Buffer); host != nil {
		if err := s.toHost(f, m, host[offset:offset+f.Length]); err != nil {
			return err
		}
		s.rx.c.arrived(part)
		return nil
	}
	there := *f
	there.Offset = offset
	if err := s.toDevice(&there, m); err != nil {
		return err
	}
	s.arrivals = append(s.arrivals, part)
	return nil
}

// accept notes a read of the peer's or an exchange, which is answered once what was sent before
// it is done.
func (s *socket) accept(a answer) error {
	c := s.rx.c
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.answers.accepted-c.answers.done == readDepth {
		return fmt.Errorf("it reads though %d of its reads are not answered", readDepth)
	}
	c.answers.accepted++
	s.requests = append(s.requests, a)
	return nil
}

// reply queues the answers to reads, for which accept has left room.
func (c *conn) reply(all []answer) {
	if len(all) == 0 {
		return
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, a := range all {
		if a.old != nil {
			a.value, a.old = binary.NativeEndian.Uint64(a.old), nil
		}
		c.answers.ring[c.answers.ready.Load()%readDepth] = a
		c.answers.ready.Add(1)
	}
	c.Work.Broadcast()
}

// takeAnswers takes parts of answers off their queue into a batch, so many that there is
// room left for operations. The caller holds Mu.
func (s *sender) takeAnswers(b *batch) {
	all := &s.c.answers
	for limit := min(s.part, straightBytes) / 2; b.count < batchFrames/2 && b.used < limit && all.done < all.ready.Load(); {
		a := &all.ring[all.done%readDepth]
		n := min(a.n-a.given, limit-b.used)
		if a.from == nil && n < a.n {
			break // it goes whole into the next batch
		}
		p := &b.pieces[b.count]
		*p = piece{
			Frame: message.Frame{Kind: message.Answer, Op: a.op, Offset: a.given, Length: n, Total: a.n},
			from:  a.from, srcOffset: a.offset + a.given, data: p.data,
		}
		if a.from == nil {
			p.data = binary.NativeEndian.AppendUint64(p.data[:0], a.value)
		}
		b.count++
		b.used += n
		b.size += n
		if a.given += n; a.given == a.n {
			all.done++
		}
	}
}

// copyAnswer copies a part of an answer to the batch's staging memory, so that what is
// sent does not change and the memory may be closed.
func (s *sender) copyAnswer(b *batch, p *piece, at uint64) error {
	m := p.from
	if m == nil {
		copy(b.bytes[at:at+p.Length], p.data)
		return nil
	}
	if host := s.c.t.rank.Host(m.Buffer); host != nil {
		if !m.Hold() {
			return target.Gone(m)
		}
		defer m.Release()
		copy(b.bytes[at:at+p.Length], host[p.srcOffset:])
		return nil
	}
	if err := b.holds.Add(m); err != nil {
		return err
	}
	b.copies = true
	if err := s.stream.Copy(b.staging, at, m.Buffer, p.srcOffset, p.Length); err != nil {
		return m.Failed(fmt.Errorf("%w: %w", message.ErrDevice, err))
	}
	return nil
}

// awaitAnswers waits for a batch's copies if they read memory for answers, whose owner may
// close it: that must not wait for the peer to take what was sent before.
func (s *sender) awaitAnswers(b *batch) bool {
	if len(b.holds) == 0 {
		return true
	}
	if !s.copied(b) {
		return false
	}
	b.holds.Release()
	return true
}

// abandon releases what is still held when the connection has ended, once nothing is read
// any more.
func (s *sender) abandon() {
	for _, b := range s.batches {
		if len(b.holds) > 0 {
			s.stream.Synchronize(s.c.Drain) // the connection has ended with another error
			b.holds.Release()
		}
	}
}
