package ethernet

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

// TestAnswer has a peer read memory of all kinds and looks at the frames that it gets.
func TestAnswer(t *testing.T) {
	const size = 1 << 20
	for _, k := range kinds {
		b := newRank(t, 1, loopback())
		m := memory(t, b, k, size)
		testlink.Set(t, m, testlink.Noise(size))
		r := newRogue(t, b, 1)
		got, op := make([]byte, size), uint64(0)
		for _, want := range []struct{ offset, n uint64 }{{7, 1}, {0, size}, {size - 9, 9}} {
			r.send(t, 0, message.Frame{Kind: message.Read, Op: op, Memory: m.ID(), Offset: want.offset, Length: want.n, Total: want.n})
			for at := uint64(0); at < want.n; {
				head := make([]byte, message.FrameSize)
				testerr.Must(io.ReadFull(r.data[0], head))(t)
				f := testerr.Must(message.Decode(head))(t)
				if f.Kind != message.Answer || f.Op != op || f.Offset != at || f.Total != want.n {
					t.Fatalf("%v memory: the answer to %d bytes, from %d on, is %+v", k, want.n, at, f)
				}
				testerr.Must(io.ReadFull(r.data[0], got[at:at+f.Length]))(t)
				at += f.Length
			}
			testcmp.Equal(t, "what was read", got[:want.n], testlink.Noise(size)[want.offset:want.offset+want.n])
			op++
		}
	}
}

// TestClosedWhileRead closes a memory of which a peer has asked for more than sockets hold,
// and takes nothing. That does not depend on the peer.
func TestClosedWhileRead(t *testing.T) {
	for _, k := range kinds {
		b := newRank(t, 1, loopback())
		m := memory(t, b, k, 32<<20)
		r := newRogue(t, b, 1)
		for op := range uint64(readDepth) {
			r.send(t, 0, message.Frame{Kind: message.Read, Op: op, Memory: m.ID(), Length: 32 << 20, Total: 32 << 20})
		}
		testlink.Eventually(t, "all is asked and the answer begins", func() bool {
			r.conn.d.Mu.Lock()
			defer r.conn.d.Mu.Unlock()
			return r.conn.d.answers.ready.Load() == readDepth && r.conn.d.answers.ring[0].given > 0
		})
		begun := time.Now()
		testerr.Check(t, m.Close())
		if took := time.Since(begun); took > testlink.Timeout/2 {
			t.Errorf("%v memory: its Close waited %v for a peer", k, took)
		}
		go io.Copy(io.Discard, r.data[0])
		testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, "was closed meanwhile")
	}
}

// TestWrongAnswers has a peer ask for more than it may, and answer what nobody has asked, or
// other than it was asked.
func TestWrongAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		send func(t *testing.T, r *rogue, memory uint32)
		says string
	}{
		"too many reads": {func(t *testing.T, r *rogue, memory uint32) {
			for op := range uint64(2 * readDepth) {
				f, b := message.Frame{Kind: message.Read, Op: op, Memory: memory, Length: 1 << 20, Total: 1 << 20}, make([]byte, message.FrameSize)
				f.Encode(b)
				if _, err := r.data[0].Write(b); err != nil {
					return // it has hung up
				}
			}
		}, "256 of its reads are not answered"},
		"no read": {func(t *testing.T, r *rogue, _ uint32) {
			r.send(t, 0, message.Frame{Kind: message.Answer, Op: 1, Length: 1, Total: 1}, 0)
		}, "no read that waits"},
		"a write": {func(t *testing.T, r *rogue, _ uint32) {
			r.send(t, 0, message.Frame{Kind: message.Answer, Op: 7, Length: 1, Total: 1}, 0)
		}, "no read that waits"},
		"other size": {func(t *testing.T, r *rogue, _ uint32) {
			r.send(t, 0, message.Frame{Kind: message.Answer, Length: 1, Total: 65}, 0)
		}, "as part of the 65"},
		"too much": {func(t *testing.T, r *rogue, _ uint32) {
			r.send(t, 0, message.Frame{Kind: message.Answer, Length: 40, Total: 64}, make([]byte, 40)...)
			r.send(t, 0, message.Frame{Kind: message.Answer, Length: 40, Total: 64}, make([]byte, 40)...)
		}, "24 of 64 are due"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRank(t, 1, loopback())
			large, into := memory(t, b, onDevice, 1<<20), memory(t, b, pinned, 128)
			r := newRogue(t, b, 1)
			testerr.Check(t, r.conn.Read(into, 32, rogueMemory(t, r, b), 0, 64))
			r.awaitTaken(t, 1)
			c.send(t, r, large.ID())
			testerr.Expect(t, failed(t, r.conn), mscclgo.ErrRemote, c.says)
			testcmp.Equal(t, "this rank's memory", testlink.Get(t, into), make([]byte, 128))
		})
	}
}

