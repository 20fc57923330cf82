package conntest

import (
	"context"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// turnsHeld is how many puts the tests queue at most where nothing is done. A queue of
// the CUDA driver has room for about a thousand operations, and does not say so.
func turnsHeld(p *pair) int {
	if p.a.Connection.Transport() == registeredmem.CudaIPC {
		return 200
	}
	return 5000
}

// testTurns takes turns while nothing is done, until there is no room. No call in a turn
// waits, nor does the taking of turns or the query of a mark, even while another
// goroutine waits for room. Once things are done again, turns can be had.
func testTurns(t *testing.T, p *pair) {
	c := p.a.Connection
	src := source(t, p, device, 64, noise(64))
	own, dst := p.onDevice(t, 64)
	words, toWords := p.onDevice(t, 8)
	put := func(n uint64) (ok bool) {
		t.Helper()
		var err error
		if !soon(func() {
			turn, took := c.Internal().TryTurn(connection.Write, 64)
			if ok = took; !took {
				return
			}
			defer turn.End()
			if err = turn.Do(connection.Operation{Kind: connection.Write, Theirs: dst, Own: src, N: 64}); err != nil {
				return
			}
			if err = turn.Do(connection.Operation{Kind: connection.Update, Theirs: toWords, From: n, To: n + 1}); err != nil {
				return
			}
			_, err = turn.Mark()
		}) {
			t.Fatal("a call in a turn waits")
		}
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	eventually := func(n uint64) {
		t.Helper()
		for end := time.Now().Add(patience); !put(n); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no turn can be had, though nothing holds up the connection")
			}
		}
	}
	// The first may have to wait, for what the transport does not know yet.
	if err := c.Write(dst, 0, src, 0, 64); err != nil {
		t.Fatal(err)
	}
	if err := c.UpdateAndSync(toWords, 0, 0, 1); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	n := uint64(1)
	if p.a.Waits {
		put(n)
		return
	}
	for range 3 {
		eventually(n)
		n++
	}
	release := func() {}
	if p.a.Hold != nil {
		release = p.a.Hold()
		defer release()
		full := false
		for range turnsHeld(p) {
			if full = !put(n); full {
				break
			}
			n++
		}
		if full {
			testFull(t, p, dst, src)
		}
	}
	release()
	p.flush(t)
	eventually(n)
	n++
	p.flush(t)
	testcmp.Equal(t, "the word", word(t, words, 0), n)
	testcmp.Equal(t, "what arrived", read[byte](t, own, 0, 64), noise(64))
}

// turnsOf returns a function that has one take a turn, if there is one, for what must not wait, and
// reports whether there was.
func turnsOf(t *testing.T, what string, one func() (bool, error)) func() bool {
	return func() (ok bool) {
		t.Helper()
		var err error
		if !soon(func() { ok, err = one() }) {
			t.Fatalf("%s in a turn waits", what)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
}

// takeTurns takes turns while nothing holds up the connection, of which there is one in the end, and
// as many as there are while it is held.
func takeTurns(t *testing.T, p *pair, what string, take func() bool) {
	t.Helper()
	eventually := func() {
		t.Helper()
		for end := time.Now().Add(patience); !take(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no turn %s can be had, though nothing holds up the connection", what)
			}
		}
	}
	eventually()
	if p.a.Hold != nil {
		release := p.a.Hold()
		defer release()
		for range turnsHeld(p) {
			if !take() {
				break
			}
		}
		release()
	}
	p.flush(t)
	eventually()
	p.flush(t)
}

// testFull has a goroutine wait for room in a connection that is held, if it does. Nobody
// else waits.
func testFull(t *testing.T, p *pair, dst, src *registeredmem.Memory) {
	t.Helper()
	c := p.a.Connection
	m, err := c.Mark()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 4 {
			if err := c.Write(dst, 0, src, 0, 64); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { <-done })
	for range 100 {
		if !soon(func() {
			m.Done()
			if turn, ok := c.Internal().TryTurn(connection.Write, 0); ok {
				turn.End()
			}
		}) {
			t.Fatal("the query of a mark, or of a turn, waits for a call that waits for room")
		}
		time.Sleep(100 * time.Microsecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := p.flushUntil(ctx); err == nil {
		t.Error("a flush of what is held has ended")
	}
}
