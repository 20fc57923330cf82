package ethernet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestWriteAndFlush(t *testing.T) {
	variants(t, func(t *testing.T, o Options) {
		a, b := newRank(t, 0, o), newRank(t, 1, o)
		ab, _ := connect(t, a, b)
		if ab.Transport() != registeredmem.Ethernet {
			t.Errorf("the transport is %v", ab.Transport())
		}
		const size = 3<<20 + 77
		for _, from := range kinds {
			for _, to := range kinds {
				src, mine := memory(t, a, from, size), memory(t, b, to, size)
				dst := imported(t, a, mine)
				data, want := noise(size), make([]byte, size)
				set(t, src, data)
				for _, w := range []struct{ to, from, n uint64 }{
					{7, 3, 0}, {0, 1, 1}, {3, 9, 5}, {4097, 1, 4095}, {16384, 5, 100_003}, {1 << 20, 1<<20 + 1, 1<<21 + 11}, {size - 1, 0, 1},
				} {
					if err := ab.Write(dst, w.to, src, w.from, w.n); err != nil {
						t.Fatal(err)
					}
					copy(want[w.to:w.to+w.n], data[w.from:])
				}
				if err := ab.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(get(t, mine), want) {
					t.Errorf("from %v to %v memory: other bytes arrived", from, to)
				}
			}
		}
	})
}

// TestLarge writes 1 GiB at once, which takes twice as much memory.
func TestLarge(t *testing.T) {
	const size, part = 1 << 30, 16 << 20
	for _, k := range []kind{onDevice, reachable} {
		t.Run(string(k), func(t *testing.T) {
			o := loopback()
			a, b := newRank(t, 0, o), newRank(t, 1, o)
			ab, _ := connect(t, a, b)
			src, mine := memory(t, a, k, size), memory(t, b, k, size)
			// parts calls do with a part of both at a time, and what the source holds there.
			parts := func(do func(src, mine *gpu.Buffer, data []byte)) {
				data := noise(part)
				for at := uint64(0); at < size; at += part {
					binary.LittleEndian.PutUint64(data[at/part:], at)
					from, err := src.Buffer().Slice(at, part)
					if err != nil {
						t.Fatal(err)
					}
					to, err := mine.Buffer().Slice(at, part)
					if err != nil {
						t.Fatal(err)
					}
					do(from, to, data)
				}
			}
			parts(func(src, _ *gpu.Buffer, data []byte) {
				if err := gpu.CopyIn(src, data); err != nil {
					t.Fatal(err)
				}
			})
			if err := errors.Join(ab.Write(imported(t, a, mine), 0, src, 0, size), ab.Flush(t.Context())); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, part)
			parts(func(_, mine *gpu.Buffer, data []byte) {
				if err := gpu.CopyOut(got, mine); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, data) {
					t.Fatal("other bytes arrived")
				}
			})
		})
	}
}

// Overlapping writes end as the last one.
func TestOrderOfWrites(t *testing.T) {
	variants(t, func(t *testing.T, o Options) {
		a, b := newRank(t, 0, o), newRank(t, 1, o)
		ab, _ := connect(t, a, b)
		const size, writes = 1 << 19, 8
		for _, to := range kinds {
			src, mine := memory(t, a, onDevice, size*writes), memory(t, b, to, size)
			data := noise(size * writes)
			set(t, src, data)
			dst := imported(t, a, mine)
			for i := range uint64(writes) {
				if err := ab.Write(dst, 0, src, i*size, size); err != nil {
					t.Fatal(err)
				}
			}
			if err := ab.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(get(t, mine), data[size*(writes-1):]) {
				t.Errorf("%v memory holds something else than the last write", to)
			}
		}
	})
}

// A reader who sees a round's number sees the round's data, both ways at once.
func TestUpdateFollowsWrites(t *testing.T) {
	variants(t, func(t *testing.T, o Options) {
		for _, to := range kinds {
			t.Run(string(to), func(t *testing.T) {
				a, b := newRank(t, 0, o), newRank(t, 1, o)
				ab, ba := connect(t, a, b)
				var all sync.WaitGroup
				for _, way := range []struct {
					from, to *rank
					conn     *link
				}{{a, b, ab}, {b, a, ba}} {
					mine := memory(t, way.to, to, 16+roundBytes)
					dst, src := imported(t, way.from, mine), memory(t, way.from, onDevice, rounds*roundBytes)
					values := make([]byte, rounds*roundBytes)
					for i := range values {
						values[i] = byte(i/roundBytes + 1)
					}
					set(t, src, values)
					all.Go(func() { sendRounds(t, way.conn, dst, src) })
					all.Go(func() { checkRounds(t, mine) })
				}
				all.Wait()
			})
		}
	})
}