// TestUnanswered has a peer acknowledge a read that it does not answer. What is behind the
// read is not sent, and the connection fails in time.
func TestUnanswered(t *testing.T) {
	o := loopback()
	o.Timeout = 200 * time.Millisecond
	b := newRank(t, 1, o)
	into := memory(t, b, pinned, 64)
	r := newRogue(t, b, 1)
	theirs := rogueMemory(t, r, b)
	testerr.Check(t, r.conn.Read(into, 0, theirs, 0, 64))
	testerr.Check(t, r.conn.UpdateAndSync(theirs, 0, 0, 1))
	r.awaitTaken(t, 1)
	r.acknowledge(t, 1)
	testerr.Expect(t, r.conn.Flush(t.Context()), mscclgo.ErrRemote, "neither acknowledged nor sent anything")
	sent, _ := io.ReadAll(r.data[0])
	if len(sent) != message.FrameSize {
		t.Errorf("%d bytes were sent, %d are the request", len(sent), message.FrameSize)
	}
}

// TestWriteAmongAnswers has a peer ask for much and take it late. What this rank sends itself
// meanwhile is not kept back until all is answered.
func TestWriteAmongAnswers(t *testing.T) {
	const size, reads = 8 << 20, 8
	for _, staging := range []uint64{minStaging, 64 << 20} {
		o := loopback()
		o.Staging = staging
		b := newRank(t, 1, o)
		m := memory(t, b, pinned, size)
		r := newRogue(t, b, 1)
		for op := range uint64(reads) {
			r.send(t, 0, message.Frame{Kind: message.Read, Op: op, Memory: m.ID(), Length: size, Total: size})
		}
		testlink.Eventually(t, "all is asked", func() bool { return r.conn.d.answers.ready.Load() == reads })
		testerr.Check(t, r.conn.WriteBytes(rogueMemory(t, r, b), 0, []byte{1}))
		for answered := uint64(0); ; {
			head := make([]byte, message.FrameSize)
			testerr.Must(io.ReadFull(r.data[0], head))(t)
			f := testerr.Must(message.Decode(head))(t)
			if f.Kind == message.Data {
				break
			}
			if answered += f.Length; answered == reads*size {
				t.Errorf("%d bytes of staging memory: a write came behind all answers", staging)
				break
			}
			testerr.Must(io.CopyN(io.Discard, r.data[0], int64(f.Length)))(t)
		}
		r.hangUp() // it acknowledges nothing
	}
}

// TestSlowDeviceOfReader holds the device of a rank that reads. That is not the peer's fault,
// whether all bytes have come or more than there is staging memory for.
func TestSlowDeviceOfReader(t *testing.T) {
	for _, size := range []uint64{64, 4 << 20} {
		a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
		ab, _ := connect(t, a, b)
		mine := memory(t, b, pinned, size)
		testlink.Set(t, mine, testlink.Noise(size))
		src, dst := imported(t, a, mine), memory(t, a, onDevice, size)
		release := testlink.HoldStream(t, ab.d.rx.Stream)
		testerr.Check(t, errors.Join(ab.Read(dst, 0, src, 0, size), ab.WriteBytes(src, 0, []byte{1})))
		testlink.Eventually(t, "the peer owes nothing", func() bool { return ab.d.acked.Load() == 1 && !ab.d.awaitsPeer() })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		testerr.Expect(t, ab.Flush(ctx), mscclgo.ErrAborted, "has done 1 of 2 operations, 1 of them reads whose bytes are not all here")
		release()
		testerr.Check(t, ab.Flush(t.Context()))
		testcmp.Equal(t, "what was read", testlink.Get(t, dst), testlink.Noise(size))
	}
}

