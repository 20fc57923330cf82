package cudaipc

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestClosedPastTheTimeout closes all that a copy uses while the copy is held: the
// memories, their buffers and the connection, in either order. The copy must find the
// memory when it is released, and arrive.
func TestClosedPastTheTimeout(t *testing.T) {
	for _, connectionFirst := range []bool{true, false} {
		for _, storeValues := range []bool{true, false} {
			p := newPair(t, storeValues, 30*time.Millisecond)
			theirs := p.theirs.Find(p.dst.ID())
			want := make([]uint64, pairWords)
			for i := range want {
				want[i] = uint64(i) + 7
			}
			set(t, p.src, want...)
			from := p.src.Buffer()
			release := p.hold(t)
			testerr.Check(t, p.conn.Write(p.dst, 0, p.src, 0, 8*pairWords))
			closes := []func() error{p.conn.Close, p.src.Close, p.dst.Close}
			if !connectionFirst {
				slices.Reverse(closes)
			}
			for _, f := range closes {
				testerr.Expect(t, f(), mscclgo.ErrTimeout, "rank 0")
			}
			testerr.Report(t, from.Close())
			release()
			for end := time.Now().Add(20 * time.Second); !slices.Equal(words(t, theirs, pairWords), want); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the copy has not arrived")
				}
			}
			// Nothing is under way now, so that nothing keeps a memory from being closed.
			fresh, _ := newMemory(t, p.mine, 1)
			for end := time.Now().Add(20 * time.Second); fresh.Close() != nil; {
				if time.Now().After(end) {
					t.Fatal("closing a memory still waits for the copy")
				}
				fresh, _ = newMemory(t, p.mine, 1)
			}
			testerr.Report(t, p.mine.Close())
		}
	}
}

// TestCloseWithoutMarks closes what a copy uses, the source or the connection, while no event can
// be made to mark the copy with. Close waits for it all the same.
func TestCloseWithoutMarks(t *testing.T) {
	for _, first := range []string{"source", "connection"} {
		t.Run(first, func(t *testing.T) {
			p := newPair(t, true, longTimeout)
			release := p.hold(t)
			testerr.Check(t, p.conn.Write(p.dst, 0, p.src, 0, 8*pairWords))
			gone := testdev.Open(t, 0)
			testerr.Check(t, gone.Close())
			p.driver.device = gone
			_, err := p.conn.Mark()
			testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
			if first == "connection" {
				go p.conn.Close()
				for end := time.Now().Add(longTimeout); ; time.Sleep(time.Millisecond) {
					if _, err := p.conn.Mark(); strings.Contains(err.Error(), "the connection is closed") {
						break
					}
					if time.Now().After(end) {
						t.Fatal("the connection is not being closed")
					}
				}
			}
			testdriver.CloseWaits(t, p.src, release)
		})
	}
}
