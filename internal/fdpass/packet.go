package fdpass

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// MaxBody is the most bytes that the body of a request or an answer has.
const MaxBody = 4096

const (
	version    = 1
	headSize   = 4 + 1
	nonceSize  = 32
	proofSize  = sha256.Size
	greetSize  = headSize + nonceSize
	maxRequest = headSize + nonceSize + proofSize + MaxBody
	maxAnswer  = headSize + proofSize + 1 + 8 + MaxBody
)

var magic = [4]byte{'M', 'G', 'F', 'D'}

// Key is what the members of a group share.
type Key struct {
	Group  [16]byte // the group's number, no secret
	Secret [32]byte
}

var (
	errStranger = errors.New("the other end does not know this group's secret")
	errNoise    = errors.New("what came is no packet of this library")
)

// conversation is what both ends know of one exchange.
type conversation struct {
	key      Key
	name     string // the socket's
	greeting []byte
	request  []byte
}

// proof gives the HMAC over the conversation and parts. All that goes in has a
// fixed size or its length before it.
func (c *conversation) proof(side string, parts ...[]byte) []byte {
	w := wire.NewWriter(256)
	w.String(side)
	w.Raw(c.key.Group[:])
	w.String(c.name)
	w.Blob(c.greeting)
	w.Blob(c.request)
	for _, p := range parts {
		w.Blob(p)
	}
	mac := hmac.New(sha256.New, c.key.Secret[:])
	mac.Write(w.Bytes())
	return mac.Sum(nil)
}

func head(w *wire.Writer) {
	w.Raw(magic[:])
	w.U8(version)
}

func checkHead(r *wire.Reader) {
	if m := r.Raw(len(magic)); m != nil && [4]byte(m) != magic {
		r.Fail(errNoise)
	}
	if v := r.U8(); r.Err() == nil && v != version {
		r.Fail(fmt.Errorf("the other end speaks version %d of the protocol, this build version %d", v, version))
	}
}

// greet makes the greeting.
func (c *conversation) greet() []byte {
	w := wire.NewWriter(greetSize)
	head(w)
	w.Raw(nonce())
	c.greeting = w.Bytes()
	return c.greeting
}

// greeted takes the greeting.
func (c *conversation) greeted(packet []byte) error {
	r := wire.NewReader(packet)
	checkHead(r)
	r.Raw(nonceSize)
	c.greeting = packet
	return r.End()
}

// ask makes the request.
func (c *conversation) ask(body []byte) []byte {
	w := wire.NewWriter(maxRequest)
	head(w)
	fresh := nonce()
	w.Raw(fresh)
	w.Raw(c.proof("request", fresh, body))
	w.Raw(body)
	c.request = w.Bytes()
	return c.request
}

// asked takes the request and gives its body.
func (c *conversation) asked(packet []byte) ([]byte, error) {
	r := wire.NewReader(packet)
	checkHead(r)
	fresh, proof, body := r.Raw(nonceSize), r.Raw(proofSize), r.Raw(r.Len())
	if err := r.End(); err != nil {
		return nil, err
	}
	if len(body) > MaxBody {
		return nil, errNoise
	}
	if !hmac.Equal(proof, c.proof("request", fresh, body)) {
		return nil, errStranger
	}
	c.request = packet
	return body, nil
}

// answered is the content of an answer: files says how many come with it, 0 or
// 1; value is the key of a Go value, or 0.
type answered struct {
	files uint8
	value uint64
	body  []byte
}

// encode makes the answer.
func (c *conversation) encode(a answered) []byte {
	rest := wire.NewWriter(maxAnswer)
	rest.U8(a.files)
	rest.U64(a.value)
	rest.Raw(a.body)
	w := wire.NewWriter(maxAnswer)
	head(w)
	w.Raw(c.proof("answer", rest.Bytes()))
	w.Raw(rest.Bytes())
	return w.Bytes()
}

// decode takes the answer.
func (c *conversation) decode(packet []byte) (answered, error) {
	r := wire.NewReader(packet)
	checkHead(r)
	proof := r.Raw(proofSize)
	rest := r.Raw(r.Len())
	if err := r.End(); err != nil {
		return answered{}, err
	}
	if !hmac.Equal(proof, c.proof("answer", rest)) {
		return answered{}, errStranger
	}
	r = wire.NewReader(rest)
	a := answered{files: r.U8(), value: r.U64(), body: r.Raw(r.Len())}
	if err := r.End(); err != nil {
		return answered{}, err
	}
	if a.files > 1 || len(a.body) > MaxBody {
		return answered{}, errNoise
	}
	return a, nil
}

func nonce() []byte {
	b := make([]byte, nonceSize)
	rand.Read(b)
	return b
}
