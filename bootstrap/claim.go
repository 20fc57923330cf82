package bootstrap

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// protocolVersion is the version of claims and frames.
const protocolVersion = 7

// A role is the purpose of a connection.
type role uint8

const (
	roleJoin role = 1 // a rank joins at the rendezvous
	rolePeer role = 2 // two ranks of a complete group
	// a process comes to an elastic rendezvous; it has no number
	roleMember role = 3
)

// toRendezvous stands for the acceptor's rank where that is the rendezvous.
const toRendezvous = watch.Rendezvous

// A claim says who dials whom, and for which purpose.
type claim struct {
	role     role
	from, to uint32
}

const claimSize = 1 + 4 + 4

var claimCodec = wire.For[claim]()

func (c claim) encode() []byte { return claimCodec.Marshal(&c) }

// decodeClaim returns the rank that dials this end, unless it claims another purpose or another end.
func decodeClaim(b []byte, here role, to uint32) (from int, err error) {
	c, err := claimCodec.Unmarshal(b)
	if err == nil && (c.role != here || c.to != to) {
		err = fmt.Errorf("it claims to be %v, in role %d", c, c.role)
	}
	return int(c.from), err
}

func (c claim) String() string {
	if c.to == toRendezvous {
		return fmt.Sprintf("rank %d to the rendezvous", c.from)
	}
	return fmt.Sprintf("rank %d to rank %d", c.from, c.to)
}

// member returns what proves membership of the options' group.
func (o Options) member() *handshake.Member {
	if o.TLS {
		return o.ID.member(handshake.TLS)
	}
	return o.ID.member(handshake.Clear)
}

// member returns what proves membership of the id's group.
func (id UniqueID) member(mode handshake.Mode) *handshake.Member {
	return handshake.New(handshake.Options{
		Group: id.group, Secret: id.secret(), Purpose: "bootstrap",
		Version: protocolVersion, ClaimSize: claimSize, Mode: mode,
	})
}
