package ethernet

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestBadFrames(t *testing.T) {
	o := loopback()
	data := func(change func(*message.Frame)) message.Frame {
		f := message.Frame{Kind: message.Data, Length: 8, Total: 8}
		change(&f)
		return f
	}
	update := func(change func(*message.Frame)) message.Frame {
		f := message.Frame{Kind: message.Update, Total: 1}
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		frame message.Frame
		says  string
	}{
		"unknown memory":    {data(func(f *message.Frame) { f.Memory = 99 }), "memory 99"},
		"one past the end":  {data(func(f *message.Frame) { f.Offset = 64 - 7 }), "which has 64"},
		"far offset":        {data(func(f *message.Frame) { f.Offset = 1<<64 - 8 }), "which has 64"},
		"length of 2^63":    {data(func(f *message.Frame) { f.Length, f.Total = 1<<63, 1<<63 }), "which has 64"},
		"longer than total": {data(func(f *message.Frame) { f.Total = 7 }), "in a write of 7"},
		"empty":             {data(func(f *message.Frame) { f.Length = 0 }), "0 bytes"},
		"other operation":   {data(func(f *message.Frame) { f.Op = 3 }), "operation 3"},
		"word past the end": {update(func(f *message.Frame) { f.Offset = 64 }), "which has 64"},
		"odd word":          {update(func(f *message.Frame) { f.Offset = 4 }), "not aligned"},
		"falling word":      {update(func(f *message.Frame) { f.Length = 2 }), "down to"},
		"read past the end": {message.Frame{Kind: message.Read, Offset: 60, Length: 5, Total: 5}, "which has 64"},
		"read of 2^63":      {message.Frame{Kind: message.Read, Length: 1 << 63, Total: 1 << 63}, "which has 64"},
		"read of the next":  {message.Frame{Kind: message.Read, Op: 3, Length: 1, Total: 1}, "operation 3"},
		"addition past end": {message.Frame{Kind: message.Add, Offset: 64, Length: 8}, "which has 64"},
		"odd addition":      {message.Frame{Kind: message.Add, Offset: 12, Length: 8}, "not aligned"},
		"odd exchange":      {message.Frame{Kind: message.Exchange, Offset: 1, Length: 8}, "not aligned"},
		"wide exchange":     {message.Frame{Kind: message.Exchange, Length: 16}, "a word of 16 bytes"},
		"acknowledgement":   {message.Frame{Kind: message.Ack}, "data socket"},
		"kind":              {message.Frame{Kind: 14}, "unknown kind 14"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRank(t, 1, o)
			device, host := memory(t, b, onDevice, 64), memory(t, b, pinned, 64)
			for _, m := range []uint32{device.ID(), host.ID()} {
				r := newRogue(t, b, 1)
				f := c.frame
				if f.Kind != message.Ack {
					f.Memory += m
				}
				r.send(t, 0, f, 1, 2, 3, 4, 5, 6, 7, 8)
				says := c.says
				if name == "unknown memory" && m != 0 {
					says = "memory 100"
				}
				err := failed(t, r.conn)
				testerr.Expect(t, err, mscclgo.ErrRemote, says)
			}
			for _, m := range []*registeredmem.Memory{device, host} {
				testcmp.Equal(t, "the memory", testlink.Get(t, m), make([]byte, 64))
			}
		})
	}
}

