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

var claims = wire.For[claim]()

func (c *claim) encode() []byte { return claims.Marshal(c) }

func decodeClaim(b []byte) (claim, error) {
	c, err := claims.Unmarshal(b)
	switch {
	case err != nil:
	case c.from > math.MaxInt32 || c.to > math.MaxInt32:
		err = fmt.Errorf("%d and %d are not both ranks", c.from, c.to)
	case c.sockets < 2 || c.sockets > maxSockets+1 || c.socket >= c.sockets:
		err = fmt.Errorf("it is socket %d of %d", c.socket, c.sockets)
	}
	return c, err
}

// newMember returns what proves that a rank is of the group.
func newMember(group [16]byte, o *Options, silence, patience time.Duration) *handshake.Member {
	h := handshake.Options{
		Group: group, Secret: o.Secret, Purpose: "ethernet", Version: protocolVersion,
		ClaimSize: claimSize, Patience: patience, Silence: silence,
	}
	if o.TLS {
		h.Mode = handshake.TLS
	}
	return handshake.New(h)
}
