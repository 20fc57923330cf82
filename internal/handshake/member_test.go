package handshake

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fixed returns a member whose nonces are all of one byte.
func fixed(o Options, nonce byte) *Member {
	m := New(o)
	m.random = func(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte{nonce}, len(b))), nil }
	return m
}

// The bytes of a handshake, with nonces that are known. testdata/transcript.txt was
// computed from the package's comment by a program in another language, and is what
// other builds rely on: a change needs another version.
func TestTranscript(t *testing.T) {
	r := shake(t, fixed(testOptions, 0xdd), fixed(testOptions, 0xaa), nil)
	if r.dialErr != nil || r.acceptErr != nil {
		t.Fatal(r.dialErr, r.acceptErr)
	}
	if len(r.fromDialer) != 2 || len(r.fromAcceptor) != 2 {
		t.Fatalf("%d messages of the dialer, %d of the acceptor", len(r.fromDialer), len(r.fromAcceptor))
	}
	var got strings.Builder
	for i := range 2 {
		fmt.Fprintf(&got, "dialer   %x\nacceptor %x\n", r.fromDialer[i], r.fromAcceptor[i])
	}
	want, err := os.ReadFile("testdata/transcript.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("the messages have changed (-want +got):\n%s", diff)
	}
}

func TestHandshake(t *testing.T) {
	for _, mode := range []Mode{Clear, TLS} {
		for _, accepts := range []Mode{mode, Either} {
			o := with(func(o *Options) { o.Mode = mode })
			r := shake(t, New(o), New(with(func(o *Options) { o.Mode = accepts })), nil)
			if r.dialErr != nil || r.acceptErr != nil || r.claim != string(testClaim) {
				t.Fatalf("mode %d at %d: %v, %v, claim %q", mode, accepts, r.dialErr, r.acceptErr, r.claim)
			}
			if _, encrypted := r.dialer.(*tls.Conn); encrypted != (mode == TLS) {
				t.Errorf("mode %d: a %T", mode, r.dialer)
			}
			go r.dialer.Write([]byte("ping"))
			got := make([]byte, 4)
			if _, err := io.ReadFull(r.acceptor, got); err != nil || string(got) != "ping" {
				t.Errorf("mode %d at %d: %q, %v", mode, accepts, got, err)
			}
		}
	}
}

// Ends that do not belong together both find out why.
func TestMismatches(t *testing.T) {
	member := New(testOptions)
	for name, c := range map[string]struct {
		dialer, acceptor Options
		dialErr, accErr  error
	}{
		"another secret":  {with(func(o *Options) { o.Secret[31]++ }), testOptions, ErrRejected, ErrStranger},
		"another group":   {with(func(o *Options) { o.Group[0]++ }), testOptions, ErrRejected, ErrStranger},
		"another purpose": {with(func(o *Options) { o.Purpose = "toast" }), testOptions, ErrRejected, ErrStranger},
		"another version": {with(func(o *Options) { o.Version++ }), testOptions, ErrVersion, ErrVersion},
		"TLS to clear":    {with(func(o *Options) { o.Mode = TLS }), testOptions, ErrMode, ErrMode},
		"clear to TLS":    {testOptions, with(func(o *Options) { o.Mode = TLS }), ErrMode, ErrMode},
		"another secret under TLS": {with(func(o *Options) { o.Mode = TLS; o.Secret[0]++ }),
			with(func(o *Options) { o.Mode = TLS }), ErrRejected, ErrStranger},
	} {
		r := shake(t, New(c.dialer), New(c.acceptor), nil)
		if !errors.Is(r.dialErr, c.dialErr) || !errors.Is(r.acceptErr, c.accErr) || r.claim != "" {
			t.Errorf("%s: dialer %v, acceptor %v, claim %q", name, r.dialErr, r.acceptErr, r.claim)
		}
	}
	refusal := errors.New("no room")
	r := shake(t, member, member, refusal)
	if r.dialErr == nil || !strings.Contains(r.dialErr.Error(), "refused the claim") || !errors.Is(r.acceptErr, refusal) {
		t.Errorf("a refused claim: dialer %v, acceptor %v", r.dialErr, r.acceptErr)
	}
	if _, err := member.Client(t.Context(), nil, []byte("too long a claim")); err == nil {
		t.Error("a claim of another size was made")
	}
}

// An acceptor sends a stranger nothing but its random hello, which is the same but
// for the nonce whatever the secret and the group.
func TestStrangerLearnsNothing(t *testing.T) {
	var hellos []string
	for _, o := range []Options{testOptions, with(func(o *Options) { o.Secret[5]++; o.Group[5]++; o.Purpose = "other" })} {
		near, far := pair(t)
		near.Write(append(hello{version: version, protocol: o.Version}.encode(), make([]byte, o.ClaimSize+proofSize)...))
		_, err := fixed(o, 0xaa).Server(far, nil)
		far.Close()
		if !errors.Is(err, ErrStranger) {
			t.Errorf("a false proof: %v", err)
		}
		hellos = append(hellos, hex.EncodeToString(expectHangup(t, near)))
	}
	want := hex.EncodeToString(fixed(testOptions, 0xaa).hello(false).encode())
	if diff := cmp.Diff([]string{want, want}, hellos); diff != "" {
		t.Errorf("what acceptors sent (-want +got):\n%s", diff)
	}
	near, far := pair(t)
	near.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	if _, err := New(testOptions).Server(far, nil); !errors.Is(err, ErrNoise) {
		t.Errorf("noise: %v", err)
	}
	far.Close()
	if got := expectHangup(t, near); len(got) != 0 {
		t.Errorf("noise was answered with %x", got)
	}
}

