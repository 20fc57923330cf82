package ethernet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// endpoint is one rank's half of connections. It can connect to any number of
// peers, and accepts until it or its transport is closed.
type endpoint struct {
	t     *Transport
	about description

	mu      sync.Mutex
	arrived sync.Cond
	waiting []delivery             // dialled by peers, oldest first
	ended   map[[idSize]byte]error // why the newest connection of a peer's endpoint ended before Connect has returned it
	closed  bool
}

var _ connection.Endpoint = (*endpoint)(nil)

// delivery is a connection that a peer's endpoint has dialled.
type delivery struct {
	peer, connection [idSize]byte
	conn             *conn
	err              error // why there is none
}

// formatVersion is the version of an endpoint's bytes.
const formatVersion = 2

var formatKind = [4]byte{'M', 'G', 'C', 'E'}

// description is the content of the bytes of an endpoint.
type description struct {
	group     [16]byte
	rank      uint32
	transport [idSize]byte
	id        [idSize]byte
	machine   [idSize]byte // of ranks that reach each other by loopback; 0: unknown
	tls       bool
	addrs     []string `wire:"255,64"` // each with its port and zone
}

var descriptions = wire.For[description]()

func (d *description) encode() []byte { return descriptions.Seal(formatKind, formatVersion, d) }

func decode(data []byte) (description, error) {
	d, err := descriptions.Open(formatKind, formatVersion, data)
	switch {
	case err != nil:
	case len(d.addrs) == 0 || len(d.addrs) > maxAddresses:
		err = fmt.Errorf("%d addresses", len(d.addrs))
	case d.rank > math.MaxInt32:
		err = fmt.Errorf("rank %d is out of range", d.rank)
	}
	for _, a := range d.addrs {
		if host, _, bad := net.SplitHostPort(a); err == nil && (bad != nil || net.ParseIP(host) == nil) {
			err = fmt.Errorf("%q is not an address", a)
		}
	}
	return d, err
}

// NewEndpoint returns an endpoint, which peers can dial from now on at the addresses
// that the rank has by then.
//
// Errors: ErrInvalid when the transport is closed.
func (t *Transport) NewEndpoint() (connection.Endpoint, error) {
	const op = "ethernet: new endpoint"
	addrs, err := t.listen()
	if err != nil {
		return nil, t.rank.Wrap(mscclgo.ErrSystem, op, mscclgo.NoRank, err)
	}
	e := &endpoint{t: t, about: description{
		group: t.rank.Registry.Group(), rank: uint32(t.rank.Registry.Rank()), transport: t.rank.Instance, machine: t.machine, tls: t.opts.TLS, addrs: addrs,
	}}
	rand.Read(e.about.id[:])
	e.arrived.L = &e.mu
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	if t.rank.Closed {
		return nil, t.rank.Invalid(op, "the transport is closed")
	}
	t.endpoints[e.about.id] = e
	return e, nil
}

// MarshalBinary returns the bytes that the peer's Connect takes: numbers
// and addresses. They are no secret.
func (e *endpoint) MarshalBinary() ([]byte, error) { return e.about.encode(), nil }

// Connect returns a connection to the rank whose endpoint's bytes remote are, which
// may be this rank and this endpoint. The lower rank dials and does not wait for the
// peer's Connect. The higher rank waits until it is dialled.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of another
// version or group, or of a rank with another value of Options.TLS, and once the endpoint
// or its transport is closed; ErrUnsupported when the rank that is dialled is on another
// host and has loopback addresses only; ErrRemote when the peer answers at none of its addresses, or has dialled and
// closed the connection since;
// ErrTimeout and ErrAborted when ctx ends first; ErrAborted when the endpoint or the
// transport is closed meanwhile; ErrSystem when there is no pinned memory or no descriptor left.
func (e *endpoint) Connect(ctx context.Context, remote []byte) (*connection.Connection, error) {
	c, err := e.connect(ctx, remote)
	if err != nil {
		return nil, err
	}
	return connection.New(e.t.rank.Registry, c.Peer, registeredmem.Ethernet, c)
}