const (
	rounds     = 12
	roundBytes = 150_001
)

func sendRounds(t *testing.T, c *link, dst, src *registeredmem.Memory) {
	for k := range uint64(rounds) {
		if err := errors.Join(
			c.Write(dst, 8, src, k*roundBytes, roundBytes),
			c.UpdateAndSync(dst, 0, k, k+1),
		); err != nil {
			t.Error(err)
			return
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}

func checkRounds(t *testing.T, m *registeredmem.Memory) {
	word, err := m.Buffer().Slice(0, 8)
	if err != nil {
		t.Error(err)
		return
	}
	ends, err := m.Buffer().Slice(8, roundBytes)
	if err != nil {
		t.Error(err)
		return
	}
	data := make([]byte, roundBytes)
	for end := time.Now().Add(longTimeout); ; {
		seen := []uint64{0}
		if err := errors.Join(gpu.CopyOut(seen, word), gpu.CopyOut(data, ends)); err != nil {
			t.Error(err)
			return
		}
		for i := 0; i < roundBytes; i += 997 {
			if uint64(data[i]) < seen[0] {
				t.Errorf("round %d is announced, byte %d is of round %d", seen[0], i, data[i])
				return
			}
		}
		if seen[0] == rounds {
			return
		}
		if time.Now().After(end) {
			t.Errorf("the word stays at %d", seen[0])
			return
		}
	}
}

func TestManyConnections(t *testing.T) {
	o := loopback()
	o.Staging = MinStaging
	ranks := []*rank{newRank(t, 0, o), newRank(t, 1, o), newRank(t, 2, o)}
	var all sync.WaitGroup
	for range 4 {
		for i, a := range ranks {
			for _, b := range ranks[i:] {
				var c, back *link
				if a == b {
					one, err := a.e.connect(t.Context(), marshal(t, a.e))
					if err != nil {
						t.Fatal(err)
					}
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
					data := noise(4096)
					set(t, src, data)
					dst := imported(t, w.from, mine)
					all.Go(func() {
						if err := errors.Join(w.conn.Write(dst, 0, src, 0, 4096), w.conn.Flush(t.Context())); err != nil {
							t.Error(err)
						} else if !bytes.Equal(get(t, mine), data) {
							t.Error("other bytes arrived")
						}
					})
				}
			}
		}
	}
	all.Wait()
}

func TestMark(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	src, mine := memory(t, a, onDevice, 1<<20), memory(t, b, onDevice, 1<<20)
	dst := imported(t, a, mine)
	done := func(n uint64) {
		t.Helper()
		if err := ab.Write(dst, 0, src, 0, n); err != nil {
			t.Fatal(err)
		}
		m, err := ab.Mark()
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a mark is reached", func() bool {
			ok, err := m.Done()
			if err != nil {
				t.Fatal(err)
			}
			return ok
		})
	}
	done(1 << 20)
	if n := testing.AllocsPerRun(100, func() {
		m, _ := ab.Mark()
		m.Done()
	}); n != 0 {
		t.Errorf("a mark allocates %v times", n)
	}
	done(0)
}

