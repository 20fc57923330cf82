package ib

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestTimeoutIsKept has a peer that acknowledges nothing, and one whose process applies nothing:
// the connection fails no sooner than the transport's time-out. What waits for the same peer has
// its verdict by then (communicator.Options.SHM).
func TestTimeoutIsKept(t *testing.T) {
	const timeout = 1500 * time.Millisecond
	for name, c := range map[string]struct {
		o    Options
		want string
		do   func(t *testing.T, a, b *side) error
	}{
		"no acknowledgement": {Options{Timeout: timeout, AckTimeout: time.Minute}, "acknowledged nothing for", func(t *testing.T, a, b *side) error {
			src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
			return errors.Join(b.conn.Close(), a.conn.Write(dst, 0, src, 0, 64), a.conn.Flush(t.Context()))
		}},
		"a stuck process": {Options{Timeout: timeout, NoAtomics: true}, "applied none of", func(t *testing.T, a, b *side) error {
			dst := a.imported(t, b.memory(t, 8, true))
			b.t.nics[0].mu.Lock()
			defer b.t.nics[0].mu.Unlock()
			return update(a, dst, 2*messages)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, c.o)
			start := time.Now()
			testerr.Expect(t, c.do(t, a, b), mscclgo.ErrRemote, c.want, "rank 0, peer 1")
			if took := time.Since(start); took < timeout {
				t.Errorf("it failed after %v", took)
			}
		})
	}
}

// TestStuckShortly has a peer's process apply nothing for less than the time-out, twice: it has
// applied some between, so the second wait is a new one.
func TestStuckShortly(t *testing.T) {
	const timeout = 4 * time.Second
	a, b := newPair(t, Options{NoAtomics: true, Timeout: timeout})
	dst := a.imported(t, b.memory(t, 8, true))
	for range 2 {
		b.t.nics[0].mu.Lock()
		time.AfterFunc(timeout*5/8, b.t.nics[0].mu.Unlock)
		testerr.Check(t, update(a, dst, 2*messages))
	}
	a.flush(t)
}

// update has a update the only word of dst so many times.
func update(a *side, dst *registeredmem.Memory, n uint64) error {
	for k := range n {
		if err := a.conn.UpdateAndSync(dst, 0, k, k+1); err != nil {
			return err
		}
	}
	return nil
}
