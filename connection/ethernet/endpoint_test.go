package ethernet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/internal/wire"
)

func TestConnectErrors(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	good := testlink.Marshal(t, b.e)
	for i := range good {
		_, err := a.e.Connect(t.Context(), good[:i])
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
		altered := bytes.Clone(good)
		altered[i] ^= 0x20
		_, err = a.e.Connect(t.Context(), altered)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
	}
	with := func(change func(*description)) []byte {
		d := b.e.about
		change(&d)
		return d.encode()
	}
	for name, c := range map[string]struct {
		data []byte
		kind mscclgo.Kind
		says string
	}{
		"rank":     {with(func(d *description) { d.rank = 1 << 31 }), mscclgo.ErrInvalid, "out of range"},
		"group":    {with(func(d *description) { d.group[0]++ }), mscclgo.ErrInvalid, "group"},
		"TLS":      {with(func(d *description) { d.tls = true }), mscclgo.ErrInvalid, "Options.TLS"},
		"none":     {with(func(d *description) { d.addrs = nil }), mscclgo.ErrInvalid, "0 addresses"},
		"name":     {with(func(d *description) { d.addrs = []string{"host:1"} }), mscclgo.ErrInvalid, "not an address"},
		"nobody":   {with(func(d *description) { d.addrs = []string{"127.0.0.1:1"} }), mscclgo.ErrRemote, "rank 0, peer 1"},
		"endpoint": {with(func(d *description) { d.id[0]++ }), mscclgo.ErrRemote, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.e.Connect(t.Context(), c.data)
			testerr.Expect(t, err, c.kind, c.says)
			lines := strings.Split(fmt.Sprint(err), "\n")
			for i, line := range lines { // its first has more before it
				if i > 0 && strings.HasSuffix(strings.Join(lines[:i], "\n"), line) {
					t.Errorf("the error says twice %q: %v", line, err)
				}
			}
		})
	}

	// The higher rank waits for the lower, as long as it may.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := b.e.Connect(ctx, testlink.Marshal(t, a.e))
	testerr.Expect(t, err, mscclgo.ErrTimeout, "rank 1, peer 0")
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = a.e.Connect(ctx, good)
	testerr.Expect(t, err, mscclgo.ErrAborted, "rank 0, peer 1")
}

// An address that leads nowhere is no harm when another leads there, such as one of
// IPv6.
func TestSecondAddress(t *testing.T) {
	o := loopback()
	a := newRank(t, 0, o)
	o.Interface = "::1/128"
	b := newRank(t, 1, o)
	b.e.about.addrs = append([]string{"127.0.0.1:1"}, b.e.about.addrs...)
	ab, _ := connect(t, a, b)
	src, mine := memory(t, a, onDevice, 4096), memory(t, b, onDevice, 4096)
	testlink.Set(t, src, testlink.Noise(4096))
	testerr.Check(t, ab.Write(imported(t, a, mine), 0, src, 0, 4096))
	testerr.Check(t, ab.Flush(t.Context()))
	testcmp.Equal(t, "what arrived", testlink.Get(t, mine), testlink.Noise(4096))
}

// Two endpoints of one rank connect, whichever is first.
func TestSameRank(t *testing.T) {
	a := newRank(t, 0, loopback())
	other := testerr.Must(a.t.NewEndpoint())(t)
	twin := &rank{reg: a.reg, t: a.t, e: other.(*endpoint)}
	if !a.e.dials(&twin.e.about) {
		a, twin = twin, a
	}
	connect(t, a, twin)
}

func TestOptions(t *testing.T) {
	a := newRank(t, 0, loopback())
	for _, o := range []Options{
		{Sockets: -1}, {Sockets: maxSockets + 1}, {Staging: 1}, {Timeout: -1}, {Interface: "nosuchthing"}, {Interface: "203.0.113.0/24"},
		{Interface: "lo"}, // there is a carrier already
	} {
		_, err := New(a.reg, o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0")
	}
	_, err := New(nil, Options{})
	testerr.Expect(t, err, mscclgo.ErrInvalid)
}

func FuzzEndpoint(f *testing.F) {
	some := description{rank: 2, addrs: []string{"10.0.0.1:2", "[::1]:3"}}
	f.Add(some.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		// A fuzzer does not find checksums, so it also gets to write bodies.
		for _, data := range [][]byte{data, wire.Seal(formatKind, formatVersion, data)} {
			d, err := decode(data)
			if err == nil {
				testcmp.Equal(t, "the bytes encoded again", d.encode(), data)
			}
		}
	})
}

