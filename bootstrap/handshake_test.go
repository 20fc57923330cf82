package bootstrap

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// shakeOver runs a handshake over a pipe. It returns what either side made of
// it and the claim that was admitted.
func shakeOver(dialer, acceptor UniqueID, c claim) (got claim, derr, aerr error) {
	d, a := net.Pipe()
	done := make(chan error, 1)
	go func() {
		err := dialHandshake(d, dialer, c)
		d.Close()
		done <- err
	}()
	aerr = acceptHandshake(a, acceptor, func(c claim) error { got = c; return nil })
	a.Close()
	return got, <-done, aerr
}

func TestHandshake(t *testing.T) {
	id := testID(t)
	want := claim{role: rolePeer, from: 3, to: 5}
	if got, derr, aerr := shakeOver(id, id, want); got != want || derr != nil || aerr != nil {
		t.Errorf("%v, %v, %v", got, derr, aerr)
	}

	other := testID(t)
	if _, derr, aerr := shakeOver(other, id, want); !errors.Is(derr, errOtherGroup) || aerr == nil {
		t.Errorf("another group: %v, %v", derr, aerr)
	}
	forged := id
	forged.secret = other.secret
	if got, derr, aerr := shakeOver(forged, id, want); derr == nil || !errors.Is(aerr, errOtherSecret) || got != (claim{}) {
		t.Errorf("a dialer without the secret: %v, %v, %v", got, derr, aerr)
	}
}

// An acceptor that claims the group's number and does not know its secret
// answers what it likes; the dialer believes none of it.
func TestHandshakeFalseAcceptor(t *testing.T) {
	id := testID(t)
	for _, verdict := range []byte{verdictJoined, verdictRefused} {
		d, a := net.Pipe()
		go func() {
			defer a.Close()
			a.Write(encodeGreeting(id.group, [nonceSize]byte{}))
			io.ReadFull(a, make([]byte, claimSize+proofSize))
			a.Write(append([]byte{verdict}, make([]byte, proofSize)...))
		}()
		if err := dialHandshake(d, id, claim{role: rolePeer}); !errors.Is(err, errOtherSecret) {
			t.Errorf("verdict %d: %v", verdict, err)
		}
		d.Close()
	}
}

// recorder keeps what is written to a connection.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Conn.Write(b)
}

// logBuffer collects log lines from many goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// refusedBy dials addr, sends noise, and returns once the other side has closed
// the connection without having answered.
func refusedBy(t *testing.T, addr string, noise []byte) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	c.Write(noise)
	got, err := io.ReadAll(c)
	if errors.Is(err, net.ErrClosed) || strings.Contains(errText(err), "timeout") {
		t.Errorf("a stranger was not refused: %v", err)
	}
	if len(got) > greetingSize {
		t.Errorf("a stranger was answered: %x", got[greetingSize:])
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Strangers with noise, with a recorded handshake, and silent ones beyond
// number, at the rendezvous and at a rank's own socket: the group forms and
// goes on.
func TestStrangers(t *testing.T) {
	noLeaks(t)
	var log logBuffer
	r := rendezvous(t, slog.New(slog.NewTextHandler(&log, nil)))
	ctx := testContext(t)

	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	var recorded []byte
	attack := func(addr string) {
		refusedBy(t, addr, noise)
		refusedBy(t, addr, []byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n"))
		refusedBy(t, addr, recorded)
		var silent []net.Conn
		for range maxHalfOpen + 20 {
			s, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, s)
		}
		t.Cleanup(func() {
			for _, s := range silent {
				s.Close()
			}
		})
	}

	// What a member sent to join, played back later.
	raw, err := net.Dial("tcp", r.ID().Addr())
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{Conn: raw}
	if err := dialHandshake(rec, r.ID(), claim{role: roleJoin, from: 1, to: toRendezvous}); err != nil {
		t.Fatal(err)
	}
	raw.Close()
	recorded = append(rec.sent.Bytes(), frame{kind: frameJoin, payload: joinMessage{size: 2, addr: "127.0.0.1:1"}.encode()}.encode()...)

	attack(r.ID().Addr())
	bs, errs := connectAll(ctx, []Options{
		{Rank: 0, Size: 2, ID: r.ID()}, {Rank: 1, Size: 2, ID: r.ID()}})
	defer closeAll(bs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	attack(bs[0].acc.ln.Addr().String())
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
	for _, b := range bs {
		if err := b.Err(); err != nil {
			t.Errorf("rank %d: %v", b.Rank(), err)
		}
	}
	if !strings.Contains(log.String(), "refused a connection") {
		t.Errorf("the log does not tell of strangers: %s", log.String())
	}
}

// A member's handshake for one place is worth nothing at another.
func TestClaimsAreBound(t *testing.T) {
	bs := group(t, 3)
	for _, c := range []claim{
		{role: roleJoin, from: 1, to: toRendezvous},
		{role: rolePeer, from: 1, to: 2},
		{role: rolePeer, from: 0, to: 0},
		{role: rolePeer, from: 3, to: 0},
	} {
		nc, err := net.Dial("tcp", bs[0].acc.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := dialHandshake(nc, bs[0].id, c); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v: %v", c, err)
		}
		nc.Close()
	}
	if err := bs[0].Err(); err != nil {
		t.Error(err)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add(encodeGreeting([groupSize]byte{1}, [nonceSize]byte{2}))
	f.Add([]byte("220 mail.example"))
	f.Fuzz(func(t *testing.T, b []byte) {
		group, err := decodeGreeting(b)
		if err == nil && !bytes.Equal(encodeGreeting(group, [nonceSize]byte(b[greetingSize-nonceSize:])), b) {
			t.Fatalf("%x reads as another greeting", b)
		}
	})
}

func FuzzClaim(f *testing.F) {
	f.Add(encodeClaim(claim{rolePeer, 1, 2}, [nonceSize]byte{3}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeClaim(b)
		if err == nil && !bytes.Equal(encodeClaim(c, [nonceSize]byte(b[claimSize-nonceSize:])), b) {
			t.Fatalf("%x reads as another claim", b)
		}
	})
}

// FuzzAccept gives an acceptor whatever a stranger may send.
func FuzzAccept(f *testing.F) {
	id := testID(f)
	f.Add(append(encodeClaim(claim{rolePeer, 1, 2}, [nonceSize]byte{3}), make([]byte, proofSize)...))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, a := net.Pipe()
		go func() {
			io.CopyN(io.Discard, d, greetingSize)
			d.Write(b)
			d.Close()
		}()
		err := acceptHandshake(a, id, func(claim) error { t.Error("a stranger was admitted"); return nil })
		a.Close()
		d.Close()
		if err == nil {
			t.Fatal("a stranger's handshake succeeded")
		}
	})
}
