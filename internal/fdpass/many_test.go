package fdpass

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
