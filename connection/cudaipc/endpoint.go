package cudaipc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// endpoint is one rank's half of connections. It can connect to any number of
// peers.
type endpoint struct {
	reg    *registeredmem.Registry
	about  description
	closed atomic.Bool
}

// formatVersion is the version of an endpoint's bytes.
const formatVersion = 1

var formatKind = [4]byte{'M', 'G', 'C', 'I'}

// description is the content of the bytes of an endpoint.
type description struct {
	group  [16]byte
	rank   uint32
	host   string   `wire:"255"` // of hostid.MaxSize at most
	device [16]byte // UUID
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
	}
	return d, err
}

// NewEndpoint returns an endpoint for the rank and device of reg, on whose
// memories the connections made from it will work.
//
// Errors: ErrInvalid when reg is nil.
func NewEndpoint(reg *registeredmem.Registry) (connection.Endpoint, error) {
	if reg == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "cudaipc: new endpoint", "the registry is nil")
	}
	return &endpoint{reg: reg, about: description{
		group: reg.Group(), rank: uint32(reg.Rank()), host: reg.Host(), device: reg.Device().Info().UUID,
	}}, nil
}

// MarshalBinary returns the bytes that the peer's Connect takes. They
// are no secret.
func (e *endpoint) MarshalBinary() ([]byte, error) { return e.about.encode(), nil }

// Connect returns a connection to the rank whose endpoint's bytes remote are,
// which may be this rank itself. It does not wait for the peer: ctx only keeps
// it from starting.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of
// another version or group, and once the endpoint is closed; ErrUnsupported when the peer's memory cannot be
// mapped here, with the reason; ErrSystem when the device has no stream left.
func (e *endpoint) Connect(ctx context.Context, remote []byte) (*connection.Connection, error) {
	const op = "cudaipc: connect"
	rank := e.reg.Rank()
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
	device := e.reg.Device()
	switch {
	case e.closed.Load():
		return nil, fail(mscclgo.ErrInvalid, "the endpoint is closed")
	case peer.group != e.about.group:
		return nil, fail(mscclgo.ErrInvalid, "the peer is of group %x, this rank of group %x", peer.group, e.about.group)
	case peer.host != e.about.host:
		return nil, fail(mscclgo.ErrUnsupported, "the peer is on host %q, this rank on host %q", peer.host, e.about.host)
	case !device.CanAccess(peer.device):
		return nil, fail(mscclgo.ErrUnsupported, "%v has no access to the memory of the peer's device %x", device, peer.device)
	}
	d, err := newDriver(device, e.reg.Timeout(), device.Info().StreamMemoryOps)
	if err != nil {
		return nil, fail(mscclgo.KindOf(err), "%w", err)
	}
	return connection.New(e.reg, int(peer.rank), registeredmem.CudaIPC, d)
}

// Close has later calls of Connect return ErrInvalid. The endpoint holds nothing. It is
// safe to call twice.
func (e *endpoint) Close() error {
	e.closed.Store(true)
	return nil
}
