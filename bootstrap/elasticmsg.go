package bootstrap

import (
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// A comeMessage is what a process sends to an Elastic to be in the next generation.
type comeMessage struct {
	process    [16]byte // random
	generation uint64   // its last, or 0
	rank       int      `wire:"signed"` // in that
}

// An assignment is a process's place in a generation, and where that meets.
type assignment struct {
	generation uint64
	rank, size int
	group      [groupSize]byte
	port       uint16 // at the hosts of the Elastic
}

var (
	comeCodec       = wire.For[comeMessage]()
	assignmentCodec = wire.For[assignment]()
)

func (m comeMessage) encode() []byte { return comeCodec.Marshal(&m) }

func (a assignment) encode() []byte { return assignmentCodec.Marshal(&a) }

func decodeCome(b []byte) (comeMessage, error) {
	m, err := comeCodec.Unmarshal(b)
	if err == nil && (m.generation>>63 != 0 || m.rank < mscclgo.NoRank || m.rank >= MaxSize || m.generation > 0 && m.rank < 0) {
		err = fmt.Errorf("malformed message of a process that comes: it was rank %d of generation %d", m.rank, m.generation)
	}
	return m, err
}

func decodeAssignment(b []byte) (assignment, error) {
	a, err := assignmentCodec.Unmarshal(b)
	if err == nil && (a.size > MaxSize || a.rank >= a.size || a.generation == 0 || a.port == 0) {
		err = fmt.Errorf("malformed assignment: rank %d of %d in generation %d at port %d", a.rank, a.size, a.generation, a.port)
	}
	return a, err
}

// generation returns the id of a generation of an Elastic. Its secret does not travel.
func (id UniqueID) generation(a assignment) UniqueID {
	secret := id.secret()
	return UniqueID{hosts: id.hosts, port: a.port, opened: true, group: a.group, secret: hide(handshake.Derive(secret[:], "generation "+string(a.group[:])))}
}
