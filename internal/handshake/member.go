package handshake

import (
	"bytes"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// DefaultPatience bounds one handshake. A member needs a few round trips' time.
const DefaultPatience = 5 * time.Second

// A Mode selects whether connections are encrypted.
type Mode uint8

const (
	Clear  Mode = iota
	TLS         // TLS 1.3; others are refused
	Either      // as the dialer wants; only for [Member.Server]
)

// Options describe a [Member]. All ends of a group must have the same, except
// Patience and Silence.
type Options struct {
	Group     [16]byte // the group's number, not a secret
	Secret    [32]byte // known to members only
	Purpose   string   // separates the handshakes of different protocols
	Version   uint8    // of the protocol that follows the handshake
	ClaimSize int      // bytes of a claim
	Mode      Mode
	Patience  time.Duration // bounds one handshake; 0 means DefaultPatience
	Silence   time.Duration // as for [Watch]; 0 means DefaultSilence
}

// A Member is one end's knowledge of its group for one purpose. Its methods may
// be called from many goroutines.
type Member struct {
	o      Options
	tls    *tls.Config
	random func([]byte) (int, error)
}

// New returns a Member.
func New(o Options) *Member {
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.Silence == 0 {
		o.Silence = DefaultSilence
	}
	return &Member{o: o, tls: tlsConfig(), random: rand.Read}
}

// Derive returns a key for a purpose (HKDF with SHA-256, RFC 5869). The key reveals
// nothing about the secret or about keys for other purposes, but lets guesses of a
// weak secret be tested.
func Derive(secret []byte, purpose string) [32]byte {
	return [32]byte(expand(secret, nil, "mscclgo "+purpose, 32))
}

func expand(secret, salt []byte, info string, size int) []byte {
	key, err := hkdf.Key(sha256.New, secret, salt, info, size)
	if err != nil {
		panic("handshake: " + err.Error()) // a size that HKDF does not have
	}
	return key
}

// Dial connects to a TCP address and proves that this end is of the group, as
// [Member.Client] does. The error names the address. When ctx's deadline ends it, ctx is over.
func (m *Member) Dial(ctx context.Context, addr string, claim []byte) (net.Conn, error) {
	raw, err := dialer(m.o.Patience).DialContext(ctx, "tcp", addr)
	if err != nil {
		// The socket has a timer of its own for the deadline, which may be ahead of ctx's: callers look at
		// ctx to tell a time-out from a peer that does not answer.
		if end, has := ctx.Deadline(); has && !time.Now().Before(end) {
			<-ctx.Done()
		}
		return nil, err
	}
	conn, err := m.Client(ctx, raw, claim)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("at %s: %w", addr, err)
	}
	return conn, nil
}

// Client proves to the acceptor of raw that this end is of the group and may
// make the claim, and has the acceptor prove the same. It returns the connection
// to use from then on, which is raw or TLS over raw. It ends when ctx does. The
// caller closes raw after an error, which wraps an [Error] if the other end is
// not of the group.
func (m *Member) Client(ctx context.Context, raw net.Conn, claim []byte) (net.Conn, error) {
	if len(claim) != m.o.ClaimSize {
		return nil, fmt.Errorf("a claim of %d bytes, it must have %d", len(claim), m.o.ClaimSize)
	}
	Watch(raw, m.o.Silence)
	raw.SetDeadline(time.Now().Add(m.o.Patience))
	stop := EndWith(ctx, raw)
	conn, err := m.client(raw, claim)
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	return conn, nil
}

func (m *Member) client(raw net.Conn, claim []byte) (net.Conn, error) {
	conn, binding := raw, []byte(nil)
	if m.o.Mode == TLS {
		var err error
		if conn, binding, err = secure(tls.Client(raw, m.tls)); err != nil {
			return nil, err
		}
	}
	mine := m.hello(m.o.Mode == TLS)
	if _, err := conn.Write(mine.encode()); err != nil {
		return nil, fmt.Errorf("sending the hello: %w", err)
	}
	start, err := readStart(conn)
	if err != nil {
		return nil, err
	}
	theirs, err := readHello(conn, start)
	if err != nil {
		return nil, err
	}
	if err := mine.fits(theirs); err != nil {
		return nil, err
	}
	k := m.keys(mine, theirs, binding)
	if _, err := conn.Write(append(claim[:len(claim):len(claim)], proof(k.dialer, claim)...)); err != nil {
		return nil, fmt.Errorf("sending the claim: %w", err)
	}
	answer := make([]byte, 1+proofSize)
	if _, err := io.ReadFull(conn, answer); err != nil {
		for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
			if errors.Is(err, end) {
				return nil, ErrRejected
			}
		}
		return nil, fmt.Errorf("waiting for the answer: %w", err)
	}
	// An acceptor without the secret cannot even refuse credibly.
	if !hmac.Equal(answer[1:], proof(k.acceptor, claim, answer[:1])) {
		return nil, ErrStranger
	}
	if answer[0] != admitted {
		return nil, errors.New("the other side refused the claim: what was dialed is not there, or is closing")
	}
	return conn, nil
}

