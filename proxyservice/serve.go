package proxyservice

// #include "loop.h"
import "C"

import (
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// tables hold what ids stand for, for what the loop in C leaves to Go: at least all
// that the loop's tables do.
type tables struct {
	links    []*link
	ports    []port
	memories []*registeredmem.Memory
}

// link is a connection, and the marks that Go made on it. The loop tracks some flushes as Go's: each of these
// has a mark unless it waits for the connection.
type link struct {
	*connection.Connection
	number  int
	waiting *atomic.Int64 // triggers that wait for the connection, as the loop sees it

	// taken counts for kernels what the transport has taken of what they asked for. It is
	// pinned, and nil where they need not know. The proxy's goroutine uses it, in C too, and
	// holders of mu.
	taken *atomic.Uint64

	mu     sync.Mutex
	marks  []connection.Mark // oldest first
	spares []*postponed      // for triggers that wait for the connection
}

// limited reports whether kernels push only as much as the backlog has room for. A queue that
// threads in C can use and that leads over no network waits for this rank's device alone.
func (l *link) limited() bool {
	q := l.Connection.Internal().Path().Queue
	return q == nil || q.Remote()
}

// took tells kernels that the transport has taken a trigger.
func (l *link) took() {
	if l.taken != nil {
		l.taken.Add(1)
	}
}

// forget lets go of the pinned memory, once the proxy's goroutine has ended.
func (l *link) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = nil
}

// port is what a channel's id stands for.
type port struct {
	*link
	semaphore *semaphore.Host2Device
	signal    func(turn) (uint64, error)
	name      string // for errors
}

// wrap adds a channel and its peer to the error of its trigger.
func (p port) wrap(j *job, what string, err error) error {
	return mscclgo.Errorf(mscclgo.KindOf(err), what, "channel %s: %w", p.name, err).At(mscclgo.NoRank, p.semaphore.Peer())
}

// turn is the right to queue on a connection.
type turn = inside.Turn[connection.Operation, connection.Mark]

// move does what a request asks for, in the turn of its connection. payload are the bytes
// that came with it. It allocates nothing.
func (t *tables) move(turn turn, j *job, payload []byte) error {
	p := t.ports[j.trigger.detail]
	p.Connection.Internal().Path().Asked = race.Asked{Place: uint32(j.place), Known: uint32(j.known)}
	if what := nameOf(j); what != "" {
		if err := turn.Do(t.operation(j, payload)); err != nil {
			return p.wrap(j, what, err)
		}
	}
	if j.trigger.kind&C.PROXY_SIGNAL != 0 {
		if _, err := p.signal(turn); err != nil {
			return p.wrap(j, "signal", err)
		}
	}
	if j.trigger.kind&C.PROXY_FLUSH != 0 {
		mark, err := turn.Mark()
		if err != nil {
			return p.wrap(j, "flush", err)
		}
		p.mu.Lock()
		p.marks = append(p.marks, mark)
		p.mu.Unlock()
	}
	return nil
}

// kindOf returns what a request asks to be done to a memory, or an update if it asks for nothing.
func kindOf(j *job) connection.Kind {
	switch kind := j.trigger.kind; {
	case kind&C.PROXY_EXCHANGE == C.PROXY_EXCHANGE:
		return connection.Exchange
	case kind&C.PROXY_ADD == C.PROXY_ADD:
		return connection.Add
	case kind&C.PROXY_GET != 0:
		return connection.Read
	case kind&C.PROXY_STORE != 0:
		return connection.Store
	case kind&C.PROXY_PUT == 0:
		return connection.Update
	case j.payload != nil:
		return connection.WriteBytes
	}
	return connection.Write
}

// kernelNames are the names that kernels have for kinds. Nothing writes to it.
var kernelNames = [...]string{
	connection.Write: "put", connection.WriteBytes: "put", connection.Read: "get", connection.Store: "store",
	connection.Add: "add", connection.Exchange: "exchange", connection.Update: "",
}

// nameOf returns the name that kernels have for that, or "".
func nameOf(j *job) string { return kernelNames[kindOf(j)] }

