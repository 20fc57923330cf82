package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// A message is a packet on the socket, of messageSize bytes, little-endian:
//
//	version (1), kind (1), reason (1), refused (1), memory (4), offset (8), length (8), number (8)
const (
	messageSize    = 32
	messageVersion = 1
)

type messageKind uint8

const (
	messageWake   messageKind = 1 // one who sleeps looks at the ring; the sender's first says that it has it
	messageBye    messageKind = 2 // the end closes in good order
	messageRefuse messageKind = 3 // the receiver refuses an entry, and will hang up
	messageGone   messageKind = 4 // the receiver has closed a memory
	messageFailed messageKind = 5 // the end's device or system failed, and it will hang up
)

// note is what the ends tell each other outside the ring. All fields but kind are 0 in a
// wake, a bye and news of a failure, and all but kind and memory in news of a memory. A refusal repeats the
// entry, with its number.
type note struct {
	kind    messageKind
	reason  target.Reason
	refused message.Kind
	memory  uint32
	offset  uint64
	length  uint64
	number  uint64
}

func (m *note) encode() []byte {
	b := make([]byte, messageSize)
	b[0], b[1], b[2], b[3] = messageVersion, uint8(m.kind), uint8(m.reason), uint8(m.refused)
	binary.LittleEndian.PutUint32(b[4:], m.memory)
	binary.LittleEndian.PutUint64(b[8:], m.offset)
	binary.LittleEndian.PutUint64(b[16:], m.length)
	binary.LittleEndian.PutUint64(b[24:], m.number)
	return b
}

func decodeMessage(b []byte) (note, error) {
	if len(b) != messageSize {
		return note{}, fmt.Errorf("a packet of %d bytes, it has %d", len(b), messageSize)
	}
	if b[0] != messageVersion {
		return note{}, fmt.Errorf("a packet of version %d, this build reads version %d", b[0], messageVersion)
	}
	m := note{
		kind: messageKind(b[1]), reason: target.Reason(b[2]), refused: message.Kind(b[3]),
		memory: binary.LittleEndian.Uint32(b[4:]),
		offset: binary.LittleEndian.Uint64(b[8:]),
		length: binary.LittleEndian.Uint64(b[16:]),
		number: binary.LittleEndian.Uint64(b[24:]),
	}
	rest := uint64(b[2]|b[3]) | m.offset | m.length | m.number
	switch {
	case m.kind < messageWake || m.kind > messageFailed:
		return m, fmt.Errorf("a packet of unknown kind %d", m.kind)
	case m.kind == messageRefuse && !m.reason.Valid():
		return m, fmt.Errorf("a refusal with reason %d", m.reason)
	case m.kind == messageGone && rest != 0, (m.kind < messageRefuse || m.kind == messageFailed) && rest|uint64(m.memory) != 0:
		return m, errors.New("a packet with fields set that must be zero")
	}
	return m, nil
}