// A dialer believes nothing of an acceptor that cannot prove itself: neither that
// it admits nor that it refuses, nor the dialer's own messages sent back.
func TestFalseAcceptor(t *testing.T) {
	for name, answer := range map[string]func(claim []byte) []byte{
		"admitting":  func([]byte) []byte { return append([]byte{admitted}, make([]byte, proofSize)...) },
		"refusing":   func([]byte) []byte { return append([]byte{refused}, make([]byte, proofSize)...) },
		"reflecting": func(claim []byte) []byte { return append([]byte{admitted}, claim[len(testClaim):]...) },
	} {
		near, far := pair(t)
		go func() {
			io.CopyN(far, far, helloSize)
			claim := make([]byte, len(testClaim)+proofSize)
			io.ReadFull(far, claim)
			far.Write(answer(claim))
		}()
		if _, err := New(testOptions).Client(t.Context(), near, testClaim); !errors.Is(err, ErrStranger) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that hangs up after its hello.
	near, far := pair(t)
	go func() {
		io.CopyN(far, far, helloSize)
		far.Close()
	}()
	if _, err := New(testOptions).Client(t.Context(), near, testClaim); !errors.Is(err, ErrRejected) {
		t.Errorf("a hang-up: %v", err)
	}
}

// A dialer that reflects the acceptor's messages is refused.
func TestReflectingDialer(t *testing.T) {
	near, far := pair(t)
	go func() {
		near.Write(hello{version: version, protocol: testOptions.Version}.encode())
		io.Copy(near, near)
	}()
	near.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := New(with(func(o *Options) { o.ClaimSize = helloSize - proofSize })).Server(far, nil); !errors.Is(err, ErrStranger) {
		t.Errorf("it came to %v", err)
	}
}

// What a member sent once is worth nothing a second time.
func TestReplay(t *testing.T) {
	member := New(testOptions)
	first := shake(t, member, member, nil)
	if first.dialErr != nil {
		t.Fatal(first.dialErr)
	}
	near, far := pair(t)
	near.Write(bytes.Join(first.fromDialer, nil))
	if _, err := member.Server(far, nil); !errors.Is(err, ErrStranger) {
		t.Errorf("a recorded dialer: %v", err)
	}
	near, far = pair(t)
	far.Write(bytes.Join(first.fromAcceptor, nil))
	if _, err := member.Client(t.Context(), near, testClaim); !errors.Is(err, ErrStranger) {
		t.Errorf("a recorded acceptor: %v", err)
	}
}

// Messages that are cut short, altered or too long never get through.
func TestAltered(t *testing.T) {
	dialer, acceptor := fixed(testOptions, 0xdd), fixed(testOptions, 0xaa)
	good := shake(t, dialer, acceptor, nil)
	serve := func(message []byte) error {
		near, far := pair(t)
		near.Write(message)
		near.(*net.TCPConn).CloseWrite()
		_, err := acceptor.Server(far, func(net.Conn, []byte) error { return nil })
		return err
	}
	call := func(message []byte) error {
		near, far := pair(t)
		far.Write(message)
		far.(*net.TCPConn).CloseWrite()
		_, err := dialer.Client(t.Context(), near, testClaim)
		return err
	}
	for name, c := range map[string]struct {
		message []byte
		try     func([]byte) error
	}{
		"dialer":   {bytes.Join(good.fromDialer, nil), serve},
		"acceptor": {bytes.Join(good.fromAcceptor, nil), call},
	} {
		if err := c.try(c.message); err != nil {
			t.Fatalf("%s: the messages themselves: %v", name, err)
		}
		for i := range c.message {
			if err := c.try(c.message[:i]); err == nil {
				t.Errorf("%s: %d of %d bytes were enough", name, i, len(c.message))
			}
			altered := bytes.Clone(c.message)
			altered[i] ^= 0x10
			if err := c.try(altered); err == nil {
				t.Errorf("%s: byte %d may be altered", name, i)
			}
		}
	}
	if err := serve(make([]byte, 1<<20)); !errors.Is(err, ErrNoise) {
		t.Errorf("a mebibyte of zeros: %v", err)
	}
}

// Somebody between two TLS sessions has a proof that fits neither.
func TestManInTheMiddle(t *testing.T) {
	member := New(with(func(o *Options) { o.Mode = TLS }))
	a, log := echo(t, member)
	ln := tls.NewListener(listen(t), tlsConfig())
	go func() {
		from, err := ln.Accept()
		if err != nil {
			return
		}
		defer from.Close()
		to, err := tls.Dial("tcp", a.Addr().String(), tlsConfig())
		if err != nil {
			return
		}
		defer to.Close()
		go io.Copy(to, from)
		io.Copy(from, to)
	}()
	if _, err := member.Dial(t.Context(), ln.Addr().String(), testClaim); !errors.Is(err, ErrRejected) {
		t.Errorf("the dialer: %v", err)
	}
	works(t, member, a)
	log.await(t, ErrStranger.Error())
}

func TestCancelled(t *testing.T) {
	for _, mode := range []Mode{Clear, TLS} {
		silent := listen(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := New(with(func(o *Options) { o.Mode = mode })).Dial(ctx, silent.Addr().String(), testClaim)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
}

func TestDerive(t *testing.T) {
	a := Derive([]byte{1}, "a")
	if b := Derive([]byte{1}, "b"); a == b {
		t.Error("two purposes have one key")
	}
	if b := Derive([]byte{2}, "a"); a == b {
		t.Error("two secrets have one key")
	}
}
