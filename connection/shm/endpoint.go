package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// endpoint is one rank's half of connections. It can connect to any number of
// peers, and peers to it until it or its transport is closed.
type endpoint struct {
	t      *Transport
	about  description
	closed atomic.Bool
}

var _ connection.Endpoint = (*endpoint)(nil)

// formatVersion is the version of an endpoint's bytes.
const formatVersion = 1

var formatKind = [4]byte{'M', 'G', 'S', 'M'}

// description is the content of the bytes of an endpoint.
type description struct {
	group     [16]byte
	rank      uint32
	transport [idSize]byte
	id        [idSize]byte
	host      string `wire:"255"` // of hostid.MaxSize at most
	socket    string `wire:"64"`  // where to ask for a ring
}

var descriptions = wire.For[description]()

func (d *description) encode() []byte { return descriptions.Seal(formatKind, formatVersion, d) }

func decode(data []byte) (description, error) {
	d, err := descriptions.Open(formatKind, formatVersion, data)
	switch {
	case err != nil:
	case d.rank > math.MaxInt32:
		err = fmt.Errorf("rank %d is out of range", d.rank)
	case d.host == "":
		err = errors.New("the host's identity is empty")
	case !fdpass.ValidName(d.socket):
		err = fmt.Errorf("%q is not the name of a socket", d.socket)
	}
	return d, err
}

// NewEndpoint returns an endpoint, to which peers can connect from now on.
//
// Errors: ErrInvalid when the transport is closed.
func (t *Transport) NewEndpoint() (connection.Endpoint, error) {
	e := &endpoint{t: t, about: description{
		group: t.rank.Registry.Group(), rank: uint32(t.rank.Registry.Rank()), transport: t.rank.Instance, host: t.rank.Registry.Host(), socket: t.server.Name(),
	}}
	rand.Read(e.about.id[:])
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	if t.rank.Closed {
		return nil, t.rank.Invalid("shm: new endpoint", "the transport is closed")
	}
	t.endpoints[e.about.id] = e
	return e, nil
}

// MarshalBinary returns the bytes that the peer's Connect takes. They
// are no secret.
func (e *endpoint) MarshalBinary() ([]byte, error) { return e.about.encode(), nil }

// Connect returns a connection to the rank whose endpoint's bytes remote are, which may be
// this rank and this endpoint. It waits for the peer's process, but not for its Connect,
// which is for the other direction.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of another version or
// group, and once the endpoint or its transport is closed; ErrUnsupported when the peer is
// on another host; ErrRemote when the peer does not answer, has another network namespace,
// or has no memory for a ring; ErrTimeout and ErrAborted when ctx ends first; ErrSystem when
// this rank cannot map or pin the ring, or has no descriptor left.
func (e *endpoint) Connect(ctx context.Context, remote []byte) (*connection.Connection, error) {
	c, err := e.connect(ctx, remote)
	if err != nil {
		return nil, err
	}
	return connection.New(e.t.rank.Registry, c.Peer, registeredmem.SHM, c)
}

// connect makes the driver of a connection.
func (e *endpoint) connect(ctx context.Context, remote []byte) (*conn, error) {
	const op = "shm: connect"
	rank := e.t.rank.Registry.Rank()
	peer, err := decode(remote)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bytes do not describe an endpoint: %w", err).At(rank, mscclgo.NoRank)
	}
	fail := func(kind mscclgo.Kind, format string, args ...any) error {
		return mscclgo.Errorf(kind, op, format, args...).At(rank, int(peer.rank))
	}
	switch {
	case e.closed.Load():
		return nil, fail(mscclgo.ErrInvalid, "the endpoint is closed")
	case e.t.rank.Ctx.Err() != nil:
		return nil, fail(mscclgo.ErrInvalid, "the transport is closed")
	case ctx.Err() != nil:
		return nil, mscclgo.FromContext(ctx, op, "it was not begun").At(rank, int(peer.rank))
	case peer.group != e.about.group:
		return nil, fail(mscclgo.ErrInvalid, "the peer is of group %x, this rank of group %x", peer.group, e.about.group)
	case peer.host != e.about.host:
		return nil, fail(mscclgo.ErrUnsupported, "the peer is on host %q, this rank on host %q", peer.host, e.about.host)
	}
	ask := request{from: e.about.rank, to: peer.rank, endpoint: peer.id}
	var c *conn
	var refused error
	err = fdpass.Connect(ctx, e.t.key, peer.socket, ask.encode(), func(a fdpass.Answer, sock *net.UnixConn) error {
		if a.File == nil {
			sock.Close()
			refused = fail(mscclgo.ErrRemote, "it has no ring for this rank: %s", a.Body)
			return refused
		}
		r, err := mapRing(e.t.rank.Registry.Device(), a.File)
		if err != nil {
			sock.Close()
			return err
		}
		c, err = newConn(e.t, &peer, sock, r)
		return err
	})
	switch {
	case err == nil:
		return c, nil
	case err == refused:
		return nil, err
	}
	return nil, e.t.rank.Wrap(mscclgo.ErrSystem, op, int(peer.rank), err)
}

// Close ends the endpoint: peers cannot connect to it any more. It is safe to call twice.
func (e *endpoint) Close() error {
	e.closed.Store(true)
	e.t.rank.Mu.Lock()
	defer e.t.rank.Mu.Unlock()
	delete(e.t.endpoints, e.about.id)
	return nil
}