// A connection that its dialler closes before this rank's Connect has returned it goes
// at once, with its staging memory, and is not returned later: Connect says why, unless the peer has
// dialled again.
func TestUnclaimedGoes(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	for round := range 3 {
		dialled := testerr.Must(a.e.connect(t.Context(), testlink.Marshal(t, b.e)))(t)
		testlink.Eventually(t, "the connection waits for Connect", func() bool { return b.e.unclaimed() == 1 })
		testerr.Check(t, dialled.Close())
		testlink.Eventually(t, "nothing is left of it", func() bool { return b.e.unclaimed() == 0 && len(message.All[*conn](&b.t.rank)) == 0 })
		if round == 0 {
			_, err := b.e.Connect(t.Context(), testlink.Marshal(t, a.e))
			testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "the connection ended before this rank's Connect", "has closed the connection")
		}
	}
	ab, ba := connect(t, a, b)
	src, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	dst := imported(t, a, mine)
	testerr.Check(t, ab.Write(dst, 0, src, 0, 64))
	testerr.Check(t, ab.Flush(t.Context()))
	// One that was claimed stays until it is closed, for its reason.
	testerr.Check(t, ab.Close())
	testerr.Expect(t, failed(t, ba), mscclgo.ErrRemote, "has closed the connection")
}

// unclaimed returns how many connections wait for Connect.
func (e *endpoint) unclaimed() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting)
}

// TestEndpointClose closes an endpoint with a connection that Connect has not returned.
func TestEndpointClose(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	dialled, err := a.e.connect(t.Context(), testlink.Marshal(t, b.e))
	testerr.Check(t, err)
	ab := newLink(t, dialled)
	testlink.Eventually(t, "the connection arrives", func() bool { return len(message.All[*conn](&b.t.rank)) == 1 })
	third := testlink.Marshal(t, newRank(t, 0, loopback()).e) // which never dials
	waiting := make(chan error, 1)
	go func() {
		_, err := b.e.Connect(t.Context(), third)
		waiting <- err
	}()
	time.Sleep(50 * time.Millisecond) // until it waits, most likely
	for range 2 {
		testerr.Report(t, b.e.Close())
	}
	if n := len(message.All[*conn](&b.t.rank)); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	testerr.Expect(t, failed(t, ab), mscclgo.ErrRemote, "has closed the connection")
	if err := <-waiting; !errors.Is(err, mscclgo.ErrInvalid) { // it came too late to wait
		testerr.Expect(t, err, mscclgo.ErrAborted, "the endpoint was closed", "rank 1, peer 0")
	}
	_, err = b.e.Connect(t.Context(), testlink.Marshal(t, a.e))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the endpoint is closed", "rank 1, peer 0")
	_, err = a.e.Connect(t.Context(), testlink.Marshal(t, b.e))
	testerr.Expect(t, err, mscclgo.ErrRemote, "refused", "rank 0, peer 1")
}

// TestEndpointClosesWhileDialled closes an endpoint, or its transport, when some sockets of a connection have come: the
// dialer, which may have connected the others since, hears that it was closed.
func TestEndpointClosesWhileDialled(t *testing.T) {
	for name, close := range map[string]func(*rank) error{
		"endpoint":  func(r *rank) error { return r.e.Close() },
		"transport": func(r *rank) error { return r.t.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newRank(t, 1, loopback())
			control, err := b.t.member.Client(t.Context(), rawDial(t, b), claimFor(b, 3).encode())
			testerr.Check(t, err)
			testlink.Eventually(t, "the socket has come", func() bool {
				b.t.rank.Mu.Lock()
				defer b.t.rank.Mu.Unlock()
				return len(b.t.arriving) == 1
			})
			testerr.Check(t, close(b))
			control.SetReadDeadline(time.Now().Add(testlink.Timeout / 4))
			said, err := io.ReadAll(control)
			if err != nil {
				t.Fatalf("the socket stays open: %v", err)
			}
			if f, err := message.Decode(said); err != nil || f.Kind != message.Bye {
				t.Errorf("the dialer is told %v (%v)", f, err)
			}
		})
	}
}
