package shm

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Options configure a [Transport].
type Options struct {
	// Secret is known to members of the group only, and the same on all ranks.
	Secret [32]byte
	// Ring is how many bytes of data are under way at most from a peer to this rank, a
	// multiple of 4096 from 64 KiB to 1 GiB. 0 means 4 MiB. The ring has as much
	// pinned memory and 68 KiB more, once for both ranks, for each connection that a peer
	// makes to this rank.
	Ring uint64
	// Timeout is how long a peer may do nothing with what it was sent before the
	// connection fails. 0 means the registry's.
	Timeout time.Duration
	// Lost is called, in a goroutine of its own, when the process at the other end of a connection dies, what
	// it sends makes no sense, or it refuses what it was sent, since it has closed the buffer. It is not called
	// when either end closes the connection, and may be called for each direction. nil ignores it: the next call
	// on the connection returns the error.
	Lost func(peer int, err error)

	// Logger gets a record of each refused stranger, and of what is refused of peers; nil
	// discards.
	Logger *slog.Logger
}

// Transport is one rank's end of all its connections through shared memory.
type Transport struct {
	rank   message.Rank
	opts   Options
	key    fdpass.Key
	server *fdpass.Server

	endpoints map[[idSize]byte]*endpoint // guarded by rank.Mu
}

// idSize is the size of the random numbers of transports and endpoints, in bytes.
const idSize = message.IDSize

// New listens for peers and attaches the transport to reg, in which nothing may be
// registered yet. The caller closes it after its connections and the registry.
//
// Errors: ErrInvalid for options out of range; as for [registeredmem.Registry.Attach];
// ErrSystem when there can be no socket.
func New(reg *registeredmem.Registry, o Options) (*Transport, error) {
	const op = "shm: new transport"
	if reg == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the registry is nil")
	}
	t := &Transport{opts: o, key: fdpass.Key{Group: reg.Group(), Secret: o.Secret}, endpoints: map[[idSize]byte]*endpoint{}}
	err := t.rank.Init(reg, "shm", registeredmem.SHM, message.Options{Timeout: o.Timeout, Lost: o.Lost, Logger: o.Logger})
	switch {
	case err != nil:
		return nil, err
	case o.Ring != 0 && (o.Ring < minRing || o.Ring > maxRing || o.Ring%4096 != 0):
		return nil, t.rank.Invalid(op, "Options.Ring is %d; it must be a multiple of 4096 from %d to %d", o.Ring, minRing, maxRing)
	case o.Ring == 0:
		t.opts.Ring = defaultRing
	}
	if t.server, err = fdpass.Listen(t.key, t.rank.Timeout, t.rank.Log, t.serve); err != nil {
		return nil, t.rank.Wrap(mscclgo.ErrSystem, op, mscclgo.NoRank, err)
	}
	if err := reg.Attach(&t.rank); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.rank.Watch()
	return t, nil
}

// Close stops listening and ends the connections that are left, without waiting for
// what they have queued. It may be called again, also meanwhile: every call returns
// once that is done, with the same error.
func (t *Transport) Close() error { return t.rank.Close(t.server.Close) }

// String names the transport for messages.
func (t *Transport) String() string {
	return fmt.Sprintf("shared memory by way of %s", t.server.Name())
}
