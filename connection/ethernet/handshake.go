package ethernet

import (
	"fmt"
	"math"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// protocolVersion is the version of claims and of what follows the handshake.
const protocolVersion = 4

// idSize is the size of the random numbers of endpoints and connections, in bytes.
const idSize = message.IDSize

// A claim identifies a socket that a peer dials.
type claim struct {
	from, to         uint32       // ranks
	dialer, acceptor [idSize]byte // endpoints
	connection       [idSize]byte
	socket, sockets  uint8 // 0 is the control socket; sockets counts it
}

const claimSize = 4 + 4 + 3*idSize + 1 + 1

func (c *claim) encode() []byte {
	w := wire.NewWriter(claimSize)
	w.U32(c.from)
	w.U32(c.to)
	w.Raw(c.dialer[:])
	w.Raw(c.acceptor[:])
	w.Raw(c.connection[:])
	w.U8(c.socket)
	w.U8(c.sockets)
	return w.Bytes()
}

func decodeClaim(b []byte) (claim, error) {
	r := wire.NewReader(b)
	c := claim{from: r.U32(), to: r.U32()}
	copy(c.dialer[:], r.Raw(idSize))
	copy(c.acceptor[:], r.Raw(idSize))
	copy(c.connection[:], r.Raw(idSize))
	c.socket, c.sockets = r.U8(), r.U8()
	switch {
	case c.from > math.MaxInt32 || c.to > math.MaxInt32:
		r.Fail(fmt.Errorf("%d and %d are not both ranks", c.from, c.to))
	case c.sockets < 2 || c.sockets > MaxSockets+1 || c.socket >= c.sockets:
		r.Fail(fmt.Errorf("it is socket %d of %d", c.socket, c.sockets))
	}
	return c, r.End()
}

// newMember returns what proves that a rank is of the group.
func newMember(group [16]byte, o *Options, patience time.Duration) *handshake.Member {
	h := handshake.Options{
		Group: group, Secret: o.Secret, Purpose: "ethernet", Version: protocolVersion,
		ClaimSize: claimSize, Patience: patience, Silence: o.Timeout,
	}
	if o.TLS {
		h.Mode = handshake.TLS
	}
	return handshake.New(h)
}
