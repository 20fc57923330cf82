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

	"github.com/mscclgo/mscclgo/internal/handshake"
)

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

// helloSize is the size of the only message to a stranger.
const helloSize = 39

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
	if len(got) > helloSize {
		t.Errorf("a stranger was answered: %x", got[helloSize:])
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
		for range handshake.MaxHalfOpen + 20 {
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
	join := claim{role: roleJoin, from: 1, to: toRendezvous}
	if _, err := r.ID().member(handshake.Clear).Client(ctx, rec, join.encode()); err != nil {
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
	attack(bs[0].acc.Addr().String())
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
	for _, b := range bs {
		if err := b.Err(); err != nil {
			t.Errorf("rank %d: %v", b.Rank(), err)
		}
	}
	if !strings.Contains(log.String(), "refused a connection") {
		t.Errorf("the log has no strangers: %s", log.String())
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
		_, err := bs[0].member.Dial(t.Context(), bs[0].acc.Addr().String(), c.encode())
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := bs[0].Err(); err != nil {
		t.Error(err)
	}
}

func FuzzClaim(f *testing.F) {
	f.Add(claim{rolePeer, 1, 2}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if from, err := decodeClaim(b, rolePeer, 2); err == nil {
			same(t, b, claim{rolePeer, uint32(from), 2}.encode())
		}
	})
}
