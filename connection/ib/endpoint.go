package ib

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// endpoint is one rank's half of a connection: queue pairs that have no peer yet. It
// can connect once.
type endpoint struct {
	t       *Transport
	about   description // without the queues
	queues  []*queue
	receive *verbs.CQ // for messages, which arrive on the first queue pair
	scratch *scratch

	closeOnce sync.Once
	closeErr  error

	mu   sync.Mutex
	used bool // connected or closed
}

// queue is a queue pair with the ledger of its requests.
type queue struct {
	*ledger     // nil before it is connected
	at      int // among the connection's
	nic     *nic
	cq      *verbs.CQ
	qp      *verbs.QP
	about   address
	peer    address
	max     uint64 // bytes of one request
}

// NewEndpoint makes the queue pairs for one connection.
//
// Errors: ErrInvalid once the transport is closed, ErrSystem when the devices
// have no queue pair left.
func (t *Transport) NewEndpoint() (connection.Endpoint, error) {
	const op = "ib: new endpoint"
	if !t.begin() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed").At(t.reg.Rank(), mscclgo.NoRank)
	}
	defer t.changing.Done()
	e := &endpoint{t: t}
	fail := func(err error) (connection.Endpoint, error) {
		return nil, wrap(op, errors.Join(err, e.release()), t.reg.Rank(), mscclgo.NoRank)
	}
	first := t.nics[0]
	var err error
	if e.scratch, err = newScratch(t.nics[:min(len(t.nics), t.o.QueuePairs)], uint64(t.o.Depth)); err != nil {
		return fail(err)
	}
	if e.receive, err = first.ctx.NewCQ(messages, first.channel); err != nil {
		return fail(err)
	}
	for i := range t.o.QueuePairs {
		n := t.nics[i%len(t.nics)]
		q := &queue{nic: n, max: uint64(n.state.MaxMessage)}
		e.queues = append(e.queues, q)
		if q.cq, err = n.ctx.NewCQ(t.o.Depth, nil); err != nil {
			return fail(err)
		}
		receive, receives := q.cq, 1
		if i == 0 {
			receive, receives = e.receive, messages
		}
		if q.qp, err = n.pd.NewQP(q.cq, receive, t.o.Depth, receives, n.port, n.allows()); err != nil {
			return fail(err)
		}
		q.about = address{
			nic: uint8(n.index), infiniBand: n.state.InfiniBand, mtu: n.mtu(), lid: n.state.LID, gid: n.gid,
			number: q.qp.Number(), psn: random24(), reads: uint8(min(n.attributes.PeerReads, maxReads)),
		}
	}
	e.about = description{
		group: t.reg.Group(), rank: uint32(t.reg.Rank()), registry: t.reg.Internal().Instance(), atomics: t.atomics(), inbox: e.scratch.in.RemoteKey(),
		anchor: t.anchor.mrs[0].RemoteKey(), anchorBase: uint32(t.anchor.base),
	}
	if err := t.keep(op, e); err != nil {
		return fail(err)
	}
	return e, nil
}

func random24() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint32(b[:]) & max24
}

// MarshalBinary returns the bytes that the peer's Connect takes. They
// are no secret.
func (e *endpoint) MarshalBinary() ([]byte, error) {
	d := e.about
	for _, q := range e.queues {
		d.queues = append(d.queues, q.about)
	}
	return d.encode(), nil
}

// atomics reports whether this rank uses atomics.
func (t *Transport) atomics() bool {
	for _, n := range t.nics {
		if !n.attributes.Atomics {
			return false
		}
	}
	return !t.o.NoAtomics
}

// Connect returns the connection to the rank whose endpoint's bytes remote are, which
// may be this rank itself. It does not wait for the peer: what is queued before the
// peer's Connect has returned may fail, so ranks tell each other first. The connection
// has as many queue pairs as both endpoints have.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of another
// version or group, for an endpoint that was used before, and once the transport is closed; ErrUnsupported when
// one side is on InfiniBand and the other on Ethernet; ErrSystem when the device has
// no route to the peer's address; ErrTimeout and ErrAborted when ctx has ended.
func (e *endpoint) Connect(ctx context.Context, remote []byte) (*connection.Connection, error) {
	c, err := e.connect(ctx, remote)
	if err != nil {
		return nil, err
	}
	return connection.New(e.t.reg, c.peer, registeredmem.InfiniBand, c)
}

