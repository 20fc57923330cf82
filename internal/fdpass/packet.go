package fdpass

import (
	"errors"
	"time"

	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// MaxBody is the most bytes that the body of a request or an answer has.
const MaxBody = 4096

const (
	protocolVersion = 2

	maxRequest = 4 + MaxBody
	maxAnswer  = 1 + 8 + MaxBody
)

// Key is what the members of a group share.
type Key struct {
	Group  [16]byte // the group's number, not a secret
	Secret [32]byte
}

// member returns what proves membership at the socket of a name. patience bounds
// the handshake; 0 is the default.
func (k Key) member(name string, patience time.Duration) *handshake.Member {
	return handshake.New(handshake.Options{
		Group: k.Group, Secret: k.Secret, Purpose: "fdpass " + name, Version: protocolVersion, Patience: patience,
	})
}

func encodeRequest(body []byte) []byte {
	w := wire.NewWriter(maxRequest)
	w.Blob(body) // its size, because an empty packet is the end of a connection
	return w.Bytes()
}

func decodeRequest(packet []byte) ([]byte, error) {
	r := wire.NewReader(packet)
	body := r.Blob(MaxBody)
	return body, r.End()
}

// content is what is in an answer's packet: how many files come with it, 0 or 1,
// and the key of a Go value, or 0.
type content struct {
	files uint8
	value uint64
	body  []byte
}

func (c content) encode() []byte {
	w := wire.NewWriter(maxAnswer)
	w.U8(c.files)
	w.U64(c.value)
	w.Raw(c.body)
	return w.Bytes()
}

func decodeAnswer(packet []byte) (content, error) {
	r := wire.NewReader(packet)
	c := content{files: r.U8(), value: r.U64(), body: r.Raw(r.Len())}
	if c.files > 1 || len(c.body) > MaxBody {
		r.Fail(errors.New("malformed answer"))
	}
	return c, r.End()
}
