package shm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/conntest"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/spin"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestConnection(t *testing.T) {
	for _, v := range []struct {
		ring      uint64
		reachable bool // the host reaches the memory of devices
	}{{0, false}, {0, true}, {minRing, false}} {
		t.Run(fmt.Sprintf("ring %d, reachable %v", v.ring, v.reachable), func(t *testing.T) {
			conntest.TestConnection(t, func(t testing.TB) (a, b *conntest.Rank) {
				ranks := [2]*rank{newRank(t, 0, Options{Ring: v.ring}), newRank(t, 1, Options{Ring: v.ring})}
				var made [2]*conntest.Rank
				for i, r := range ranks {
					r.reachable = v.reachable
					l := connect(t, r, ranks[1-i])
					made[i] = &conntest.Rank{
						Registry: r.reg, Connection: l.Connection, Allocates: !v.reachable || testdev.CUDA(),
						Heard: l.d.heard, Hold: ranks[1-i].hold, Kill: r.die,
					}
				}
				for _, r := range ranks {
					receiverOf(t, r) // which dies with the rank
				}
				return made[0], made[1]
			})
		})
	}
}

// heard reports whether the peer has said that it has closed a memory.
func (c *conn) heard(m *registeredmem.Memory) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Gone.Has(m.ID())
}

// TestLarge writes far more than a ring holds, of sizes and at places that are odd.
func TestLarge(t *testing.T) {
	for _, from := range kinds {
		for _, to := range kinds {
			t.Run(fmt.Sprintf("from %s to %s", from, to), func(t *testing.T) {
				const size = 48<<20 + 321
				a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
				ab := connect(t, a, b)
				data := testlink.Noise(size)
				src, mine := memory(t, a, from, size), memory(t, b, to, size)
				dst := imported(t, a, mine)
				testlink.Set(t, src, data)
				for at, n := uint64(0), uint64(1); at < size; at, n = at+n, n*7+3 {
					testerr.Check(t, ab.Write(dst, at, src, at, min(n, size-at)))
				}
				testerr.Check(t, ab.Flush(t.Context()))
				testcmp.Equal(t, "what arrived", testlink.Get(t, mine), data)
			})
		}
	}
}

// TestManyConnections has three ranks write to each other and to themselves over several
// connections.
func TestManyConnections(t *testing.T) {
	o := Options{Ring: minRing}
	ranks := []*rank{newRank(t, 0, o), newRank(t, 1, o), newRank(t, 2, o)}
	var all sync.WaitGroup
	for range 3 {
		for _, a := range ranks {
			for _, b := range ranks {
				c := connect(t, a, b)
				src, mine := memory(t, a, onDevice, 4096), memory(t, b, onDevice, 4096)
				data := testlink.Noise(4096)
				testlink.Set(t, src, data)
				dst := imported(t, a, mine)
				if a == b {
					dst = mine
				}
				all.Go(func() {
					testerr.Report(t, errors.Join(c.Write(dst, 0, src, 0, 4096), c.Flush(t.Context())))
					testcmp.Equal(t, "what arrived", testlink.Get(t, mine), data)
				})
			}
		}
	}
	all.Wait()
}

// TestFlushAndWithdrawWait has copies into a memory under way at the receiver.
func TestFlushAndWithdrawWait(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	w := way(t, connect(t, a, b), a, b, pinned, onDevice)
	r := receiverOf(t, b)
	w.FlushAndWithdrawWait(t, func() bool { return r.begun.Load() == 1 }, testlink.HoldStream(t, r.Stream))
}