func TestMisuse(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	src, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	dst := imported(t, a, mine)
	for name, err := range map[string]error{
		"nil":      ab.Write(nil, 0, src, 0, 1),
		"swapped":  ab.Write(src, 0, dst, 0, 1),
		"registry": ab.Write(mine, 0, src, 0, 1),
		"past":     ab.Write(dst, 60, src, 0, 5),
		"far":      ab.Write(dst, 1<<63, src, 0, 1),
		"source":   ab.Write(dst, 0, src, 0, 65),
		"huge":     ab.Write(dst, 1, src, 1, 1<<64-1),
		"falls":    ab.UpdateAndSync(dst, 0, 2, 1),
		"odd":      ab.UpdateAndSync(dst, 4, 0, 1),
		"word":     ab.UpdateAndSync(dst, 64, 0, 1),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	if err := errors.Join(ab.Close(), ab.Close()); err != nil {
		t.Error(err)
	}
	testerr.Expect(t, ab.Write(dst, 0, src, 0, 1), mscclgo.ErrInvalid, "closed")
	testerr.Expect(t, ab.Flush(t.Context()), mscclgo.ErrInvalid, "closed")
	_, err := ab.Mark()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
}

// holdStream keeps a device's stream from going on.
func holdStream(t *testing.T, s *gpu.Stream) (release func()) {
	t.Helper()
	gate, err := s.Device().AllocHost(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	if err := s.WaitValue64(gate, 0, 1, gpu.GreaterOrEqual); err != nil {
		t.Fatal(err)
	}
	release = func() {
		if err := gpu.CopyIn(gate, []uint64{1}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

func TestFlushAndWithdrawWait(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, ba := connect(t, a, b)
	src, mine := memory(t, a, pinned, 64), memory(t, b, onDevice, 64)
	set(t, src, noise(64))
	release := holdStream(t, ba.d.rx.stream)
	if err := ab.Write(imported(t, a, mine), 0, src, 0, 64); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, ab.Flush(ctx), mscclgo.ErrTimeout, "rank 0, peer 1")
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	testerr.Expect(t, ab.Flush(ctx), mscclgo.ErrAborted, "rank 0, peer 1")

	eventually(t, "the copy is queued", func() bool { return !ba.d.rx.idle() })
	closed := make(chan error, 1)
	buf := mine.Buffer()
	go func() { closed <- mine.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("the memory was withdrawn (%v) with a copy under way", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if err := errors.Join(<-closed, ab.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if err := gpu.CopyOut(got, buf); err != nil || !bytes.Equal(got, noise(64)) {
		t.Errorf("the memory is %x, %v", got, err)
	}
}

// A connection holds as much pinned memory as Options.Staging allows.
func TestStagingBound(t *testing.T) {
	for _, sockets := range []int{1, 3, 16} {
		for _, staging := range []uint64{0, MinStaging, 3 << 20} {
			t.Run(fmt.Sprintf("%d sockets, %d", sockets, staging), func(t *testing.T) {
				o := loopback()
				o.Sockets, o.Staging = sockets, staging
				a, b := newRank(t, 0, o), newRank(t, 1, o)
				ab, ba := connect(t, a, b)
				sum := uint64(0)
				for _, buf := range append(append([]*gpu.Buffer{}, ab.d.staging...), ba.d.staging...) {
					sum += buf.Size()
				}
				if sum == 0 || sum > a.t.opts.Staging {
					t.Errorf("a connection has %d bytes of %d", sum, a.t.opts.Staging)
				}
			})
		}
	}
}

// What one goroutine sends is not lost where it sends faster than the peer takes.
func TestFullQueue(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, _ := connect(t, a, b)
	src, mine := memory(t, a, pinned, 8), memory(t, b, pinned, 16)
	dst := imported(t, a, mine)
	const n = 4 * queueDepth
	for i := range uint64(n) {
		if err := errors.Join(ab.Write(dst, 8, src, 0, 8), ab.UpdateAndSync(dst, 0, i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ab.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := binary.NativeEndian.Uint64(get(t, mine)); got != n {
		t.Errorf("the word is %d after %d updates", got, n)
	}
}

// Where streams cannot store values, words are copied.
func TestCopiedWords(t *testing.T) {
	o := loopback()
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	ab, ba := connect(t, a, b)
	ba.d.rx.storeValues = false
	src, mine := memory(t, a, onDevice, 64), memory(t, b, onDevice, 64)
	dst := imported(t, a, mine)
	set(t, src, noise(64))
	for i := range uint64(500) {
		if err := errors.Join(ab.Write(dst, 8, src, 0, 1+i%50), ab.UpdateAndSync(dst, 0, i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ab.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := get(t, mine)
	if binary.NativeEndian.Uint64(got) != 500 || !bytes.Equal(got[8:58], noise(64)[:50]) {
		t.Errorf("the memory is %x", got)
	}
}