// Server has the dialer of raw prove that it is of the group. Then admit decides
// whether the claim fits this end, before the dialer learns that it does; conn is
// the connection to use from then on, which Server also returns, and has no
// deadline for reads any more. The caller closes raw after an error.
func (m *Member) Server(raw net.Conn, admit func(conn net.Conn, claim []byte) error) (net.Conn, error) {
	Watch(raw, m.o.Silence)
	raw.SetDeadline(time.Now().Add(m.o.Patience))
	conn, k, err := m.greet(raw)
	if err != nil {
		return nil, err
	}
	message := make([]byte, m.o.ClaimSize+proofSize)
	if _, err := io.ReadFull(conn, message); err != nil {
		return nil, fmt.Errorf("waiting for the claim: %w", err)
	}
	claim := message[:m.o.ClaimSize]
	if !hmac.Equal(message[m.o.ClaimSize:], proof(k.dialer, claim)) {
		return nil, ErrStranger
	}
	answer := []byte{admitted}
	raw.SetReadDeadline(time.Time{}) // before admit, which may set one
	if err = admit(conn, claim); err != nil {
		answer[0] = refused
	}
	_, werr := conn.Write(append(answer, proof(k.acceptor, claim, answer)...))
	raw.SetWriteDeadline(time.Time{})
	return conn, errors.Join(err, werr)
}

// greet exchanges hellos with the dialer of raw, after it has begun TLS where
// the dialer does. A dialer that differs in version or mode is sent this side's
// hello in the clear, so that it can report the difference.
func (m *Member) greet(raw net.Conn) (net.Conn, keys, error) {
	start, err := readStart(raw)
	if err != nil {
		return nil, keys{}, err
	}
	dialerTLS := isTLS(start)
	conn, binding := raw, []byte(nil)
	mine := m.hello(m.o.Mode == TLS || m.o.Mode == Either && dialerTLS)
	switch {
	case dialerTLS && !mine.tls:
		raw.Write(mine.encode())
		return nil, keys{}, ErrMode
	case dialerTLS:
		if conn, binding, err = secure(tls.Server(&rewound{raw, start}, m.tls)); err != nil {
			return nil, keys{}, err
		}
		if start, err = readStart(conn); err != nil {
			return nil, keys{}, err
		}
	}
	theirs, err := readHello(conn, start)
	if err != nil {
		return nil, keys{}, err
	}
	_, err = conn.Write(mine.encode())
	return conn, m.keys(theirs, mine, binding), errors.Join(mine.fits(theirs), err)
}

func (m *Member) hello(tls bool) hello {
	h := hello{version: version, protocol: m.o.Version, tls: tls}
	m.random(h.nonce[:]) // never fails: it ends the process instead
	return h
}

// readStart reads the bytes of a hello that have come, at least one: noise shows in them,
// so that nobody waits until noise fills a hello. On a connection of packets it
// is the whole packet.
func readStart(conn net.Conn) ([]byte, error) {
	b := make([]byte, helloSize)
	n, err := io.ReadAtLeast(conn, b, 1)
	if err != nil {
		err = fmt.Errorf("waiting for the hello: %w", err)
	}
	return b[:n], err
}

// readHello reads the rest of the hello that begins with start.
func readHello(conn net.Conn, start []byte) (hello, error) {
	if !bytes.HasPrefix(magic[:], start[:min(len(start), len(magic))]) {
		return hello{}, ErrNoise
	}
	if _, err := io.ReadFull(conn, start[len(start):helloSize]); err != nil {
		return hello{}, fmt.Errorf("waiting for the hello: %w", err)
	}
	return decodeHello(start[:helloSize])
}

// keys are the two directions' keys of one handshake.
type keys struct{ dialer, acceptor []byte }

func (m *Member) keys(dialer, acceptor hello, binding []byte) keys {
	w := wire.NewWriter(128)
	w.String("mscclgo handshake")
	w.String(m.o.Purpose)
	w.Raw(m.o.Group[:])
	w.Blob(binding)
	both := expand(m.o.Secret[:], append(dialer.encode(), acceptor.encode()...), string(w.Bytes()), 2*proofSize)
	return keys{both[:proofSize], both[proofSize:]}
}

// proof returns the HMAC of parts, whose sizes both sides know.
func proof(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}