// TestSlowDevices holds the sender's or the receiver's stream while more is queued than the
// ring and its batches hold.
func TestSlowDevices(t *testing.T) {
	for _, which := range []string{"sender", "receiver"} {
		t.Run(which, func(t *testing.T) {
			const size = 2 * minRing
			o := Options{Ring: minRing}
			a, b := newRank(t, 0, o), newRank(t, 1, o)
			ab := connect(t, a, b)
			src, mine := memory(t, a, onDevice, size), memory(t, b, onDevice, size)
			dst := imported(t, a, mine)
			data := testlink.Noise(size)
			testlink.Set(t, src, data)
			s := ab.d.stream
			if which == "receiver" {
				s = receiverOf(t, b).Stream
			}
			release := testlink.HoldStream(t, s)
			for at := uint64(0); at < size; at += 256 {
				testerr.Check(t, ab.Write(dst, at, src, at, 256))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			testerr.Expect(t, ab.Flush(ctx), mscclgo.ErrTimeout)
			release()
			testerr.Check(t, ab.Flush(t.Context()))
			testcmp.Equal(t, "what arrived", testlink.Get(t, mine), data)
		})
	}
}

// TestRingBound says how much pinned memory a connection has.
func TestRingBound(t *testing.T) {
	for ring, want := range map[uint64]uint64{0: 4<<20 + 68<<10, minRing: minRing + 68<<10, 1 << 20: 1<<20 + 68<<10} {
		a, b := newRank(t, 0, Options{Ring: minRing}), newRank(t, 1, Options{Ring: ring})
		ab := connect(t, a, b)
		for _, r := range []*ringEnd{{"sender", ab.d.ring}, {"receiver", receiverOf(t, b).ring}} {
			if got := r.ring.buffer.Size(); got != want {
				t.Errorf("with Options.Ring %d at the receiver the %s has %d bytes pinned, want %d", ring, r.of, got, want)
			}
		}
	}
}

type ringEnd struct {
	of   string
	ring *ring
}

func TestOptions(t *testing.T) {
	r := newRank(t, 0, Options{})
	for _, o := range []Options{{Ring: minRing - 4096}, {Ring: maxRing + 4096}, {Ring: minRing + 64}, {Timeout: -1}} {
		_, err := New(r.reg, o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "Options.", "rank 0")
	}
	_, err := New(nil, Options{})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "nil")
	_, err = New(r.reg, Options{}) // the registry has one
	testerr.Expect(t, err, mscclgo.ErrInvalid, "SHM")
}

// Where streams cannot store values, words are copied.
func TestCopiedWords(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	ab := connect(t, a, b)
	receiverOf(t, b).StoreValues = false
	way(t, ab, a, b, onDevice, onDevice).CopiedWords(t)
}

// Machines with few cores do not spin; here they do.
func TestSpinning(t *testing.T) {
	for _, room := range []int32{0, 1, 8} {
		a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
		for _, r := range []*rank{a, b} {
			r.t.rank.Spin.SetRoom(room)
		}
		ab := connect(t, a, b)
		src, mine := memory(t, a, onDevice, 4096), memory(t, b, onDevice, 4096)
		dst := imported(t, a, mine)
		for i := range uint64(50) {
			testerr.Check(t, errors.Join(ab.Write(dst, 8, src, 0, 1000), ab.UpdateAndSync(dst, 0, i, i+1), ab.Flush(t.Context())))
			if i%10 == 0 {
				time.Sleep(2 * spin.Time) // all sleep
			}
		}
		if err := errors.Join(ab.Close(), b.t.Close()); err != nil { // while some spin
			t.Error(err)
		}
		for _, r := range []*rank{a, b} {
			if left := r.t.rank.Spin.Room(); left != room {
				t.Errorf("there was room for %d to spin, then for %d", room, left)
			}
		}
	}
}

// Nothing is left of connections that were closed.
func TestNoLeaks(t *testing.T) {
	o := Options{Ring: minRing}
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	left := func() int {
		n := 0
		for _, r := range []*rank{a, b} {
			conns, receivers := message.All[*conn](&r.t.rank), message.All[*receiver](&r.t.rank)
			n += len(conns) + len(receivers)
		}
		return n
	}
	cycle := func() {
		for _, ends := range [][2]*rank{{a, b}, {b, a}, {a, a}} {
			c := testerr.Must(ends[0].e.Connect(t.Context(), testlink.Marshal(t, ends[1].e)))(t)
			defer func(c *connection.Connection) {
				testerr.Report(t, c.Close())
			}(c)
		}
	}
	cycle()
	testlink.Eventually(t, "the first connections are gone", func() bool { return left() == 0 })
	files, routines := testlink.OpenFiles(t), runtime.NumGoroutine()
	for range 33 {
		cycle()
	}
	testlink.Eventually(t, "files, goroutines and connections are as before", func() bool {
		return left() == 0 && testlink.OpenFiles(t) <= files && runtime.NumGoroutine() <= routines
	})
}

// TestClosedMeanwhile has the driver find a memory closed that the front found open.
func TestClosedMeanwhile(t *testing.T) {
	a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
	ab := connect(t, a, b)
	own, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	testdriver.ClosedMeanwhile(t, ab.Connection, ab.d, own, imported(t, a, mine))
}
