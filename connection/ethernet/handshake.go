package ethernet

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// The handshake of a socket, three messages of fixed size:
//
//	acceptor → dialer   greeting: magic, version, group, nonce
//	dialer → acceptor   claim: magic, version, ranks, endpoints, connection, socket, nonce, proof
//	acceptor → dialer   answer: verdict, proof
//
// A proof is HMAC-SHA256 (RFC 2104) under the secret over the prover's side, the
// TLS session's exported key where there is one (RFC 8446, 7.5), the greeting and
// the claim. The nonces, 32 random bytes of either side, make it worthless a second
// time. The dialer proves first, so that a stranger who dials learns no proof.
const (
	handshakeVersion = 1

	nonceSize = 32
	proofSize = sha256.Size

	greetingSize = 4 + 1 + 16 + nonceSize
	claimSize    = 4 + 1 + 4 + 4 + 3*idSize + 1 + 1 + nonceSize // without its proof
	answerSize   = 1 + proofSize
)

var handshakeMagic = [4]byte{'M', 'G', 'E', 'N'}

// idSize is that of the random numbers of endpoints and connections.
const idSize = 16

// A claim says which socket of which connection this is.
type claim struct {
	from, to         uint32       // ranks
	dialer, acceptor [idSize]byte // endpoints
	connection       [idSize]byte
	socket, sockets  uint8 // 0 is the control socket; sockets counts it
}

const (
	verdictJoined  = 1
	verdictRefused = 2
)

var (
	errOtherSecret = errors.New("the other side does not know the group's secret")
	errNotMscclgo  = errors.New("what came is no handshake of this library")
)

func encodeGreeting(group [16]byte, nonce [nonceSize]byte) []byte {
	w := wire.NewWriter(greetingSize)
	w.Raw(handshakeMagic[:])
	w.U8(handshakeVersion)
	w.Raw(group[:])
	w.Raw(nonce[:])
	return w.Bytes()
}

func decodeGreeting(b []byte) (group [16]byte, err error) {
	r := wire.NewReader(b)
	magicAndVersion(r)
	copy(group[:], r.Raw(len(group)))
	r.Raw(nonceSize)
	return group, r.End()
}

func (c *claim) encode(nonce [nonceSize]byte) []byte {
	w := wire.NewWriter(claimSize + proofSize)
	w.Raw(handshakeMagic[:])
	w.U8(handshakeVersion)
	w.U32(c.from)
	w.U32(c.to)
	w.Raw(c.dialer[:])
	w.Raw(c.acceptor[:])
	w.Raw(c.connection[:])
	w.U8(c.socket)
	w.U8(c.sockets)
	w.Raw(nonce[:])
	return w.Bytes()
}

func decodeClaim(b []byte) (claim, error) {
	r := wire.NewReader(b)
	magicAndVersion(r)
	c := claim{from: r.U32(), to: r.U32()}
	copy(c.dialer[:], r.Raw(idSize))
	copy(c.acceptor[:], r.Raw(idSize))
	copy(c.connection[:], r.Raw(idSize))
	c.socket, c.sockets = r.U8(), r.U8()
	r.Raw(nonceSize)
	switch {
	case c.from > math.MaxInt32 || c.to > math.MaxInt32:
		r.Fail(fmt.Errorf("%d and %d are no ranks", c.from, c.to))
	case c.sockets < 2 || c.sockets > MaxSockets+1 || c.socket >= c.sockets:
		r.Fail(fmt.Errorf("it is socket %d of %d", c.socket, c.sockets))
	}
	return c, r.End()
}

func magicAndVersion(r *wire.Reader) {
	if m := r.Raw(4); m != nil && [4]byte(m) != handshakeMagic {
		r.Fail(errNotMscclgo)
	}
	if v := r.U8(); r.Err() == nil && v != handshakeVersion {
		r.Fail(fmt.Errorf("the other side speaks version %d of the handshake, this build %d", v, handshakeVersion))
	}
}

// prover makes the proofs of one socket.
type prover struct {
	secret  [32]byte
	binding []byte // to the TLS session; fixed size, or empty
}

func (p prover) proof(side string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, p.secret[:])
	io.WriteString(mac, "mscclgo ethernet "+side)
	mac.Write([]byte{uint8(len(p.binding))})
	mac.Write(p.binding)
	for _, part := range parts {
		mac.Write(part) // each has a fixed size
	}
	return mac.Sum(nil)
}

// dialHandshake proves to the acceptor of nc that this side is of the group, and
// has it prove the same. The caller has set a deadline.
func dialHandshake(nc net.Conn, p prover, group [16]byte, c *claim) error {
	greeting := make([]byte, greetingSize)
	if _, err := io.ReadFull(nc, greeting); err != nil {
		return fmt.Errorf("awaiting the greeting: %w", err)
	}
	theirs, err := decodeGreeting(greeting)
	if err != nil {
		return err
	}
	if theirs != group {
		return fmt.Errorf("group %x answers there, this is group %x", theirs[:4], group[:4])
	}
	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	mine := c.encode(nonce)
	if _, err := nc.Write(append(mine, p.proof("dialer", greeting, mine)...)); err != nil {
		return fmt.Errorf("sending the claim: %w", err)
	}
	answer := make([]byte, answerSize)
	if _, err := io.ReadFull(nc, answer); err != nil {
		return fmt.Errorf("awaiting the answer: %w", err)
	}
	// An acceptor without the secret cannot even refuse credibly.
	if !hmac.Equal(answer[1:], p.proof("acceptor", greeting, mine, answer[:1])) {
		return errOtherSecret
	}
	if answer[0] != verdictJoined {
		return errors.New("the other side refused: its endpoint is not there any more, or other sockets are missing")
	}
	return nil
}

// acceptHandshake has the dialer of nc prove that it is of the group. admit says
// whether the claim fits, before the dialer hears that it does. The caller has set
// a deadline.
func acceptHandshake(nc net.Conn, p prover, group [16]byte, admit func(claim) error) (claim, error) {
	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	greeting := encodeGreeting(group, nonce)
	if _, err := nc.Write(greeting); err != nil {
		return claim{}, fmt.Errorf("sending the greeting: %w", err)
	}
	theirs := make([]byte, claimSize+proofSize)
	// Noise is refused at its first bytes, not when it has filled a claim.
	if _, err := io.ReadFull(nc, theirs[:5]); err != nil {
		return claim{}, fmt.Errorf("awaiting the claim: %w", err)
	}
	head := wire.NewReader(theirs[:5])
	if magicAndVersion(head); head.Err() != nil {
		return claim{}, head.Err()
	}
	if _, err := io.ReadFull(nc, theirs[5:]); err != nil {
		return claim{}, fmt.Errorf("awaiting the claim: %w", err)
	}
	fields, proof := theirs[:claimSize], theirs[claimSize:]
	if !hmac.Equal(proof, p.proof("dialer", greeting, fields)) {
		return claim{}, errOtherSecret
	}
	c, err := decodeClaim(fields)
	if err != nil {
		return claim{}, err
	}
	verdict := []byte{verdictJoined}
	if err = admit(c); err != nil {
		verdict[0] = verdictRefused
	}
	if _, werr := nc.Write(append(verdict, p.proof("acceptor", greeting, fields, verdict)...)); err == nil {
		err = werr
	}
	return c, err
}
