package ethernet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection/conntest"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestConnection(t *testing.T) {
	for _, v := range []struct {
		sockets        int
		tls, reachable bool // the host reaches the memory of devices
	}{{1, false, false}, {1, false, true}, {2, false, true}, {4, false, false}, {1, true, true}, {2, true, false}} {
		if detector.Enabled && v.sockets == 1 && !v.tls {
			continue // it finds no more in more of the same
		}
		t.Run(fmt.Sprintf("%d sockets, TLS %v, reachable %v", v.sockets, v.tls, v.reachable), func(t *testing.T) {
			o := loopback()
			o.Sockets, o.TLS = v.sockets, v.tls
			conntest.TestConnection(t, func(t testing.TB) (a, b *conntest.Rank) {
				ranks := [2]*rank{newRank(t, 0, o), newRank(t, 1, o)}
				if v.reachable {
					for _, r := range ranks {
						r.t.rank.Host = (*gpu.Buffer).HostBytes
					}
				}
				var links [2]*link
				links[0], links[1] = connect(t, ranks[0], ranks[1])
				var made [2]*conntest.Rank
				for i, l := range links {
					made[i] = &conntest.Rank{
						Registry: ranks[i].reg, Connection: l.Connection, Allocates: !v.reachable || v.tls || testdev.CUDA(),
						Heard: l.d.heard, Hold: links[1-i].d.holdAcks, Kill: l.d.hangUp,
					}
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

// holdAcks keeps what the peer sends from being acknowledged.
func (c *conn) holdAcks() (release func()) {
	c.controlMu.Lock()
	return sync.OnceFunc(c.controlMu.Unlock)
}

// hangUp ends all sockets, as the end of the process would.
func (c *conn) hangUp() {
	for _, nc := range c.sockets {
		tcpOf(nc).Close()
	}
}

// TestLarge writes 1 GiB at once, which takes twice as much memory; in a short run from and to device memory only.
func TestLarge(t *testing.T) {
	detector.SkipKernels(t)
	const part = 16 << 20
	for _, k := range []kind{onDevice, reachable} {
		t.Run(string(k), func(t *testing.T) {
			size := uint64(1 << 30)
			if testing.Short() && k == reachable {
				size = 64 << 20
			}
			o := loopback()
			a, b := newRank(t, 0, o), newRank(t, 1, o)
			ab, _ := connect(t, a, b)
			src, mine := memory(t, a, k, size), memory(t, b, k, size)
			// parts calls do with a part of both at a time, and what the source holds there.
			parts := func(do func(src, mine *gpu.Buffer, data []byte)) {
				data := testlink.Noise(part)
				for at := uint64(0); at < size; at += part {
					binary.LittleEndian.PutUint64(data[at/part:], at)
					from := testerr.Must(src.Buffer().Slice(at, part))(t)
					to := testerr.Must(mine.Buffer().Slice(at, part))(t)
					do(from, to, data)
				}
			}
			parts(func(src, _ *gpu.Buffer, data []byte) {
				testerr.Check(t, gpu.CopyIn(src, data))
			})
			testerr.Check(t, errors.Join(ab.Write(imported(t, a, mine), 0, src, 0, size), ab.Flush(t.Context())))
			got := make([]byte, part)
			parts(func(_, mine *gpu.Buffer, data []byte) {
				testerr.Check(t, gpu.CopyOut(got, mine))
				testcmp.Equal(t, "what arrived", got, data)
			})
		})
	}
}

func TestManyConnections(t *testing.T) {
	o := loopback()
	o.Staging = minStaging
	ranks := []*rank{newRank(t, 0, o), newRank(t, 1, o), newRank(t, 2, o)}
	var all sync.WaitGroup
	for range 4 {
		for i, a := range ranks {
			for _, b := range ranks[i:] {
				var c, back *link
				if a == b {
					one := testerr.Must(a.e.connect(t.Context(), testlink.Marshal(t, a.e)))(t)
					c = newLink(t, one)
				} else {
					c, back = connect(t, a, b)
				}
				for _, w := range []struct {
					conn     *link
					from, to *rank
				}{{c, a, b}, {back, b, a}} {
					if w.conn == nil {
						continue
					}
					src, mine := memory(t, w.from, onDevice, 4096), memory(t, w.to, onDevice, 4096)
					data := testlink.Noise(4096)
					testlink.Set(t, src, data)
					dst := imported(t, w.from, mine)
					all.Go(func() {
						testerr.Report(t, errors.Join(w.conn.Write(dst, 0, src, 0, 4096), w.conn.Flush(t.Context())))
						testcmp.Equal(t, "what arrived", testlink.Get(t, mine), data)
					})
				}
			}
		}
	}
	all.Wait()
}

func TestFlushAndWithdrawWait(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	ab, ba := connect(t, a, b)
	w := way(t, ab, a, b, pinned, onDevice)
	w.FlushAndWithdrawWait(t, func() bool { return !ba.d.rx.idle() }, testlink.HoldStream(t, ba.d.rx.Stream))
}

// A connection holds as much pinned memory as Options.Staging allows.
func TestStagingBound(t *testing.T) {
	for _, sockets := range []int{1, 3, 16} {
		for _, staging := range []uint64{0, minStaging, 3 << 20} {
			t.Run(fmt.Sprintf("%d sockets, %d", sockets, staging), func(t *testing.T) {
				o := loopback()
				o.Sockets, o.Staging = sockets, staging
				a, b := newRank(t, 0, o), newRank(t, 1, o)
				ab, ba := connect(t, a, b)
				sum := uint64(0)
				for _, c := range []*conn{ab.d, ba.d} {
					for i, s := range c.senders {
						for _, b := range s.batches {
							sum += b.staging.Size()
						}
						for _, slot := range c.rx.sockets[i].slots {
							sum += slot.staging.Size()
						}
					}
				}
				if sum == 0 || sum > a.t.opts.Staging {
					t.Errorf("a connection has %d bytes of %d", sum, a.t.opts.Staging)
				}
			})
		}
	}
}

// Where streams cannot store values, words are copied.
func TestCopiedWords(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	ab, ba := connect(t, a, b)
	ba.d.rx.StoreValues = false
	way(t, ab, a, b, onDevice, onDevice).CopiedWords(t)
}

// TestFarAhead queues more than one socket may be ahead of another, while nothing is
// acknowledged.
func TestFarAhead(t *testing.T) {
	o := loopback()
	o.Sockets = 2
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, ba := connect(t, a, b)
	mine := memory(t, b, pinned, 8)
	dst := imported(t, a, mine)
	release := ba.d.holdAcks()
	defer release()
	const updates = 2 * maxAhead
	queued := make(chan error, 1)
	go func() {
		for k := range uint64(updates) {
			if err := ab.UpdateAndSync(dst, 0, k, k+1); err != nil {
				queued <- err
				return
			}
		}
		queued <- nil
	}()
	taken := func() uint64 {
		ab.d.Mu.Lock()
		defer ab.d.Mu.Unlock()
		return ab.d.Taken
	}
	testlink.Eventually(t, "as much is sent as may be", func() bool { return taken() > maxAhead-batchFrames })
	time.Sleep(20 * time.Millisecond)
	if n := taken(); n > maxAhead {
		t.Errorf("%d operations are sent and none is acknowledged; the peer allows %d", n, maxAhead)
	}
	release()
	testerr.Check(t, errors.Join(<-queued, ab.Flush(t.Context())))
	if got := binary.NativeEndian.Uint64(testlink.Get(t, mine)); got != updates {
		t.Errorf("the word is %d after %d updates", got, updates)
	}
}

// TestCompletionsInOrder has one socket post a completion while another applies an
// operation. The completion counts it: else a later completion could count less than
// an earlier one, whose acknowledgement it replaces.
func TestCompletionsInOrder(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	_, ba := connect(t, a, b)
	rx := ba.d.rx
	rx.mu.Lock()
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		(&socket{rx: rx, copies: true}).post()
	}()
	time.Sleep(20 * time.Millisecond) // until it waits for mu
	f := message.Frame{Kind: message.Update, Total: 1}
	if ok, err := rx.order.enter(&f); !ok || err != nil {
		t.Fatal(ok, err)
	}
	rx.order.leave(&f)
	rx.mu.Unlock()
	<-posted
	rx.mu.Lock()
	defer rx.mu.Unlock()
	if got := rx.ring[0].ops; got != 1 {
		t.Errorf("the completion counts %d operations, 1 is applied", got)
	}
}

// TestClosedMeanwhile has the driver find a memory closed that the front found open.
func TestClosedMeanwhile(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	ab, _ := connect(t, a, b)
	own, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	testdriver.ClosedMeanwhile(t, ab.Connection, ab.d, own, imported(t, a, mine))
}
