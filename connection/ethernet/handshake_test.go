package ethernet

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

// Strangers are refused within the time limit and logged, and the group goes on.
func TestStrangers(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		for name, c := range map[string]struct {
			visit func(t *testing.T, nc net.Conn, b *rank)
			logs  string // in the clear
		}{
			"noise":   {func(_ *testing.T, nc net.Conn, _ *rank) { nc.Write(testlink.Noise(4096)) }, "not a handshake of this library"},
			"silence": {func(*testing.T, net.Conn, *rank) {}, "timeout"},
			"wrong secret": {func(t *testing.T, nc net.Conn, b *rank) {
				o := b.t.opts
				o.Secret[0]++
				if _, err := newMember(b.reg.Group(), &o, 0, 0).Client(t.Context(), nc, claimFor(b, 2).encode()); err == nil {
					t.Error("it was let in")
				}
			}, handshake.ErrStranger.Error()},
		} {
			t.Run(name, func(t *testing.T) {
				o := loopback()
				o.TLS = encrypted
				a, b := newRank(t, 0, o), newImpatientRank(t, 1, o, 400*time.Millisecond)
				ab, _ := connect(t, a, b)
				nc := rawDial(t, b)
				c.visit(t, nc, b)
				if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
					t.Error("the stranger is still connected")
				}
				logs := c.logs
				if encrypted {
					logs = ""
				}
				testlink.Eventually(t, "it is logged", func() bool {
					log := b.log.String()
					return strings.Contains(log, "refused a connection") && strings.Contains(log, logs)
				})
				src, dst := memory(t, a, onDevice, 64), imported(t, a, memory(t, b, onDevice, 64))
				testerr.Check(t, ab.Write(dst, 0, src, 0, 64))
				testerr.Check(t, ab.Flush(t.Context()))
			})
		}
	}
}

// Sockets whose fellows do not come are dropped.
func TestMissingSockets(t *testing.T) {
	o := loopback()
	o.Timeout = 400 * time.Millisecond
	b := newImpatientRank(t, 1, o, 100*time.Millisecond)
	began := time.Now()
	nc := testerr.Must(b.t.member.Dial(t.Context(), b.t.addrs[0], claimFor(b, 2).encode()))(t)
	defer nc.Close()
	if _, err := io.Copy(io.Discard, nc); err != nil {
		t.Errorf("the socket ended with %v", err)
	}
	if waited := time.Since(began); waited < o.Timeout {
		t.Errorf("it was dropped after %v", waited)
	}
	testlink.Eventually(t, "it is logged", func() bool { return strings.Contains(b.log.String(), "did not come") })
}

// Members' claims that do not fit are refused, and so is an acceptor without the
// secret.
func TestClaims(t *testing.T) {
	b := newRank(t, 1, loopback())
	for name, change := range map[string]func(*claim){
		"rank":     func(c *claim) { c.to = 5 },
		"endpoint": func(c *claim) { c.acceptor[0]++ },
	} {
		c := claimFor(b, 2)
		change(c)
		if _, err := b.t.member.Dial(t.Context(), b.t.addrs[0], c.encode()); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("a claim with another %s: %v", name, err)
		}
	}
	c := claimFor(b, 2)
	nc, err := b.t.member.Dial(t.Context(), b.t.addrs[0], c.encode())
	testerr.Check(t, err)
	defer nc.Close()
	testlink.Eventually(t, "the socket has arrived", func() bool { // the answer comes a little before
		b.t.rank.Mu.Lock()
		defer b.t.rank.Mu.Unlock()
		return len(b.t.arriving) == 1
	})
	if _, err := b.t.member.Dial(t.Context(), b.t.addrs[0], c.encode()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the same socket twice: %v", err)
	}
	o := loopback()
	o.Secret[0]++
	_, err = newRank(t, 0, o).e.Connect(t.Context(), testlink.Marshal(t, b.e))
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
}

func FuzzClaim(f *testing.F) {
	some := claim{from: 1, to: 2, sockets: 3, socket: 1}
	f.Add(some.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := decodeClaim(data); err == nil {
			if diff := cmp.Diff(data, c.encode()); diff != "" {
				t.Errorf("it reads as another claim (-want +got):\n%s", diff)
			}
		}
	})
}
