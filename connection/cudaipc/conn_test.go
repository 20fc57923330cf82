package cudaipc

import (
	"bufio"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/conntest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const longTimeout = 20 * time.Second

// bothWays runs a test with values that the stream stores, and with the ring.
func bothWays(t *testing.T, test func(t *testing.T, storeValues bool)) {
	t.Run("stream values", func(t *testing.T) { test(t, true) })
	t.Run("ring of words", func(t *testing.T) { test(t, false) })
}

func TestConnection(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		conntest.TestConnection(t, func(t testing.TB) (a, b *conntest.Rank) {
			var ranks [2]*conntest.Rank
			for i := range ranks {
				registry := newRegistry(t, config(testdev.Open(t, i), i))
				d, c := newConnection(t, registry, 1-i, storeValues)
				ranks[i] = &conntest.Rank{
					Registry: registry, Connection: c, Allocates: !testdev.CUDA(),
					Hold: func() func() { return testlink.HoldStream(t, d.stream) },
				}
			}
			return ranks[0], ranks[1]
		})
	})
}

func TestOtherProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+testdev.Name(t, 1), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = t.Output()
	in := testerr.Must(cmd.StdinPipe())(t)
	out := testerr.Must(cmd.StdoutPipe())(t)
	testerr.Check(t, cmd.Start())
	stop := time.AfterFunc(2*longTimeout, func() { cmd.Process.Kill() })
	defer stop.Stop()
	lines := bufio.NewScanner(out)
	line := func() string {
		lines.Scan()
		return lines.Text()
	}
	memory := testerr.Must(hex.DecodeString(line()))(t)
	endpoint := testerr.Must(hex.DecodeString(line()))(t)

	mine := newRegistry(t, config(testdev.Open(t, 0), 0))
	e := testerr.Must(NewEndpoint(mine))(t)
	c := testerr.Must(e.Connect(t.Context(), endpoint))(t)
	dst := testerr.Must(mine.Import(t.Context(), memory))(t)
	src, _ := newMemory(t, mine, childWords)
	values := make([]uint64, childWords)
	for round := uint64(1); round <= childRounds; round++ {
		for i := range values {
			values[i] = round
		}
		set(t, src, values...)
		testerr.Check(t, errors.Join(
			c.Write(dst, 8, src, 0, 8*childWords),
			c.UpdateAndSync(dst, 0, round-1, round),
			c.Flush(t.Context()),
		))
	}
	if got := line(); got != "<nil>" {
		t.Errorf("the peer says %q", got)
	}
	testerr.Report(t, c.Close())
	in.Close()
	testerr.Report(t, cmd.Wait())
}

func TestSelf(t *testing.T) {
	r := newRegistry(t, config(testdev.Open(t, 0), 0))
	m, data := newMemory(t, r, 4)
	imported := testerr.Must(r.Import(t.Context(), data))(t)
	e := testerr.Must(NewEndpoint(r))(t)
	own := testerr.Must(e.MarshalBinary())(t)
	c := testerr.Must(e.Connect(t.Context(), own))(t)
	defer c.Close()
	set(t, m, 0, 0, 5)
	testerr.Check(t, errors.Join(
		c.Write(m, 8, imported, 16, 8),
		c.UpdateAndSync(imported, 0, 0, 9),
		c.Flush(t.Context()),
	))
	testcmp.Equal(t, "the memory", words(t, m, 4), []uint64{9, 5, 5, 0})
}

func TestCloseTimesOut(t *testing.T) {
	bothWays(t, func(t *testing.T, storeValues bool) {
		p := newPair(t, storeValues, 20*time.Millisecond)
		release := p.hold(t)
		testerr.Check(t, p.conn.UpdateAndSync(p.dst, 0, 0, 4))
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
			testerr.Check(t, p.conn.Write(p.dst, 0, p.src, 0, 8))
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
	t.Run("too long", func(t *testing.T) {
		p := newPair(t, true, 20*time.Millisecond)
		defer p.hold(t)()
		testerr.Check(t, p.conn.Write(p.dst, 0, p.src, 0, 8))
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
	testerr.Check(t, p.conn.Flush(t.Context()))
	testerr.Check(t, p.conn.UpdateAndSync(p.dst, 0, ringWords, ringWords+1))
	testerr.Check(t, p.conn.Flush(t.Context()))
	if got := words(t, p.dst, 1)[0]; got != ringWords+1 {
		t.Errorf("the word is %d", got)
	}
}