// TestReadIntoClosed closes the memory that a read goes to when none or a part of the answer
// has come. The rest is dropped, and the connection goes on.
func TestReadIntoClosed(t *testing.T) {
	const size = 2048
	for _, tls := range []bool{false, true} {
		for _, k := range kinds {
			for _, before := range []uint64{0, 100} {
				o := loopback()
				o.TLS = tls
				b := newRank(t, 1, o)
				r := newRogue(t, b, 1)
				theirs := rogueMemory(t, r, b)
				into, next := memory(t, b, k, size), memory(t, b, k, size)
				testerr.Check(t, errors.Join(r.conn.Read(into, 0, theirs, 0, size), r.conn.Read(next, 0, theirs, 0, size)))
				r.awaitTaken(t, 2)
				head := make([]byte, message.FrameSize)
				(&message.Frame{Kind: message.Answer, Length: size, Total: size}).Encode(head)
				write := func(nc net.Conn, data []byte) {
					t.Helper()
					testerr.Must(nc.Write(data))(t)
				}
				if before > 0 {
					write(r.data[0], append(head, testlink.Noise(before)...))
					testlink.Eventually(t, "a part of the answer is here", r.conn.d.rx.midFrame)
				}
				// What Close does, once it has waited long enough for the read.
				testerr.Check(t, b.t.rank.Withdraw(into))
				if before == 0 {
					write(r.data[0], head)
				}
				write(r.data[0], testlink.Noise(size)[before:])
				r.send(t, 0, message.Frame{Kind: message.Answer, Op: 1, Length: size, Total: size}, testlink.Noise(size)...)
				r.acknowledge(t, 2)
				if err := r.conn.Flush(t.Context()); err != nil {
					t.Fatalf("%v memory, TLS %v, closed when %d bytes had come: %v", k, tls, before, err)
				}
				testcmp.Equal(t, "what was read next", testlink.Get(t, next), testlink.Noise(size))
				r.hangUp()
			}
		}
	}
}

// TestBeforeHalfFrame sends a write and a read, and a part of another frame right behind them.
// Both are acknowledged and answered while the rest is awaited.
func TestBeforeHalfFrame(t *testing.T) {
	for _, k := range kinds {
		for _, half := range []message.Kind{message.Data, message.Answer} {
			b := newRank(t, 1, loopback())
			m, into := memory(t, b, k, 4096), memory(t, b, k, 4096)
			r := newRogue(t, b, 1)
			testerr.Check(t, r.conn.Read(into, 0, rogueMemory(t, r, b), 0, 4096))
			head := make([]byte, message.FrameSize)
			testerr.Must(io.ReadFull(r.data[0], head))(t)
			var all []byte
			for _, f := range []message.Frame{
				{Kind: message.Data, Op: 0, Memory: m.ID(), Length: 64, Total: 64},
				{Kind: message.Read, Op: 1, Memory: m.ID(), Length: 64, Total: 64},
				{Kind: half, Op: 2, Memory: m.ID(), Length: 4096, Total: 4096},
			} {
				if f.Kind == message.Answer {
					f.Op, f.Memory = 0, 0
				}
				f.Encode(head)
				all = append(all, head...)
				if f.Kind != message.Read {
					all = append(all, make([]byte, 64)...)
				}
			}
			testerr.Must(r.data[0].Write(all))(t)
			for _, from := range []net.Conn{r.data[0], r.control} {
				if _, err := io.ReadFull(from, head); err != nil {
					t.Fatalf("%v memory: what came before half a frame is neither answered nor acknowledged: %v", k, err)
				}
			}
			r.hangUp()
		}
	}
}