// connect makes the driver of a connection.
func (e *endpoint) connect(ctx context.Context, remote []byte) (*conn, error) {
	const op = "ethernet: connect"
	rank := e.t.rank.Registry.Rank()
	peer, err := decode(remote)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bytes do not describe an endpoint: %w", err).At(rank, mscclgo.NoRank)
	}
	fail := func(kind mscclgo.Kind, format string, args ...any) error {
		return mscclgo.Errorf(kind, op, format, args...).At(rank, int(peer.rank))
	}
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	switch {
	case closed:
		return nil, fail(mscclgo.ErrInvalid, "the endpoint is closed")
	case e.t.rank.Ctx.Err() != nil:
		return nil, fail(mscclgo.ErrInvalid, "the transport is closed")
	case ctx.Err() != nil:
		return nil, mscclgo.FromContext(ctx, op, "it was not begun").At(rank, int(peer.rank))
	case peer.group != e.about.group:
		return nil, fail(mscclgo.ErrInvalid, "the peer is of group %x, this rank of group %x", peer.group, e.about.group)
	case peer.tls != e.about.tls:
		return nil, fail(mscclgo.ErrInvalid, "only one of the two has Options.TLS set; all ranks need the same value")
	}
	dialled := &e.about
	if e.dials(&peer) {
		dialled = &peer
	}
	if e.about.apart(&peer) {
		addrs := routable(dialled.addrs)
		if len(addrs) == 0 {
			return nil, fail(mscclgo.ErrUnsupported, "rank %d has only the loopback addresses %v, and the two ranks are on different hosts: "+
				"it found no other interface that is up and has an address; set %s there to an interface or a subnet", dialled.rank, dialled.addrs, EnvInterface)
		}
		if dialled == &peer {
			peer.addrs = addrs
		}
	}
	var c *conn
	if dialled == &peer {
		c, err = e.dial(ctx, &peer)
	} else if c, err = e.take(ctx, peer.id, nil); err == nil && c.Peer != int(peer.rank) {
		err = errors.Join(fmt.Errorf("the connection was dialled by rank %d", c.Peer), c.Close())
	}
	if until, ok := ctx.Deadline(); err != nil && ok && !time.Now().Before(until) {
		<-ctx.Done() // sockets, which have the same deadline, may be first
	}
	switch {
	case err == nil:
		c.PeerInstance = peer.transport
		return c, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		text := "the peer at %v did not connect in time"
		if dialled == &peer {
			text = "the peer at %v did not answer in time: a firewall may drop what this rank sends"
		}
		return nil, mscclgo.FromContext(ctx, op, fmt.Sprintf(text, peer.addrs)).At(rank, int(peer.rank))
	case ctx.Err() != nil:
		return nil, mscclgo.FromContext(ctx, op, fmt.Sprintf("it was given up before the peer at %v had connected", peer.addrs)).At(rank, int(peer.rank))
	}
	kind := mscclgo.ErrRemote
	if handshake.Shortage(err) {
		kind = mscclgo.ErrSystem
	}
	return nil, e.t.rank.Wrap(kind, op, int(peer.rank), err)
}

// apart reports whether two ranks are known to be on different machines, or in
// different network namespaces of one.
func (d *description) apart(o *description) bool {
	unknown := [idSize]byte{}
	return d.machine != unknown && o.machine != unknown && d.machine != o.machine
}

// dials reports whether this end dials, rather than the peer's.
func (e *endpoint) dials(peer *description) bool {
	if e.about.rank != peer.rank {
		return e.about.rank < peer.rank
	}
	return bytes.Compare(e.about.id[:], peer.id[:]) <= 0
}

// dialRounds is how often all addresses of a peer are tried: a flood of strangers can
// push a handshake out.
const dialRounds = 2

// dial opens all sockets of a connection.
func (e *endpoint) dial(ctx context.Context, peer *description) (*conn, error) {
	c := claim{
		from: e.about.rank, to: peer.rank, dialer: e.about.id, acceptor: peer.id, sockets: uint8(1 + e.t.opts.Sockets),
	}
	rand.Read(c.connection[:])
	sockets := make([]net.Conn, c.sockets)
	drop := func(err error) error {
		e.t.abandon(int(peer.rank), sockets)
		return err
	}
	addrs := peer.addrs
	for i := range sockets {
		c.socket = uint8(i)
		var errs []error
		for try := 0; sockets[i] == nil; try++ {
			addr := addrs[try%len(addrs)]
			nc, err := e.t.member.Dial(ctx, addr, c.encode())
			if err == nil {
				sockets[i], addrs = nc, []string{addr} // the others use the same address
				break
			}
			if !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) { // of the round before
				errs = append(errs, err)
			}
			if try+1 == dialRounds*len(addrs) || ctx.Err() != nil {
				return nil, drop(errors.Join(errs...))
			}
		}
	}
	made, err := newConn(e.t, int(peer.rank), sockets)
	if err != nil {
		return nil, err
	}
	if peer.id == e.about.id {
		// No other Connect returns the other half, so this connection owns it.
		other, err := e.take(ctx, peer.id, &c.connection)
		if err != nil {
			return nil, errors.Join(err, made.Close())
		}
		made.other = other
	}
	return made, nil
}

