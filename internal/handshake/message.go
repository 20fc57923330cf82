package handshake

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// An Error is the failure of a handshake whose other end is not a member of this
// group that this build can talk to.
type Error string

func (e Error) Error() string { return string(e) }

const (
	ErrNoise    Error = "what arrived is not a handshake of this library"
	ErrVersion  Error = "the other side speaks another version of the protocol"
	ErrMode     Error = "one side uses TLS and the other does not"
	ErrStranger Error = "the other side does not know this group's secret"
	// ErrRejected is the dialer's view of ErrStranger.
	ErrRejected Error = "the other side hung up on this side's proof: it is of another group, has another secret, or is closing"
)

const (
	version = 2 // of these messages

	nonceSize = 32
	helloSize = 4 + 1 + 1 + 1 + nonceSize
	proofSize = 32
)

var magic = [4]byte{'M', 'G', 'H', 'S'}

// hello is the first message of either side.
type hello struct {
	magic    [4]byte
	version  uint8 // of the handshake
	protocol uint8 // version of what follows it
	tls      bool
	nonce    [nonceSize]byte
}

var helloCodec = wire.For[hello]()

func (h hello) encode() []byte {
	h.magic = magic
	return helloCodec.Marshal(&h)
}

func decodeHello(b []byte) (hello, error) {
	if len(b) >= len(magic) && [4]byte(b) != magic {
		return hello{}, ErrNoise
	}
	return helloCodec.Unmarshal(b)
}

// fits reports, as an error, in what the other side's hello differs from h.
func (h hello) fits(theirs hello) error {
	switch {
	case theirs.version != h.version:
		return fmt.Errorf("%w: handshake %d, this build %d", ErrVersion, theirs.version, h.version)
	case theirs.protocol != h.protocol:
		return fmt.Errorf("%w: %d, this build %d", ErrVersion, theirs.protocol, h.protocol)
	case theirs.tls != h.tls:
		return ErrMode
	}
	return nil
}

// A verdict is the acceptor's answer to a claim.
type verdict = byte

const (
	admitted verdict = 1
	refused  verdict = 2
)