// connect makes the driver of a connection.
func (e *endpoint) connect(ctx context.Context, remote []byte) (*conn, error) {
	const op = "ib: connect"
	t, rank := e.t, e.t.reg.Rank()
	if ctx.Err() != nil {
		return nil, mscclgo.FromContext(ctx, op, "it was not begun").At(rank, mscclgo.NoRank)
	}
	peer, err := decode(remote)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the bytes do not describe an endpoint: %w", err).At(rank, mscclgo.NoRank)
	}
	fail := func(kind mscclgo.Kind, format string, args ...any) error {
		return mscclgo.Errorf(kind, op, format, args...).At(rank, int(peer.rank))
	}
	if group := t.reg.Group(); peer.group != group {
		return nil, fail(mscclgo.ErrInvalid, "the peer is of group %x, this rank of group %x", peer.group, group)
	}
	count := min(len(e.queues), len(peer.queues))
	for i, q := range e.queues[:count] {
		if theirs := &peer.queues[i]; theirs.infiniBand != q.about.infiniBand {
			return nil, fail(mscclgo.ErrUnsupported, "%s and the peer's device %d are not both on InfiniBand or both on Ethernet", q.nic.name, theirs.nic)
		}
	}
	if !t.begin() {
		return nil, fail(mscclgo.ErrInvalid, "the transport is closed")
	}
	defer t.changing.Done()
	if !e.use() {
		return nil, fail(mscclgo.ErrInvalid, "the endpoint was connected or closed before")
	}
	t.forget(e)
	for i, q := range e.queues[:count] {
		q.peer = peer.queues[i]
	}
	c := newConn(e, count, peer)
	if err := c.start(); err != nil {
		return nil, wrap(op, errors.Join(err, c.release()), rank, int(peer.rank))
	}
	if err := t.keep(op, c); err != nil {
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

// use reports whether the endpoint was neither connected nor closed before.
func (e *endpoint) use() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh := !e.used
	e.used = true
	return fresh
}

// Close releases an endpoint that was not connected. It is safe to call twice.
func (e *endpoint) Close() error {
	e.closeOnce.Do(func() {
		if e.use() {
			e.closeErr = wrap("ib: close an endpoint", e.release(), e.t.reg.Rank(), mscclgo.NoRank)
			e.t.forget(e) // as for a connection
		}
	})
	return e.closeErr
}

// release releases the queue pairs and their memory.
func (e *endpoint) release() error {
	var errs []error
	for i := len(e.queues) - 1; i >= 0; i-- {
		q := e.queues[i]
		if q.qp != nil {
			errs = append(errs, q.qp.Close())
		}
		if q.cq != nil {
			errs = append(errs, q.cq.Close())
		}
	}
	if e.receive != nil {
		errs = append(errs, e.receive.Close())
	}
	if e.scratch != nil {
		errs = append(errs, e.scratch.close())
	}
	return errors.Join(errs...)
}

// maxReads is the most RDMA reads and atomics of a queue pair that are under way at a time.
// Each side takes no more from the other than its card can answer, and the other starts
// no more.
const maxReads = 16

// path returns the parameters of q's connection to its peer.
func (q *queue) path(o *Options) *verbs.Path {
	p := &verbs.Path{
		GID: q.peer.gid, PeerQP: q.peer.number, PSN: q.about.psn, PeerPSN: q.peer.psn, LID: q.peer.lid,
		MTU: min(q.about.mtu, q.peer.mtu), Port: uint8(q.nic.port), GIDIndex: uint8(q.nic.gidIndex),
		HopLimit: 64, TrafficClass: uint8(o.TrafficClass), ServiceLevel: uint8(o.ServiceLevel),
		Reads: min(uint8(min(q.nic.attributes.Reads, maxReads)), q.peer.reads), PeerReads: q.about.reads, Timeout: ackExponent(o.AckTimeout),
		Retries: uint8(o.Retries), RNRRetries: uint8(o.RNRRetries),
		RNRTimer: 1, // 10 µs: the peer's process takes messages as they arrive
	}
	// InfiniBand needs a global address where the upper half, the subnet, differs.
	p.Global = !q.about.infiniBand || [8]byte(q.about.gid[:8]) != [8]byte(q.peer.gid[:8])
	return p
}

// String returns the names of the queue pair and its peer, for messages.
func (q *queue) String() string {
	text := fmt.Sprintf("queue pair %d of %s to queue pair %d at GID %x", q.about.number, q.nic.name, q.peer.number, q.peer.gid)
	if q.nic.extra {
		text += fmt.Sprintf(" (%s serves besides the GPU's first device; if it does not reach the peer's, name one device, by %s)", q.nic.name, EnvDevice)
	}
	return text
}
