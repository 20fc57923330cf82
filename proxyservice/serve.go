package proxyservice

import (
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// server does in Go what the loop in C leaves to it. Its tables hold at least all
// that the loop's do.
type server struct {
	links    atomic.Pointer[[]*link]
	ports    atomic.Pointer[[]port]
	memories atomic.Pointer[[]*registeredmem.Memory]
}

// link is a connection and the marks that Go made on it, one for each flush that
// the loop tracks as Go's.
type link struct {
	*connection.Connection
	number int
	marks  []connection.Mark // the proxy's goroutine's; oldest first
}

// port is what a channel's id stands for.
type port struct {
	semaphore *semaphore.Host2Device
	link      *link
}

// move does what a request asks for. It allocates nothing.
func (s *server) move(j *job) error {
	p := s.port(j)
	if j.put {
		if err := s.put(p.link, j); err != nil {
			return p.wrap(j, "put", err)
		}
	}
	if j.signal {
		if err := p.semaphore.Signal(); err != nil {
			return p.wrap(j, "signal", err)
		}
	}
	if j.flush {
		mark, err := p.link.Mark()
		if err != nil {
			return p.wrap(j, "flush", err)
		}
		p.link.marks = append(p.link.marks, mark)
	}
	return nil
}

func (s *server) put(l *link, j *job) error {
	memories := *s.memories.Load()
	if j.inlined {
		return l.WriteBytes(memories[j.dst], j.dstOffset, unsafe.Slice(j.payload, j.bytes))
	}
	return l.Write(memories[j.dst], j.dstOffset, memories[j.src], j.srcOffset, j.bytes)
}

// query reports whether the oldest mark that Go made on a connection is reached.
func (s *server) query(number int) (bool, error) {
	l := (*s.links.Load())[number]
	done, err := l.marks[0].Done()
	if done {
		l.marks = l.marks[:copy(l.marks, l.marks[1:])]
	}
	return done, err
}

// wrong returns the error of a trigger that is wrong, from a ring that takes payloads
// of a size.
func (s *server) wrong(j *job, payloadSize int) error {
	invalid := func(op, format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...)
	}
	switch j.verdict {
	case unknownKind:
		return invalid("decode", "no trigger has kind %d; the user's are from %d, and need ServiceOptions.Handler", j.Kind, fifo.FirstUserKind)
	case fieldOverflow:
		return invalid("decode", "a memory's id is above 65535, or an offset or the size is 2^48 or more")
	case unknownPort:
		return invalid("find the channel", "no channel has number %d, the service has %d", j.port, len(*s.ports.Load()))
	}
	p, memories := s.port(j), *s.memories.Load()
	unknown := func(id uint16) error {
		return invalid("find the memories", "no memory has number %d, the service has %d", id, len(memories))
	}
	outside := func(id uint16, offset uint64) error {
		return invalid("check the ranges", "%d bytes at offset %d are outside %v", j.bytes, offset, memories[id])
	}
	foreign := func(id uint16, what string) error {
		return invalid("find the memories", "memory %d is %v, not %s in the connection's registry", id, memories[id], what)
	}
	var err error
	switch j.verdict {
	case unknownDst:
		err = unknown(j.dst)
	case unknownSrc:
		err = unknown(j.src)
	case foreignDst:
		err = foreign(j.dst, "the peer's")
	case foreignSrc:
		err = foreign(j.src, "this rank's")
	case dstRange:
		err = outside(j.dst, j.dstOffset)
	case srcRange:
		err = outside(j.src, j.srcOffset)
	case noInline:
		err = invalid("find the bytes", "%d came with the trigger, and the connection over %v takes at most %d", j.bytes, p.link.Transport(), p.link.InlineLimit())
	case noPayload:
		err = invalid("find the bytes", "the trigger says that %d came with it, at %d, and the ring takes 1 to %d, at less than 16", j.C, j.B, payloadSize)
	}
	return p.wrap(j, "put", err)
}

// failed returns the error of an operation that failed in C for a trigger: what move
// returns where it fails.
func (s *server) failed(j *job, f native.Failure) error {
	what := map[native.Op]string{native.Begin: "serve", native.Write: "put", native.Store: "signal", native.Mark: "flush"}[f.Op]
	p := s.port(j)
	return p.wrap(j, what, native.PathError(p.link.Connection, f))
}

// flushFailed returns the error of the query of a mark that failed in C.
func (s *server) flushFailed(number int, f native.Failure) error {
	l := (*s.links.Load())[number]
	if f.Closed() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: flush", "the connection was closed before it was done").At(mscclgo.NoRank, native.PathOf(l.Connection).Peer)
	}
	return native.PathError(l.Connection, f)
}

func (s *server) port(j *job) port { return (*s.ports.Load())[j.request.port] }

// wrap adds a channel and its peer to the error of its trigger.
func (p port) wrap(j *job, what string, err error) error {
	return mscclgo.Errorf(mscclgo.KindOf(err), what, "channel %d: %w", j.request.port, err).At(mscclgo.NoRank, p.semaphore.Peer())
}
