package fdpass

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// The ranks of one process all ask each other, in the same order.
func TestAllAskAll(t *testing.T) {
	const ranks = 128
	servers := make([]*Server, ranks)
	for i := range servers {
		servers[i], _ = serve(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for rank := range servers {
		wg.Go(func() {
			for _, s := range servers {
				if err := Call(ctx, testKey, s.Name(), []byte("file"), func(Answer) error { return nil }); err != nil {
					t.Errorf("rank %d: %v", rank, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A server that is too busy to finish a handshake in time hangs up: the caller tries again
// and does not take it for one with another secret.
func TestBusyServer(t *testing.T) {
	var dialled atomic.Int32
	name := impostor(t, func(c *net.UnixConn) {
		switch dialled.Add(1) {
		case 1: // it had no time for the hello
		case 2: // none for the proof
			c.Read(make([]byte, 100))
			c.Write(append([]byte("MGHS\x02\x02\x00"), make([]byte, 32)...))
			c.Read(make([]byte, 100))
		default:
			testKey.member(nameOf(c), 0).Server(c, func(net.Conn, []byte) error { return nil })
			c.Read(make([]byte, maxRequest))
			c.WriteMsgUnix(content{body: []byte("answer")}.encode(), nil, nil)
		}
	})
	expect(t, call(name, []byte("question")), "answer")
	busy := impostor(t, func(*net.UnixConn) { dialled.Add(1) })
	dialled.Store(0)
	expectError(t, call(busy, nil), "remote failure", "hung up 5 times", "too busy")
	if n := dialled.Load(); n != maxTries {
		t.Errorf("it was dialled %d times, want %d", n, maxTries)
	}
}

// impatient starts a server that waits for its callers for so long.
func impatient(t *testing.T, patience time.Duration, handle Handler) *Server {
	t.Helper()
	name := fmt.Sprintf("%s%032x", namePrefix, time.Now().UnixNano())
	ln := testerr.Must(net.ListenUnix("unixpacket", address(name)))(t)
	s := serveOn(ln, name, testKey, patience, slog.New(slog.DiscardHandler), handle)
	t.Cleanup(func() { s.Close() })
	return s
}

// A handler may take longer than the server waits for a caller, as where the machine is busy.
func TestSlowHandler(t *testing.T) {
	const patience = 200 * time.Millisecond
	s := impatient(t, patience, func(request []byte, _ bool) Answer {
		time.Sleep(2 * patience)
		return Answer{Body: request}
	})
	expect(t, call(s.Name(), []byte("question")), "question")
}

// A caller that got no CPU after the handshake, so that the server gave it up, asks again.
func TestSlowCaller(t *testing.T) {
	var dialled atomic.Int32
	name := impostor(t, func(c *net.UnixConn) {
		testKey.member(nameOf(c), 0).Server(c, func(net.Conn, []byte) error { return nil })
		switch dialled.Add(1) {
		case 1: // it did not wait for the question
			return
		case 2: // it could not send the answer
			c.Read(make([]byte, maxRequest))
			return
		}
		c.Read(make([]byte, maxRequest))
		c.WriteMsgUnix(content{body: []byte("answer")}.encode(), nil, nil)
	})
	expect(t, call(name, []byte("question")), "answer")
	mute := impostor(t, func(c *net.UnixConn) {
		testKey.member(nameOf(c), 0).Server(c, func(net.Conn, []byte) error { return nil })
		dialled.Add(1)
	})
	dialled.Store(0)
	expectError(t, call(mute, nil), "remote failure", "hung up 5 times, the last time instead of answering", "too busy")
	if n := dialled.Load(); n != maxTries {
		t.Errorf("it was dialled %d times, want %d", n, maxTries)
	}
}