func TestBadBytes(t *testing.T) {
	o := loopback()
	b := newRank(t, 1, o)
	memory(t, b, onDevice, 64)
	onControl := func(f message.Frame) func(*rogue) {
		return func(r *rogue) {
			head := make([]byte, message.FrameSize)
			f.Encode(head)
			r.control.Write(head)
		}
	}
	for name, c := range map[string]struct {
		send func(*rogue)
		says string
	}{
		"noise":           {func(r *rogue) { r.data[0].Write(testlink.Noise(4096)) }, "version"},
		"control noise":   {func(r *rogue) { r.control.Write(testlink.Noise(4096)) }, "version"},
		"data on control": {onControl(message.Frame{Kind: message.Data, Length: 1, Total: 1}), "control socket"},
		"false ack":       {onControl(message.Frame{Kind: message.Ack, Op: 1}), "0 were sent"},
		"other totals": {func(r *rogue) {
			r.send(t, 0, message.Frame{Kind: message.Data, Length: 1, Total: 3}, 0)
			r.send(t, 1, message.Frame{Kind: message.Data, Length: 1, Total: 4}, 0)
		}, "as one"},
		"too much": {func(r *rogue) {
			r.send(t, 0, message.Frame{Kind: message.Data, Length: 3, Total: 4}, 0, 0, 0)
			r.send(t, 1, message.Frame{Kind: message.Data, Length: 3, Total: 4}, 0, 0, 0)
		}, "more than the 4 bytes"},
		"far ahead":   {func(r *rogue) { r.send(t, 1, message.Frame{Kind: message.Data, Op: 1 << 40, Length: 1, Total: 1}, 0) }, "is due"},
		"left":        {onControl(message.Frame{Kind: message.Bye}), "closed the connection"},
		"gone midway": {func(r *rogue) { r.data[0].Write([]byte{4, 1, 0}); r.data[0].Close() }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRogue(t, b, 2)
			c.send(r)
			testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, c.says)
		})
	}
}

// A peer that hangs up all of its sockets: the control socket says so, though a data socket
// may end first.
func TestHangsUp(t *testing.T) {
	b := newRank(t, 1, loopback())
	b.t.rank.Parting = testlink.Timeout
	r := newRogue(t, b, 2)
	r.hangUp()
	testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, "hung up")
}

// A peer that dies in the middle of a write, or falls silent there.
func TestHalfAWrite(t *testing.T) {
	for _, k := range kinds {
		for _, dies := range []bool{true, false} {
			o := loopback()
			if !dies {
				o.Timeout = 200 * time.Millisecond
			}
			b := newRank(t, 1, o)
			m := memory(t, b, k, 1<<20)
			r := newRogue(t, b, 1)
			r.send(t, 0, message.Frame{Kind: message.Data, Length: 1 << 20, Total: 1 << 20}, make([]byte, 1<<19)...)
			says := "neither acknowledged nor sent"
			if dies {
				says = "" // one socket or the other says it first
				r.hangUp()
			}
			testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, says)
			testerr.Report(t, m.Close())
		}
	}
}

// Memory that is closed while a peer is in the middle of a write to it.
func TestWithdrawnInMidWrite(t *testing.T) {
	for _, k := range kinds {
		b := newRank(t, 1, loopback())
		m := memory(t, b, k, 1<<20)
		r := newRogue(t, b, 1)
		r.send(t, 0, message.Frame{Kind: message.Data, Length: 1 << 20, Total: 1 << 20}, make([]byte, 1<<19)...)
		testlink.Eventually(t, "the write begins", r.conn.d.rx.midFrame)
		testerr.Check(t, m.Close())
		r.data[0].Write(make([]byte, 1<<19))
		testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, "was closed meanwhile")
	}
}

// A peer that takes everything and acknowledges nothing fails every call.
func TestSilentPeer(t *testing.T) {
	o := loopback()
	o.Timeout = 200 * time.Millisecond
	b := newRank(t, 1, o)
	r := newRogue(t, b, 1)
	src, dst := memory(t, b, onDevice, 4096), rogueMemory(t, r, b)
	mark := func() connection.Mark {
		return testerr.Must(r.conn.Mark())(t)
	}
	before := mark()
	testerr.Check(t, r.conn.Write(dst, 0, src, 0, 4096))
	behind := mark()
	start := time.Now()
	testerr.Expect(t, r.conn.Flush(t.Context()), mscclgo.ErrRemote, "rank 1, peer 0", "neither acknowledged")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a timeout of 200 ms took %v", took)
	}
	if ok, err := before.Done(); !ok || err != nil {
		t.Errorf("a mark before all is done: %v, %v", ok, err)
	}
	_, err := behind.Done()
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0")
	testerr.Expect(t, r.conn.Write(dst, 0, src, 0, 1), mscclgo.ErrRemote, "rank 1, peer 0")
	testerr.Expect(t, r.conn.UpdateAndSync(dst, 0, 0, 1), mscclgo.ErrRemote, "rank 1, peer 0")
	if err := r.conn.Close(); err != nil { // which the calls have returned
		t.Error(err)
	}
}

