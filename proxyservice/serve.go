package proxyservice

import (
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// server is what the proxy's goroutine of a service works with.
type server struct {
	tables
	ring     *fifo.Ring
	user     Handler   // may be nil
	counts   *counters // may be nil
	flushing []*line   // those with flushes under way
	next     int       // of flushing, to be asked
}

// line is a connection and its flushes under way. All but the first three fields
// are of the proxy's goroutine alone.
type line struct {
	conn  *connection.Connection
	index int
	done  *atomic.Uint64 // pinned: 1 + the position of the newest flush that is done

	flushes []flush // in the order of their positions
}

// flush is one that was begun.
type flush struct {
	mark     connection.Mark
	position uint64
	since    time.Time // zero when nobody counts
}

// request is a port's trigger; see PortRequest in <mscclgo/port_channel.cuh>.
type request struct {
	put, signal, flush bool
	inline             bool // of a put: the bytes are in the entry's payload
	port               uint64
	dst, src           uint16
	dstOffset          uint64
	srcOffset          uint64
	bytes              uint64
}

const offsetMask = 1<<48 - 1

// decode gives the request of a trigger, which may hold anything.
func decode(t fifo.Trigger) (request, error) {
	const all = devicecode.PortPut | devicecode.PortSignal | devicecode.PortFlush | devicecode.PortInline
	r := request{
		put:       t.Kind&devicecode.PortPut != 0,
		signal:    t.Kind&devicecode.PortSignal != 0,
		flush:     t.Kind&devicecode.PortFlush != 0,
		inline:    t.Kind&devicecode.PortInline != 0,
		port:      t.Detail,
		dst:       uint16(t.A >> 48),
		src:       uint16(t.B >> 48),
		dstOffset: t.A & offsetMask,
		srcOffset: t.B & offsetMask,
		bytes:     t.C,
	}
	if t.Kind == 0 || t.Kind&^all != 0 || r.inline && !r.put {
		return r, mscclgo.Errorf(mscclgo.ErrInvalid, "decode", "no trigger has kind %d; the user's are from %d, and need ServiceOptions.Handler", t.Kind, fifo.FirstUserKind)
	}
	if r.put && r.bytes > offsetMask {
		return r, mscclgo.Errorf(mscclgo.ErrInvalid, "put", "a memory's id is above 65535, or an offset or the size is 2^48 or more")
	}
	return r, nil
}

// serve does what a trigger asks. It allocates nothing.
func (s *server) serve(position uint64, t fifo.Trigger) error {
	if t.Kind >= fifo.FirstUserKind && s.user != nil {
		return s.user(t)
	}
	r, err := decode(t)
	if err != nil {
		return err
	}
	p, err := s.port(r)
	if err != nil {
		return err
	}
	if r.put {
		if err := s.put(p, r, position, t); err != nil {
			return p.wrap(r, "put", err)
		}
	}
	if r.signal {
		if err := p.semaphore.Signal(); err != nil {
			return p.wrap(r, "signal", err)
		}
	}
	if r.flush {
		if err := s.flush(p.line, position); err != nil {
			return p.wrap(r, "flush", err)
		}
	}
	return nil
}

// port looks the channel up.
func (s *server) port(r request) (port, error) {
	ports := *s.ports.Load()
	if r.port >= uint64(len(ports)) {
		return port{}, mscclgo.Errorf(mscclgo.ErrInvalid, "find the channel", "no channel has number %d, the service has %d", r.port, len(ports))
	}
	return ports[r.port], nil
}

// put looks the memories up; the connection checks that they are its ranks' and
// hold the ranges.
func (s *server) put(p port, r request, position uint64, t fifo.Trigger) error {
	memories := *s.memories.Load()
	if last := max(r.dst, r.src); int(last) >= len(memories) {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "find the memories", "no memory has number %d, the service has %d", last, len(memories))
	}
	var err error
	if r.inline {
		err = s.putInline(p, memories[r.dst], r.dstOffset, position, t)
	} else {
		err = p.line.conn.Write(memories[r.dst], r.dstOffset, memories[r.src], r.srcOffset, r.bytes)
	}
	if err != nil {
		return err
	}
	s.counts.wrote(p.line.conn.Transport(), r.bytes)
	return nil
}

// putInline writes the bytes that came with a trigger.
func (s *server) putInline(p port, dst *registeredmem.Memory, dstOffset, position uint64, t fifo.Trigger) error {
	data, ok := s.ring.Payload(position, t)
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "find the bytes", "the trigger says that %d came with it, at %d, and the ring takes at most %d", t.C, t.B, s.ring.PayloadSize())
	}
	return p.line.conn.WriteBytes(dst, dstOffset, data)
}

// flush begins one.
func (s *server) flush(l *line, position uint64) error {
	mark, err := l.conn.Mark()
	if err != nil {
		return err
	}
	f := flush{mark: mark, position: position}
	if s.counts != nil {
		f.since = time.Now()
	}
	if len(l.flushes) == 0 {
		s.flushing = append(s.flushing, l)
	}
	l.flushes = append(l.flushes, f)
	return nil
}

// goOn asks for one flush whether it is done: asking takes about as long as a
// trigger, and triggers are waiting. It says whether flushes are under way.
func (s *server) goOn() (bool, error) {
	if len(s.flushing) == 0 {
		return false, nil
	}
	s.next = (s.next + 1) % len(s.flushing)
	l := s.flushing[s.next]
	f := l.flushes[0]
	done, err := f.mark.Done()
	if err != nil || !done {
		return true, err
	}
	if s.counts != nil {
		s.counts.flushed(time.Since(f.since))
	}
	l.tell(f.position)
	l.flushes = l.flushes[:copy(l.flushes, l.flushes[1:])]
	if len(l.flushes) == 0 {
		last := len(s.flushing) - 1
		s.flushing[s.next] = s.flushing[last]
		s.flushing = s.flushing[:last]
	}
	return len(s.flushing) > 0, nil
}

// tell tells kernels that all flushes up to a position are done. The line's later
// ones may be done already, in C.
func (l *line) tell(position uint64) {
	if l.done.Load() <= position {
		l.done.Store(position + 1)
	}
}

// wrap gives the error of a channel's trigger its channel and peer.
func (p port) wrap(r request, what string, err error) error {
	return mscclgo.Errorf(mscclgo.KindOf(err), what, "channel %d: %w", r.port, err).At(mscclgo.NoRank, p.semaphore.Peer())
}
