package cudaipc

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const longTimeout = 20 * time.Second

// bothWays runs a test with values that the stream stores, and with the ring.
func bothWays(t *testing.T, test func(t *testing.T, storeValues bool)) {
	t.Run("stream values", func(t *testing.T) { test(t, true) })
	t.Run("ring of words", func(t *testing.T) { test(t, false) })
}

func TestWriteAndFlush(t *testing.T) {
	p := newPair(t, true, longTimeout)
	values := make([]uint64, pairWords)
	for i := range values {
		values[i] = uint64(i) * 3
	}
	set(t, p.src, values...)
	if p.conn.Transport() != registeredmem.CudaIPC {
		t.Errorf("the transport is %v", p.conn.Transport())
	}
	for _, c := range []struct{ to, from, n uint64 }{{0, 8, 0}, {8, 16, 16}, {31, 3, 7}, {1024, 1024, 8 * 1000}} {
		if err := p.conn.Write(p.dst, c.to, p.src, c.from, c.n); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.conn.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, want := words(t, p.dst, pairWords), make([]uint64, pairWords)
	want[1], want[2] = 6, 9
	copy(want[128:1128], values[128:])
	// The 7 bytes at 31 are bytes 3 to 9 of the source: the upper half of word
	// 0 and two bytes of word 1.
	want[4] = 3 << (8 * 4)
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("word %d is %#x, want %#x", i, got[i], want[i])
		}
	}
}

func TestUpdateFollowsWrites(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		p := newPair(t, storeValues, longTimeout)
		const rounds = 3 * ringWords / 2 // more than a lap
		// Word i of the source is i; each round writes its number and then says so.
		values := make([]uint64, rounds+1)
		for i := range values {
			values[i] = uint64(i)
		}
		set(t, p.src, values...)
		var wg sync.WaitGroup
		wg.Go(func() {
			for k := uint64(1); k <= rounds; k++ {
				if err := errors.Join(
					p.conn.Write(p.dst, 8, p.src, 8*k, 8),
					p.conn.UpdateAndSync(p.dst, 0, k-1, k),
				); err != nil {
					t.Error(err)
					return
				}
			}
		})
		data, err := p.dst.Buffer().Slice(8, 8)
		if err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(longTimeout)
		for seen, value := []uint64{0}, []uint64{0}; seen[0] < rounds; {
			last := seen[0]
			if err := errors.Join(gpu.CopyOut(seen, p.dst.Buffer()), gpu.CopyOut(value, data)); err != nil {
				t.Fatal(err)
			}
			if value[0] < seen[0] || seen[0] < last {
				t.Fatalf("the word went from %d to %d, the data before it is of round %d", last, seen[0], value[0])
			}
			if time.Now().After(end) {
				t.Fatalf("the word stays at %d", seen[0])
			}
		}
		wg.Wait()
	})
}

func TestOtherProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+testdev.Name(t, 1), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(2*longTimeout, func() { cmd.Process.Kill() })
	defer stop.Stop()
	lines := bufio.NewScanner(out)
	line := func() string {
		lines.Scan()
		return lines.Text()
	}
	memory, err := hex.DecodeString(line())
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := hex.DecodeString(line())
	if err != nil {
		t.Fatal(err)
	}

	mine := newRegistry(t, config(testdev.Open(t, 0), 0))
	e, err := NewEndpoint(mine)
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Connect(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := mine.Import(t.Context(), memory)
	if err != nil {
		t.Fatal(err)
	}
	src, _ := newMemory(t, mine, childWords)
	values := make([]uint64, childWords)
	for round := uint64(1); round <= childRounds; round++ {
		for i := range values {
			values[i] = round
		}
		set(t, src, values...)
		if err := errors.Join(
			c.Write(dst, 8, src, 0, 8*childWords),
			c.UpdateAndSync(dst, 0, round-1, round),
			c.Flush(t.Context()),
		); err != nil {
			t.Fatal(err)
		}
	}
	if got := line(); got != "<nil>" {
		t.Errorf("the peer says %q", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestSelf(t *testing.T) {
	r := newRegistry(t, config(testdev.Open(t, 0), 0))
	m, data := newMemory(t, r, 4)
	imported, err := r.Import(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEndpoint(r)
	if err != nil {
		t.Fatal(err)
	}
	own, err := e.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Connect(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	set(t, m, 0, 0, 5)
	if err := errors.Join(
		c.Write(m, 8, imported, 16, 8),
		c.UpdateAndSync(imported, 0, 0, 9),
		c.Flush(t.Context()),
	); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(words(t, m, 4)); got != "[9 5 5 0]" {
		t.Errorf("the memory is %s", got)
	}
}

func TestFlushHonoursItsContext(t *testing.T) {
	p := newPair(t, true, longTimeout)
	release := p.hold(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	testerr.Expect(t, p.conn.Flush(ctx), mscclgo.ErrTimeout, "rank 0, peer 1", "flush")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a flush of 20 ms took %v", took)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	testerr.Expect(t, p.conn.Flush(ctx), mscclgo.ErrAborted, "rank 0, peer 1")

	// Others go on beside a flush that waits.
	flushed := make(chan error, 1)
	go func() { flushed <- p.conn.Flush(t.Context()) }()
	set(t, p.src, 3)
	if err := p.conn.Write(p.dst, 0, p.src, 0, 8); err != nil {
		t.Fatal(err)
	}
	release()
	if err := errors.Join(<-flushed, p.conn.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got := words(t, p.dst, 1)[0]; got != 3 {
		t.Errorf("the word is %d", got)
	}
}

func TestCloseWaits(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		p := newPair(t, storeValues, longTimeout)
		release := p.hold(t)
		if err := p.conn.UpdateAndSync(p.dst, 0, 0, 4); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, release)
		if err := p.conn.Close(); err != nil {
			t.Fatal(err)
		}
		if got := words(t, p.dst, 1)[0]; got != 4 {
			t.Errorf("the word is %d after closing", got)
		}
	})
}

func TestCloseTimesOut(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		p := newPair(t, storeValues, 20*time.Millisecond)
		release := p.hold(t)
		if err := p.conn.UpdateAndSync(p.dst, 0, 0, 4); err != nil {
			t.Fatal(err)
		}
		testerr.Expect(t, p.conn.Close(), mscclgo.ErrTimeout, "rank 0, peer 1", "close")
		if err := p.conn.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
		release()
		for end := time.Now().Add(longTimeout); words(t, p.dst, 1)[0] != 4; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("what was queued was lost")
			}
		}
	})
}