// operation returns what a request asks to be done to a memory.
func (t *tables) operation(j *job, payload []byte) connection.Operation {
	o := connection.Operation{Kind: kindOf(j), Theirs: t.memories[j.dst], Offset: uint64(j.dst_offset)}
	if o.Kind == connection.Write || o.Kind == connection.Read || o.Kind == connection.Exchange {
		o.Own, o.OwnOffset = t.memories[j.src], uint64(j.src_offset)
	}
	switch o.Kind {
	case connection.Read:
		o.Theirs, o.Offset, o.Own, o.OwnOffset = o.Own, o.OwnOffset, o.Theirs, o.Offset
		fallthrough
	case connection.Write, connection.WriteBytes:
		o.N, o.Data = uint64(j.trigger.c), payload
	case connection.Store, connection.Add:
		o.To = uint64(j.trigger.b)
	case connection.Exchange:
		o.To = uint64(j.trigger.c)
	}
	return o
}

// reached reports whether the oldest flush that the loop tracks as Go's is done.
func (l *link) reached() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.marks) == 0 {
		return false, nil // it waits for the connection
	}
	done, err := l.marks[0].Done()
	if done {
		l.marks = l.marks[:copy(l.marks, l.marks[1:])]
	}
	return done, err
}

// wrong returns the error of a trigger that is wrong.
func (t *tables) wrong(j *job) error {
	invalid := func(op, format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...)
	}
	switch j.verdict {
	case C.PROXY_BAD_KIND:
		return invalid("decode", "no trigger has kind %d; the user's are from %d, and need ServiceOptions.Handler", j.trigger.kind, fifo.FirstUserKind)
	case C.PROXY_BAD_FIELD:
		err := invalid("decode", "a memory's id is above 65535, an offset or the size is 2^48 or more, or a store or an add is not of 8 bytes")
		if number := uint64(j.trigger.detail); number < uint64(len(t.ports)) {
			return t.ports[number].wrap(j, nameOf(j), err)
		}
		return err
	case C.PROXY_NO_PORT:
		return invalid("find the channel", "no channel has number %d, the service has %d", j.trigger.detail, len(t.ports))
	}
	what, to, from := nameOf(j), "the peer's", "this rank's"
	if what == "get" {
		to, from = from, to
	}
	bytes := uint64(C.proxy_bytes(&j.trigger))
	const outside = "%d bytes at offset %d of memory %d, %v, are outside %s memory in the connection's registry"
	p := t.ports[j.trigger.detail]
	var err error
	switch j.verdict {
	case C.PROXY_NO_MEMORY:
		id := j.dst
		if int(id) < len(t.memories) {
			id = j.src // which a store and an add have not
		}
		err = invalid("find the memories", "no memory has number %d, the service has %d", id, len(t.memories))
	case C.PROXY_BAD_DST:
		err = invalid("check the ranges", outside, bytes, j.dst_offset, j.dst, t.memories[j.dst], to)
	case C.PROXY_BAD_SRC:
		err = invalid("check the ranges", outside, bytes, j.src_offset, j.src, t.memories[j.src], from)
	case C.PROXY_BAD_BYTES:
		err = invalid("find the bytes", "the trigger says that %d came with it, at %d; the ring takes 1 to ServiceOptions.Inline, at less than 16, and %v at most %d", j.trigger.c, j.trigger.b, p.Transport(), p.InlineLimit())
	}
	return p.wrap(j, what, err)
}

// failed returns the error of an operation that failed in C for a trigger: what move
// returns where it fails.
func (t *tables) failed(j *job, f native.Failure) error {
	what := map[native.Op]string{native.Begin: "serve", native.Write: "put", native.Read: "get", native.Store: "store", native.Update: "signal", native.Mark: "flush"}[f.Op]
	p := t.ports[j.trigger.detail]
	return p.wrap(j, what, p.Connection.Internal().Error(f))
}

// flushFailed returns the error of the query of a mark that failed in C.
func (l *link) flushFailed(f native.Failure) error {
	if f.Closed() {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: flush", "the connection was closed before it was done").At(mscclgo.NoRank, l.Connection.Internal().Path().Peer)
	}
	return l.Connection.Internal().Error(f)
}
