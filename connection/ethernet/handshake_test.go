package ethernet

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// recorder keeps what is written to a socket.
type recorder struct {
	net.Conn
	wrote bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.wrote.Write(p)
	return r.Conn.Write(p)
}

// Strangers are refused within the time limit and logged, and the group goes on.
func TestStrangers(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		for name, c := range map[string]struct {
			visit func(t *testing.T, nc net.Conn, b *rank)
			says  string // in clear text
		}{
			"noise":   {func(_ *testing.T, nc net.Conn, _ *rank) { nc.Write(noise(4096)) }, "no handshake of this library"},
			"silence": {func(*testing.T, net.Conn, *rank) {}, "timeout"},
			"half": {func(_ *testing.T, nc net.Conn, b *rank) {
				nc.Write(claimFor(b, 2).encode([nonceSize]byte{})[:20])
			}, "timeout"},
			"wrong secret": {func(t *testing.T, nc net.Conn, b *rank) {
				err := dialHandshake(nc, prover{secret: [32]byte{9}}, b.reg.Group(), claimFor(b, 2))
				if err == nil {
					t.Error("it was let in")
				}
			}, errOtherSecret.Error()},
			"replay": {func(t *testing.T, nc net.Conn, b *rank) {
				if b.t.tls != nil {
					return // there it is not even read
				}
				first := &recorder{Conn: rawDial(t, b)}
				if err := dialHandshake(first, prover{secret: secret}, b.reg.Group(), claimFor(b, 2)); err != nil {
					t.Error(err)
				}
				nc.Write(first.wrote.Bytes())
			}, errOtherSecret.Error()},
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
				says := c.says
				if encrypted {
					says = ""
				}
				eventually(t, "it is logged", func() bool {
					log := b.log.String()
					return strings.Contains(log, "refused a connection") && strings.Contains(log, says)
				})
				src, dst := memory(t, a, onDevice, 64), imported(t, a, memory(t, b, onDevice, 64))
				if err := ab.Write(dst, 0, src, 0, 64); err != nil {
					t.Fatal(err)
				}
				if err := ab.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// Sockets whose fellows do not come are dropped.
func TestMissingSockets(t *testing.T) {
	b := newImpatientRank(t, 1, loopback(), 400*time.Millisecond)
	nc := rawDial(t, b)
	if err := dialHandshake(nc, prover{secret: secret}, b.reg.Group(), claimFor(b, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, nc); err != nil {
		t.Errorf("the socket ended with %v", err)
	}
	eventually(t, "it is logged", func() bool { return strings.Contains(b.log.String(), "did not come") })
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
		if err := dialHandshake(rawDial(t, b), prover{secret: secret}, b.reg.Group(), c); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("a claim with another %s: %v", name, err)
		}
	}
	c := claimFor(b, 2)
	p := prover{secret: secret}
	if err := dialHandshake(rawDial(t, b), p, b.reg.Group(), c); err != nil {
		t.Fatal(err)
	}
	if err := dialHandshake(rawDial(t, b), p, b.reg.Group(), c); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the same socket twice: %v", err)
	}
	group := b.reg.Group()
	group[0]++
	if err := dialHandshake(rawDial(t, b), p, group, c); err == nil || !strings.Contains(err.Error(), "this is group") {
		t.Errorf("another group: %v", err)
	}
	o := loopback()
	o.Secret[0]++
	_, err := newRank(t, 0, o).e.Connect(t.Context(), marshal(t, b.e))
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
}

// Who stands between two ends of TLS learns nothing that the other end takes.
func TestManInTheMiddle(t *testing.T) {
	o := loopback()
	o.TLS = true
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", b.t.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := tls.Dial("tcp", b.t.addrs[0], a.t.tls)
				if err != nil {
					return
				}
				defer to.Close()
				go io.Copy(to, from)
				io.Copy(from, to)
			}()
		}
	}()
	about := b.e.about
	about.addrs = []string{ln.Addr().String()}
	_, err = a.e.Connect(t.Context(), about.encode())
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
	eventually(t, "it is logged", func() bool { return strings.Contains(b.log.String(), errOtherSecret.Error()) })
}

func FuzzHandshake(f *testing.F) {
	some := claim{from: 1, to: 2, sockets: 3, socket: 1}
	f.Add(some.encode([nonceSize]byte{4}))
	f.Add(encodeGreeting([16]byte{1}, [nonceSize]byte{2}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := decodeClaim(data); err == nil {
			if again := c.encode([nonceSize]byte(data[claimSize-nonceSize:])); !bytes.Equal(again, data) {
				t.Errorf("%x became %+v", data, c)
			}
		}
		if group, err := decodeGreeting(data); err == nil {
			if again := encodeGreeting(group, [nonceSize]byte(data[greetingSize-nonceSize:])); !bytes.Equal(again, data) {
				t.Errorf("%x became group %x", data, group)
			}
		}
	})
}