// A peer that dies while a write's bytes are copied by the device, or are being sent by the host.
// Closing the source waits for that: its owner may free it then.
func TestDiesDuringCopies(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			b := newRank(t, 1, loopback())
			src := memory(t, b, k, 64)
			reached, gate := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(gate) })
			defer release()
			if k != onDevice {
				// take looks first, and then fill, which holds no lock.
				looks := 0
				b.t.rank.Host = func(buf *gpu.Buffer) []byte {
					if buf == src.Buffer() {
						if looks++; looks == 2 {
							close(reached)
							<-gate
						}
					}
					return b.host(buf)
				}
			}
			r := newRogue(t, b, 1)
			if k == onDevice {
				release = testlink.HoldStream(t, r.conn.d.senders[0].stream)
				close(reached)
			}
			testerr.Check(t, r.conn.Write(rogueMemory(t, r, b), 0, src, 0, 64))
			testlink.Eventually(t, "the write is taken", func() bool {
				r.conn.d.Mu.Lock()
				defer r.conn.d.Mu.Unlock()
				return r.conn.d.Taken == 1
			})
			testlink.Eventually(t, "it is being copied", func() bool {
				select {
				case <-reached:
					return true
				default:
					return false
				}
			})
			r.hangUp()
			if err := failed(t, r.conn); !errors.Is(err, mscclgo.ErrRemote) {
				t.Error(err)
			}
			testdriver.CloseWaits(t, src, release)
		})
	}
}

// Close does not wait for a peer that reads nothing while this rank closes memories.
func TestCloseWhilePeerReadsNothing(t *testing.T) {
	b := newRank(t, 1, loopback())
	r := newRogue(t, b, 1)
	c := r.conn.d
	locked := make(chan struct{})
	go func() {
		c.controlMu.Lock()
		defer c.controlMu.Unlock()
		close(locked)
		c.control.Write(make([]byte, 64<<20)) // as tellGone, once the sockets' buffers are full
	}()
	<-locked
	b.t.patience = 100 * time.Millisecond
	start := time.Now()
	r.conn.Close()
	if took := time.Since(start); took > testlink.Timeout/2 {
		t.Errorf("Close took %v", took)
	}
}

// A peer closes the connection. Its data socket is reset, or ends in the middle of a write,
// before what it says of that has arrived.
func TestReasonComesAfterTheReset(t *testing.T) {
	for _, reset := range []bool{true, false} {
		b := newRank(t, 1, loopback())
		m := memory(t, b, onDevice, 64)
		r := newRogue(t, b, 1)
		b.t.rank.Parting = testlink.Timeout
		r.send(t, 0, message.Frame{Kind: message.Data, Memory: m.ID(), Length: 64, Total: 64}, 1, 2, 3)
		if reset {
			tcpOf(r.data[0]).SetLinger(0)
		}
		r.data[0].Close()
		select {
		case <-r.conn.d.Ctx.Done():
			t.Error("the connection ended before the reason came")
		case <-time.After(100 * time.Millisecond):
		}
		bye := make([]byte, message.FrameSize)
		(&message.Frame{Kind: message.Bye}).Encode(bye)
		testerr.Must(r.control.Write(bye))(t)
		testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, "has closed the connection")
	}
}

