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
	rank       int      // in that
}

func (m comeMessage) encode() []byte {
	var w wire.Writer
	w.Raw(m.process[:])
	w.U64(m.generation)
	w.U32(uint32(int32(m.rank)))
	return w.Bytes()
}

func decodeCome(b []byte) (comeMessage, error) {
	r := wire.NewReader(b)
	var m comeMessage
	copy(m.process[:], r.Raw(len(m.process)))
	m.generation, m.rank = r.U64(), int(int32(r.U32()))
	if err := r.End(); err != nil {
		return m, fmt.Errorf("malformed message of a process that comes: %w", err)
	}
	if m.generation>>63 != 0 || m.rank < mscclgo.NoRank || m.rank >= MaxSize || m.generation > 0 && m.rank < 0 {
		return m, fmt.Errorf("malformed message of a process that comes: it was rank %d of generation %d", m.rank, m.generation)
	}
	return m, nil
}

// An assignment is a process's place in a generation, and where that meets.
type assignment struct {
	generation uint64
	rank, size int
	group      [groupSize]byte
	port       uint16 // at the hosts of the Elastic
}

func (a assignment) encode() []byte {
	var w wire.Writer
	w.U64(a.generation)
	w.U32(uint32(a.rank))
	w.U32(uint32(a.size))
	w.Raw(a.group[:])
	w.U16(a.port)
	return w.Bytes()
}

func decodeAssignment(b []byte) (assignment, error) {
	r := wire.NewReader(b)
	a := assignment{generation: r.U64()}
	rank, size := r.U32(), r.U32()
	copy(a.group[:], r.Raw(groupSize))
	a.port = r.U16()
	if err := r.End(); err != nil {
		return a, fmt.Errorf("malformed assignment: %w", err)
	}
	if size > MaxSize || rank >= size || a.generation == 0 || a.port == 0 {
		return a, fmt.Errorf("malformed assignment: rank %d of %d in generation %d at port %d", rank, size, a.generation, a.port)
	}
	a.rank, a.size = int(rank), int(size)
	return a, nil
}

// generation returns the id of a generation of an Elastic. Its secret does not travel.
func (id UniqueID) generation(a assignment) UniqueID {
	secret := id.secret()
	return UniqueID{hosts: id.hosts, port: a.port, opened: true, group: a.group, secret: hide(handshake.Derive(secret[:], "generation "+string(a.group[:])))}
}
