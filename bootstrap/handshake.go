package bootstrap

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// The handshake, three messages of fixed size, before anything else is sent:
//
//	acceptor → dialer   greeting: magic, version, group, nonce
//	dialer → acceptor   claim: magic, version, role, from, to, nonce, proof
//	acceptor → dialer   answer: verdict, proof
//
// A proof is HMAC-SHA256 under the group's secret over the prover's side, the
// greeting and the claim's fields: it binds group, ranks and role, and the
// nonces, 32 random bytes of either side, make it worthless a second time. The
// dialer proves first, so that a stranger who dials learns no proof.
//
// The handshake decides who is talking. What follows on the connection is
// neither encrypted nor signed: a network where strangers can alter traffic
// needs a tunnel.
const (
	nonceSize = 32
	proofSize = sha256.Size

	greetingSize = 4 + 1 + groupSize + nonceSize
	claimSize    = 4 + 1 + 1 + 4 + 4 + nonceSize // without its proof
	answerSize   = 1 + proofSize

	handshakeVersion = 1

	// handshakeTimeout bounds one handshake; a rank of the group needs a few
	// round trips' time.
	handshakeTimeout = 5 * time.Second
)

var handshakeMagic = [4]byte{'M', 'G', 'B', 'S'}

// A role is what a connection is for.
type role uint8

const (
	roleJoin role = 1 // a rank joins at the rendezvous
	rolePeer role = 2 // two ranks of a complete group
)

// toRendezvous stands for the acceptor's rank where that is the rendezvous.
const toRendezvous = 1<<32 - 1

// A claim says who dials whom for what.
type claim struct {
	role     role
	from, to uint32
}

func (c claim) String() string {
	if c.to == toRendezvous {
		return fmt.Sprintf("rank %d to the rendezvous", c.from)
	}
	return fmt.Sprintf("rank %d to rank %d", c.from, c.to)
}

var (
	errOtherGroup   = errors.New("another group answers there")
	errOtherSecret  = errors.New("the other side does not know this group's secret")
	errNotMscclgo   = errors.New("what came is no handshake of this library")
	errOtherVersion = errors.New("the other side speaks another version of the protocol")
)

// verdicts of an answer.
const (
	verdictJoined  = 1
	verdictRefused = 2
)

func encodeGreeting(group [groupSize]byte, nonce [nonceSize]byte) []byte {
	w := wire.NewWriter(greetingSize)
	w.Raw(handshakeMagic[:])
	w.U8(handshakeVersion)
	w.Raw(group[:])
	w.Raw(nonce[:])
	return w.Bytes()
}

func decodeGreeting(b []byte) (group [groupSize]byte, err error) {
	r := wire.NewReader(b)
	magicAndVersion(r)
	copy(group[:], r.Raw(groupSize))
	r.Raw(nonceSize)
	return group, r.End()
}

func encodeClaim(c claim, nonce [nonceSize]byte) []byte {
	w := wire.NewWriter(claimSize + proofSize)
	w.Raw(handshakeMagic[:])
	w.U8(handshakeVersion)
	w.U8(uint8(c.role))
	w.U32(c.from)
	w.U32(c.to)
	w.Raw(nonce[:])
	return w.Bytes()
}

func decodeClaim(b []byte) (c claim, err error) {
	r := wire.NewReader(b)
	magicAndVersion(r)
	c = claim{role: role(r.U8()), from: r.U32(), to: r.U32()}
	r.Raw(nonceSize)
	return c, r.End()
}

func magicAndVersion(r *wire.Reader) {
	if m := r.Raw(4); m != nil && [4]byte(m) != handshakeMagic {
		r.Fail(errNotMscclgo)
	}
	if v := r.U8(); r.Err() == nil && v != handshakeVersion {
		r.Fail(fmt.Errorf("%w: %d, this build %d", errOtherVersion, v, handshakeVersion))
	}
}

func (id UniqueID) proof(side string, parts ...[]byte) []byte {
	secret := id.secret()
	mac := hmac.New(sha256.New, secret[:])
	io.WriteString(mac, "mscclgo bootstrap "+side)
	for _, p := range parts {
		mac.Write(p) // all parts but the last have fixed sizes
	}
	return mac.Sum(nil)
}

// dialHandshake proves to the acceptor of conn that this side is of the group,
// and has it prove the same.
func dialHandshake(conn net.Conn, id UniqueID, c claim) error {
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	greeting := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return fmt.Errorf("awaiting the greeting: %w", err)
	}
	group, err := decodeGreeting(greeting)
	if err != nil {
		return err
	}
	if group != id.group {
		return fmt.Errorf("%w: group %x", errOtherGroup, group[:4])
	}
	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	mine := encodeClaim(c, nonce)
	if _, err := conn.Write(append(mine, id.proof("dialer", greeting, mine)...)); err != nil {
		return fmt.Errorf("sending the claim: %w", err)
	}
	answer := make([]byte, answerSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("awaiting the answer: %w", err)
	}
	// An acceptor without the secret cannot even refuse credibly.
	if !hmac.Equal(answer[1:], id.proof("acceptor", greeting, mine, answer[:1])) {
		return errOtherSecret
	}
	if answer[0] != verdictJoined {
		return errors.New("the other side refused: it is not the rank that was dialled, or is closing")
	}
	conn.SetDeadline(time.Time{})
	return nil
}

// acceptHandshake has the dialer of conn prove that it is of the group. admit
// says whether the claim fits this side, and is called before the dialer hears
// that it does.
func acceptHandshake(conn net.Conn, id UniqueID, admit func(claim) error) error {
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	greeting := encodeGreeting(id.group, nonce)
	if _, err := conn.Write(greeting); err != nil {
		return fmt.Errorf("sending the greeting: %w", err)
	}
	theirs := make([]byte, claimSize+proofSize)
	// Noise is refused at its first bytes, not when it has filled a claim.
	if _, err := io.ReadFull(conn, theirs[:5]); err != nil {
		return fmt.Errorf("awaiting the claim: %w", err)
	}
	head := wire.NewReader(theirs[:5])
	if magicAndVersion(head); head.Err() != nil {
		return head.Err()
	}
	if _, err := io.ReadFull(conn, theirs[5:]); err != nil {
		return fmt.Errorf("awaiting the claim: %w", err)
	}
	fields, proof := theirs[:claimSize], theirs[claimSize:]
	if !hmac.Equal(proof, id.proof("dialer", greeting, fields)) {
		return errOtherSecret
	}
	c, err := decodeClaim(fields)
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	verdict := []byte{verdictJoined}
	if err = admit(c); err != nil {
		verdict[0] = verdictRefused
	}
	conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
	if _, werr := conn.Write(append(verdict, id.proof("acceptor", greeting, fields, verdict)...)); err == nil {
		err = werr
	}
	conn.SetWriteDeadline(time.Time{})
	return err
}