// Close stops accepting, and closes the connections that peers have dialled, or are dialling, and that
// Connect has not returned. It is safe to call twice.
func (e *endpoint) Close() error {
	e.t.rank.Mu.Lock()
	delete(e.t.endpoints, e.about.id)
	var dialling []*arrival
	for number, a := range e.t.arriving {
		if a.claim.acceptor == e.about.id {
			dialling = append(dialling, a)
			delete(e.t.arriving, number)
		}
	}
	e.t.rank.Mu.Unlock()
	for _, a := range dialling {
		a.drop()
	}
	e.mu.Lock()
	unclaimed := e.waiting
	e.waiting, e.closed = nil, true
	e.arrived.Broadcast()
	e.mu.Unlock()
	var errs []error
	for _, d := range unclaimed {
		if d.err == nil {
			errs = append(errs, d.conn.Close())
		}
	}
	return errors.Join(errs...)
}

// deliver adds a connection that a peer has dialled, and reports false if too many
// wait or the endpoint is closed. A nil endpoint counts as closed.
func (e *endpoint) deliver(d delivery) bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.waiting) >= maxUnclaimed {
		return false
	}
	e.waiting = append(e.waiting, d)
	e.arrived.Broadcast()
	if d.err == nil {
		context.AfterFunc(d.conn.Ctx, func() { e.drop(d.conn) })
	}
	return true
}

// dialledAgain notes that a peer's endpoint dials.
func (e *endpoint) dialledAgain(peer [idSize]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ended, peer)
}

// drop closes a connection that has ended, unless Connect has returned it: nobody else
// would free its staging memory. Connect returns the reason, if the peer does not dial again.
func (e *endpoint) drop(c *conn) {
	c.Mu.Lock()
	why := c.Failure()
	c.Mu.Unlock()
	e.mu.Lock()
	i := slices.IndexFunc(e.waiting, func(d delivery) bool { return d.conn == c })
	if i < 0 {
		e.mu.Unlock()
		return
	}
	peer := e.waiting[i].peer
	e.waiting = slices.Delete(e.waiting, i, i+1)
	if another := func(d delivery) bool { return d.peer == peer }; len(e.ended) < maxUnclaimed && !slices.ContainsFunc(e.waiting, another) {
		if e.ended == nil {
			e.ended = map[[idSize]byte]error{}
		}
		e.ended[peer] = why
		e.arrived.Broadcast()
	}
	e.mu.Unlock()
	e.t.rank.Log.Info("ethernet: a connection ended before this rank's Connect", "peer", c.Peer, "why", why, "error", c.Close())
}

// take waits for a connection that a peer's endpoint has dialled: the oldest, or the
// one with that number.
func (e *endpoint) take(ctx context.Context, peer [idSize]byte, number *[idSize]byte) (*conn, error) {
	wake := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.arrived.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	defer context.AfterFunc(e.t.rank.Ctx, wake)()
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for i, d := range e.waiting {
			if d.peer == peer && (number == nil || d.connection == *number) {
				e.waiting = slices.Delete(e.waiting, i, i+1)
				return d.conn, d.err
			}
		}
		ended := e.ended[peer]
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case ended != nil && !e.closed && e.t.rank.Ctx.Err() == nil:
			delete(e.ended, peer)
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, "ethernet: wait for the peer to dial", "it has dialled, and the connection ended before this rank's Connect: %w", ended)
		case e.t.rank.Ctx.Err() != nil:
			return nil, mscclgo.Errorf(mscclgo.ErrAborted, "ethernet: wait for the peer to dial", "the transport was closed")
		case e.closed:
			return nil, mscclgo.Errorf(mscclgo.ErrAborted, "ethernet: wait for the peer to dial", "the endpoint was closed")
		case e.t.acceptor.Short() != nil: // it would wait in vain, and the peer too
			return nil, mscclgo.Errorf(mscclgo.ErrSystem, "ethernet: wait for the peer to dial", "this rank cannot accept a connection: %w", e.t.acceptor.Short())
		}
		e.arrived.Wait()
	}
}