// TestMemoryWaits closes memory that copies use: it stays until they have ended, or
// its time is over.
func TestMemoryWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		of   func(*pair) *registeredmem.Memory
	}{
		{"own", func(p *pair) *registeredmem.Memory { return p.src }},
		{"peer's", func(p *pair) *registeredmem.Memory { return p.dst }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, longTimeout)
			release := p.hold(t)
			if err := p.conn.Write(p.dst, 0, p.src, 0, 8); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() { closed <- c.of(p).Close() }()
			select {
			case err := <-closed:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			testerr.Expect(t, p.conn.Write(p.dst, 0, p.src, 0, 8), mscclgo.ErrInvalid, "closed")
			release()
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("in vain", func(t *testing.T) {
		p := newPair(t, true, 20*time.Millisecond)
		defer p.hold(t)()
		if err := p.conn.Write(p.dst, 0, p.src, 0, 8); err != nil {
			t.Fatal(err)
		}
		testerr.Expect(t, p.src.Close(), mscclgo.ErrTimeout, "rank 0", "uses a memory")
	})
}

func TestFullRing(t *testing.T) {
	p := newPair(t, false, 20*time.Millisecond)
	release := p.hold(t)
	for k := range uint64(ringWords) {
		if err := p.conn.UpdateAndSync(p.dst, 0, k, k+1); err != nil {
			t.Fatalf("update %d: %v", k, err)
		}
	}
	testerr.Expect(t, p.conn.UpdateAndSync(p.dst, 0, ringWords, ringWords+1), mscclgo.ErrTimeout, "rank 0, peer 1")
	release()
	if err := p.conn.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.conn.UpdateAndSync(p.dst, 0, ringWords, ringWords+1); err != nil {
		t.Fatal(err)
	}
	if err := p.conn.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := words(t, p.dst, 1)[0]; got != ringWords+1 {
		t.Errorf("the word is %d", got)
	}
}

func TestWrongUse(t *testing.T) {
	p := newPair(t, true, longTimeout)
	third := newRegistry(t, config(testdev.Open(t, 2), 2))
	_, data := newMemory(t, third, pairWords)
	thirds, err := p.mine.Import(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	notImported, data := newMemory(t, p.theirs, pairWords)
	unmapped, err := p.mine.Import(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmapped.Close(); err != nil {
		t.Fatal(err)
	}
	const size = 8 * pairWords
	for name, err := range map[string]error{
		"destination nil":              p.conn.Write(nil, 0, p.src, 0, 8),
		"source nil":                   p.conn.Write(p.dst, 0, nil, 0, 8),
		"destination of this rank":     p.conn.Write(p.src, 0, p.src, 0, 8),
		"source of the peer":           p.conn.Write(p.dst, 0, p.dst, 0, 8),
		"destination of a third":       p.conn.Write(thirds, 0, p.src, 0, 8),
		"destination not imported":     p.conn.Write(notImported, 0, p.src, 0, 8),
		"destination closed":           p.conn.Write(unmapped, 0, p.src, 0, 8),
		"beyond the destination":       p.conn.Write(p.dst, size-7, p.src, 0, 8),
		"beyond the source":            p.conn.Write(p.dst, 0, p.src, size-7, 8),
		"offset beyond":                p.conn.Write(p.dst, size+1, p.src, 0, 0),
		"overflow":                     p.conn.Write(p.dst, 8, p.src, 0, 1<<64-8),
		"offset overflow":              p.conn.Write(p.dst, 1<<64-8, p.src, 0, 16),
		"word not aligned":             p.conn.UpdateAndSync(p.dst, 4, 0, 1),
		"word outside":                 p.conn.UpdateAndSync(p.dst, size, 0, 1),
		"word of this rank":            p.conn.UpdateAndSync(p.src, 0, 0, 1),
		"word that falls":              p.conn.UpdateAndSync(p.dst, 0, 2, 1),
		"word that overlaps the edges": p.conn.UpdateAndSync(p.dst, size-4, 0, 1),
	} {
		if !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1")
	}
	if err := p.conn.Close(); err != nil {
		t.Fatal(err)
	}
	testerr.Expect(t, p.conn.Write(p.dst, 0, p.src, 0, 8), mscclgo.ErrInvalid, "closed")
	testerr.Expect(t, p.conn.UpdateAndSync(p.dst, 0, 0, 1), mscclgo.ErrInvalid, "closed")
	testerr.Expect(t, p.conn.Flush(t.Context()), mscclgo.ErrInvalid, "closed")
	if got := words(t, p.dst, pairWords); got[0] != 0 || got[pairWords-1] != 0 {
		t.Errorf("wrong calls wrote %d and %d", got[0], got[pairWords-1])
	}
}

func TestManyGoroutines(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		p := newPair(t, storeValues, longTimeout)
		const goroutines, rounds = 8, 50
		values := make([]uint64, rounds+1)
		for i := range values {
			values[i] = uint64(i)
		}
		set(t, p.src, values...)
		var wg sync.WaitGroup
		for g := range uint64(goroutines) {
			wg.Go(func() {
				at := 16 * g
				for k := uint64(1); k <= rounds; k++ {
					if err := errors.Join(
						p.conn.Write(p.dst, at+8, p.src, 8*k, 8),
						p.conn.UpdateAndSync(p.dst, at, k-1, k),
						p.conn.Flush(t.Context()),
					); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		for i, v := range words(t, p.dst, 2*goroutines) {
			if v != rounds {
				t.Errorf("word %d is %d", i, v)
			}
		}
	})
}

func TestCloseUnderLoad(t *testing.T) {
	p := newPair(t, true, longTimeout)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for end := time.Now().Add(longTimeout); time.Now().Before(end); {
				err := p.conn.Write(p.dst, 0, p.src, 0, 64)
				if err == nil {
					err = p.conn.Flush(t.Context())
				}
				if err != nil {
					testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
					return
				}
			}
			t.Error("the connection was never closed")
		})
	}
	time.Sleep(10 * time.Millisecond)
	if err := p.conn.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