// After a peer has closed in good order, calls say so and Close is no error.
func TestPeerCloses(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	ab, ba := connect(t, a, b)
	src, dst := memory(t, a, onDevice, 64), imported(t, a, memory(t, b, onDevice, 64))
	testerr.Check(t, ab.Write(dst, 0, src, 0, 64))
	testerr.Check(t, ab.Flush(t.Context()))
	testerr.Report(t, ba.Close())
	testerr.Expect(t, failed(t, ab), mscclgo.ErrRemote, "has closed the connection")
	testerr.Expect(t, ab.Write(dst, 0, src, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Report(t, ab.Close())
}

// Nothing is left of connections that were closed.
func TestNoLeaks(t *testing.T) {
	for _, tls := range []bool{false, true} {
		o := loopback()
		o.TLS, o.Staging = tls, minStaging
		a, b := newRank(t, 0, o), newRank(t, 1, o)
		cycle := func() {
			ab, ba := connect(t, a, b)
			self := testerr.Must(a.e.Connect(t.Context(), testlink.Marshal(t, a.e)))(t)
			for _, c := range []*connection.Connection{ab.Connection, ba.Connection, self} {
				testerr.Check(t, c.Close())
			}
		}
		cycle()
		files, routines := openFiles(t), runtime.NumGoroutine()
		for range 33 { // of 3 connections each
			cycle()
		}
		testlink.Eventually(t, "files and goroutines are as before", func() bool {
			return openFiles(t) <= files && runtime.NumGoroutine() <= routines
		})
		if n := len(message.All[*conn](&a.t.rank)) + len(message.All[*conn](&b.t.rank)); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	}
}

// openFiles counts this process's descriptors of sockets.
func openFiles(t *testing.T) (n int) {
	t.Helper()
	all := testerr.Must(os.ReadDir("/proc/self/fd"))(t)
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// TestRefusals has the peer refuse what was on its way. Both ranks' errors say why.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		send  func(t *testing.T, a *link, dst, src *registeredmem.Memory) error
		spoil func(b *rank, m *registeredmem.Memory)
		says  string
		peer  string
	}{
		"write to closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.Write(dst, 128, src, 0, 64)
			}, withdrawQuietly,
			"rank 1 refused a write of 64 bytes at 128 to memory 0: it was closed", "memory 0, which is closed",
		},
		"large write to closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.Write(dst, 0, src, 0, src.Size())
			}, withdrawQuietly,
			"part of a write of 16777216, to memory 0: it was closed", "memory 0, which is closed",
		},
		"update of closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.UpdateAndSync(dst, 8, 0, 1)
			}, withdrawQuietly,
			"rank 1 refused a new value of the word at 8 of memory 0: it was closed", "memory 0, which is closed",
		},
		"read of closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.Read(src, 0, dst, 128, 64)
			}, withdrawQuietly,
			"rank 1 refused a read of 64 bytes at 128 of memory 0: it was closed", "memory 0, which is closed",
		},
		"addition to closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error { return a.Add(dst, 8, 1) }, withdrawQuietly,
			"rank 1 refused an addition at 8 of memory 0: it was closed", "memory 0, which is closed",
		},
		"exchange in closed memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.Exchange(src, 0, dst, 16, 1)
			}, withdrawQuietly,
			"rank 1 refused an exchange at 16 of memory 0: it was closed", "memory 0, which is closed",
		},
		"unknown memory": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.WriteBytes(dst, 0, []byte{1})
			},
			func(b *rank, m *registeredmem.Memory) {
				withdrawQuietly(b, m)
				b.t.rank.Targets = new(target.Table)
			},
			"rank 1 refused a write of 1 bytes at 0 to memory 0: there is no such memory", "never was registered",
		},
		"outside": {
			func(t *testing.T, a *link, dst, src *registeredmem.Memory) error {
				return a.d.Submit(connection.Operation{Kind: connection.WriteBytes, Theirs: dst, Offset: 1 << 30, N: 1, Data: []byte{1}})
			}, nil,
			"it lies outside the memory", "which has 16777216",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := loopback()
			o.Staging = minStaging
			a, b := newRank(t, 0, o), newRank(t, 1, o)
			a.t.rank.Parting, b.t.rank.Parting = testlink.Timeout, testlink.Timeout
			ab, ba := connect(t, a, b)
			src, mine := memory(t, a, onDevice, 16<<20), memory(t, b, onDevice, 16<<20)
			dst := imported(t, a, mine)
			if c.spoil != nil {
				c.spoil(b, mine)
			}
			begun := time.Now()
			testerr.Check(t, c.send(t, ab, dst, src))
			testerr.Expect(t, ab.Flush(t.Context()), mscclgo.ErrRemote, "rank 0, peer 1", c.says)
			testerr.Expect(t, failed(t, ba), mscclgo.ErrRemote, c.peer)
			if took := time.Since(begun); took > testlink.Timeout/2 {
				t.Errorf("it took %v, so the peer waited for nothing", took)
			}
		})
	}
}

// withdrawQuietly closes a memory so that the peers do not hear of it, as if that were
// on its way.
func withdrawQuietly(b *rank, m *registeredmem.Memory) { b.t.rank.Targets.Remove(m.ID()) }
