package handshake

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

var testOptions = Options{
	Group: [16]byte{1, 2}, Secret: [32]byte{3, 4}, Purpose: "test", Version: 9, ClaimSize: 5, Patience: 10 * time.Second,
}

var testClaim = []byte("claim")

func with(change func(*Options)) Options {
	o := testOptions
	change(&o)
	return o
}

// record keeps what is written to a connection, message by message.
type record struct {
	net.Conn
	mu   sync.Mutex
	sent [][]byte
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, bytes.Clone(b))
	r.mu.Unlock()
	return r.Conn.Write(b)
}

// result is what a handshake came to at both ends.
type result struct {
	dialer, acceptor         net.Conn // nil after an error
	dialErr, acceptErr       error
	claim                    string // that was admitted
	fromDialer, fromAcceptor [][]byte
}

// shake runs a handshake over TCP.
func shake(t testing.TB, dialer, acceptor *Member, admit error) (r result) {
	t.Helper()
	near, far := pair(t)
	d, a := &record{Conn: near}, &record{Conn: far}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.acceptor, r.acceptErr = acceptor.Server(a, func(_ net.Conn, claim []byte) error {
			r.claim = string(claim)
			return admit
		})
		if r.acceptErr != nil {
			a.Close()
		}
	}()
	r.dialer, r.dialErr = dialer.Client(t.Context(), d, testClaim)
	if r.dialErr != nil {
		d.Close()
	}
	<-done
	r.fromDialer, r.fromAcceptor = d.sent, a.sent
	return r
}

// listen returns a TCP listener that is closed with the test.
func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// pair returns the ends of a TCP connection.
func pair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	ln := listen(t)
	near = dialTo(t, ln.Addr())
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

func dialTo(t testing.TB, addr net.Addr) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// logs collects what an acceptor logs.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

// await waits until the log contains text.
func (l *logs) await(t testing.TB, text string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(strings.Join(l.lines(), "\n"), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log has %q, not %q", l.lines(), text)
		}
	}
}

// echo accepts members at a listener of its own and returns what they send.
func echo(t testing.TB, m *Member) (*Acceptor, *logs) {
	t.Helper()
	return echoIf(t, m, func(func() error) error { return nil })
}

// echoIf is echo with a say in who is admitted, and with what tells the acceptor so.
func echoIf(t testing.TB, m *Member, admit func(known func() error) error) (*Acceptor, *logs) {
	t.Helper()
	log := &logs{}
	a := NewAcceptor("test", slog.New(slog.NewTextHandler(log, nil)), func(raw net.Conn, known func() error) (func() error, error) {
		conn, err := m.Server(raw, func(net.Conn, []byte) error { return admit(known) })
		return func() error {
			defer conn.Close()
			_, err := io.Copy(conn, conn)
			return err
		}, err
	}, listen(t))
	t.Cleanup(func() {
		a.Stop()
		a.Wait()
	})
	return a, log
}

// works checks that a member gets through to an echo.
func works(t testing.TB, m *Member, a *Acceptor) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := m.Dial(ctx, a.Addr().String(), testClaim)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("hello"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

// expectHangup reads until the other end closes.
func expectHangup(t testing.TB, conn net.Conn) (got []byte) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Error("the other end did not hang up")
	}
	return got
}
