package conntest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// reads skips a test of reads where the transport has none, which it says in an error.
func reads(t *testing.T, p *pair) {
	t.Helper()
	_, src := p.onDevice(t, 8)
	err := p.a.Connection.Read(p.a.memory(t, device, 8), 0, src, 0, 8)
	if errors.Is(err, mscclgo.ErrUnsupported) {
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1")
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testReads reads ranges of many sizes and alignments, from and to both kinds of memory,
// and checks all bytes here, also those beside the ranges, and that the peer's stay.
func testReads(t *testing.T, p *pair) {
	reads(t, p)
	const size = 1<<20 + 77
	data := noise(size)
	for _, from := range []kind{device, pinned} {
		own, src, ok := p.target(t, from, size)
		if !ok {
			continue
		}
		if err := gpu.CopyIn(own.Buffer(), data); err != nil {
			t.Fatal(err)
		}
		for _, to := range []kind{device, pinned} {
			dst := p.a.memory(t, to, size)
			for _, r := range []struct{ to, from, n uint64 }{
				{7, 3, 0}, {size, size, 0}, {0, 1, 1}, {3, 9, 5}, {8, 16, 8}, {31, 3, 7}, {4097, 1, 4095}, {4096, 8192, 4096},
				{16384, 5, 100_003}, {1, 2, 256 << 10}, {1 << 10, 1<<10 + 1, 700_003}, {size - 1, 0, 1}, {0, 0, size},
			} {
				if err := gpu.CopyIn(dst.Buffer(), make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				if err := p.a.Connection.Read(dst, r.to, src, r.from, r.n); err != nil {
					t.Fatal(err)
				}
				if !p.flush(t) {
					return
				}
				want := make([]byte, size)
				copy(want[r.to:r.to+r.n], data[r.from:])
				if at := differ(want, read[byte](t, dst, 0, size)); at >= 0 {
					fault := "has not arrived after a flush"
					if at := uint64(at); at < r.to || at >= r.to+r.n {
						fault = "is outside the range and was read into"
					}
					t.Fatalf("%d bytes from %d of %v memory to %d of %v memory: byte %d %s", r.n, r.from, from, r.to, to, at, fault)
				}
			}
		}
		if at := differ(data, read[byte](t, own, 0, size)); at >= 0 {
			t.Errorf("byte %d of the peer's %v memory was changed by reads", at, from)
		}
	}
}

// testOrderOfReads has reads behind and before writes of the same bytes, at the peer and
// here, with nothing but their order between them. The bytes go by different memories at times.
func testOrderOfReads(t *testing.T, p *pair) {
	reads(t, p)
	c := p.a.Connection
	for _, size := range []uint64{8, 4096, 600_000} {
		const rounds = 8
		data := noise(int(rounds * size))
		src := source(t, p, device, rounds*size, data)
		own, dst := p.onDevice(t, size)
		_, copied := p.onDevice(t, rounds*size)
		before, behind, passed := p.a.memory(t, device, rounds*size), p.a.memory(t, device, rounds*size), p.a.memory(t, device, size)
		passedAgain := p.a.again(t, passed)
		dstAgain, err := p.imported(t, p.b.again(t, own))
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(rounds) {
			at := i * size
			to, from := dst, passed
			if i%2 == 1 { // the same bytes, as other memories
				to, from = dstAgain, passedAgain
			}
			if err := errors.Join(
				c.Read(before, at, dst, 0, size),
				c.Write(to, 0, src, at, size),
				c.Read(behind, at, dst, 0, size),
				// What is read is sent on, to another place, and the next round's takes its place here.
				c.Read(passed, 0, dst, 0, size),
				c.Write(copied, at, from, 0, size),
			); err != nil {
				t.Fatal(err)
			}
		}
		back := p.a.memory(t, device, rounds*size)
		if err := c.Read(back, 0, copied, 0, rounds*size); err != nil {
			t.Fatal(err)
		}
		if !p.flush(t) {
			return
		}
		old := append(make([]byte, size), data[:(rounds-1)*size]...)
		for _, one := range []struct {
			what string
			got  *registeredmem.Memory
			want []byte
		}{
			{"a read found less than the write before it", behind, data},
			{"a read found the write behind it", before, old},
			{"a write sent less than the read before it had fetched", back, data},
		} {
			if at := differ(one.want, read[byte](t, one.got, 0, int(rounds*size))); at >= 0 {
				t.Errorf("%d bytes: %s, in byte %d of round %d", size, one.what, uint64(at)%size, uint64(at)/size+1)
			}
		}
		if at := differ(data[(rounds-1)*size:], read[byte](t, own, 0, int(size))); at >= 0 {
			t.Errorf("%d bytes: byte %d at the peer is not the last write's", size, at)
		}
	}
}

// testReadsOfOnePlace has a short read behind a long one into the same place, which must
// hold what the later one has read. The two come through different memories at times.
func testReadsOfOnePlace(t *testing.T, p *pair) {
	reads(t, p)
	const long, short = 600_000, 1000
	data := noise(long + short)
	want := append(append([]byte{}, data[long:]...), data[short:long]...)
	c := p.a.Connection
	own, src := p.onDevice(t, long+short)
	if err := gpu.CopyIn(own.Buffer(), data); err != nil {
		t.Fatal(err)
	}
	dst := p.a.memory(t, device, long)
	again := p.a.again(t, dst)
	for i := range p.rounds(100) {
		second := []*registeredmem.Memory{dst, again}[i%2]
		if err := errors.Join(c.Read(dst, 0, src, 0, long), c.Read(second, 0, src, long, short)); err != nil {
			t.Fatal(err)
		}
		if !p.flush(t) {
			return
		}
		if at := differ(want, read[byte](t, dst, 0, long)); at >= 0 {
			t.Fatalf("round %d: byte %d is not what the last read of it has fetched", i+1, at)
		}
	}
}

// testReadThenUpdate reads and then updates a word, by which the peer knows that it may
// overwrite what was read. The read must have the old bytes.
func testReadThenUpdate(t *testing.T, p *pair) {
	reads(t, p)
	c := p.a.Connection
	for _, size := range []uint64{8, 300_000} {
		rounds := p.rounds(50)
		own, src := p.onDevice(t, size)
		flag, remote := p.onDevice(t, 8)
		dst := p.a.memory(t, device, rounds*size)
		var peer sync.WaitGroup
		peer.Go(func() {
			for k := uint64(1); k <= rounds; k++ {
				for end := time.Now().Add(patience); word(t, flag, 0) < k; time.Sleep(time.Microsecond) {
					if t.Failed() || time.Now().After(end) {
						t.Errorf("the word stays at %d of %d", word(t, flag, 0), k)
						return
					}
				}
				next := make([]byte, size)
				for i := range next {
					next[i] = byte(k)
				}
				if err := gpu.CopyIn(own.Buffer(), next); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for k := uint64(1); k <= rounds && !t.Failed(); k++ {
			// The peer has overwritten the last byte of the round before.
			for end := time.Now().Add(patience); read[byte](t, own, size-1, 1)[0] != byte(k-1) && time.Now().Before(end) && !t.Failed(); {
				time.Sleep(time.Microsecond)
			}
			if err := errors.Join(c.Read(dst, (k-1)*size, src, 0, size), c.UpdateAndSync(remote, 0, k-1, k)); err != nil {
				t.Error(err)
			}
		}
		p.flush(t)
		peer.Wait()
		got := read[byte](t, dst, 0, int(rounds*size))
		for i, b := range got {
			if want := byte(uint64(i) / size); b != want && !t.Failed() {
				t.Errorf("%d bytes: an update came before the read in front of it was done: byte %d of round %d is %d", size, uint64(i)%size, want+1, b)
			}
		}
	}
}

// testReadsBothWays queues more reads than any queue holds, and large ones, both ways at
// once and among writes, while nobody waits.
func testReadsBothWays(t *testing.T, p *pair) {
	reads(t, p)
	const small, large = 3000, 3
	size := p.rounds(16 << 20)
	var all sync.WaitGroup
	for _, direction := range []*pair{p, p.back()} {
		c := direction.a.Connection
		data := noise(int(size))
		own, src := direction.onDevice(t, size)
		if err := gpu.CopyIn(own.Buffer(), data); err != nil {
			t.Fatal(err)
		}
		landed, dst := direction.onDevice(t, small*8)
		few, many := direction.a.memory(t, device, small*8), direction.a.memory(t, device, large*size)
		all.Go(func() {
			for i := range uint64(small) {
				err := c.Read(few, 8*i, src, 8*(small-1-i), 8)
				if err == nil && i%3 == 0 {
					err = c.Write(dst, 8*i, few, 8*i, 8) // what was just read
				}
				if err == nil && i%(small/large) == 0 {
					at := i / (small / large)
					err = c.Read(many, at*size, src, 0, size)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if !direction.flush(t) {
				return
			}
			want, got, arrived := make([]byte, small*8), read[byte](t, few, 0, small*8), read[byte](t, landed, 0, small*8)
			for i := range small {
				copy(want[8*i:8*i+8], data[8*(small-1-i):])
			}
			if at := differ(want, got); at >= 0 {
				t.Errorf("read %d of %d is lost, or in another's place", at/8+1, small)
			}
			for i := 0; i < small; i += 3 {
				if at := differ(want[8*i:8*i+8], arrived[8*i:8*i+8]); at >= 0 {
					t.Fatalf("the write behind read %d sent other bytes than that has fetched", i+1)
				}
			}
			for i := range large {
				if at := differ(data, read[byte](t, many, uint64(i)*size, int(size))); at >= 0 {
					t.Errorf("byte %d of large read %d has not arrived", at, i+1)
				}
			}
		})
	}
	all.Wait()
}

// testMarksOfReads checks at each mark behind a read that all of it is here.
func testMarksOfReads(t *testing.T, p *pair) {
	reads(t, p)
	const size, rounds = 300_000, 10
	data := noise(size)
	own, src := p.onDevice(t, size)
	if err := gpu.CopyIn(own.Buffer(), data); err != nil {
		t.Fatal(err)
	}
	dst := p.a.memory(t, device, rounds*size)
	var marks [rounds]connection.Mark
	for i := range marks {
		err := p.a.Connection.Read(dst, uint64(i)*size, src, 0, size)
		if err == nil {
			marks[i], err = p.a.Connection.Mark()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range marks {
		reach(t, m)
		if at := differ(data, read[byte](t, dst, uint64(i)*size, size)); at >= 0 {
			t.Fatalf("a mark is reached, and byte %d of the read before it is not here", at)
		}
	}
}

// testReadTurns reads in turns, none of which waits, though nothing is done at times.
func testReadTurns(t *testing.T, p *pair) {
	reads(t, p)
	p.flush(t)
	c := p.a.Connection
	own, src := p.onDevice(t, 64)
	if err := gpu.CopyIn(own.Buffer(), noise(64)); err != nil {
		t.Fatal(err)
	}
	dst := p.a.memory(t, device, 64)
	// The first may have to wait, for what the transport does not know yet.
	if err := c.Read(dst, 0, src, 0, 8); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	takeTurns(t, p, "to read", turnsOf(t, "a read", func() (bool, error) {
		turn, ok := c.Internal().TryTurn(connection.Read, 64)
		if !ok {
			return false, nil
		}
		defer turn.End()
		err := turn.Do(connection.Operation{Kind: connection.Read, Theirs: src, Own: dst, N: 64})
		if err == nil {
			_, err = turn.Mark()
		}
		return true, err
	}))
	testcmp.Equal(t, "what was read", read[byte](t, dst, 0, 64), noise(64))
}

// testWrongReads makes reads with invalid arguments. Nothing is read.
func testWrongReads(t *testing.T, p *pair) {
	reads(t, p)
	const size = 4096
	c := p.a.Connection
	own, src := p.onDevice(t, size)
	if err := gpu.CopyIn(own.Buffer(), noise(size)); err != nil {
		t.Fatal(err)
	}
	dst := p.a.memory(t, device, size)
	gone, away := p.a.memory(t, device, 64), p.a.memory(t, device, 64)
	_, left := p.onDevice(t, 64)
	if err := errors.Join(gone.Close(), left.Close()); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"destination nil":         c.Read(nil, 0, src, 0, 8),
		"source nil":              c.Read(dst, 0, nil, 0, 8),
		"destination of the peer": c.Read(src, 0, src, 0, 8),
		"source of this rank":     c.Read(dst, 0, away, 0, 8),
		"source not imported":     c.Read(dst, 0, own, 0, 8),
		"destination closed":      c.Read(gone, 0, src, 0, 8),
		"source closed":           c.Read(dst, 0, left, 0, 8),
		"past the destination":    c.Read(dst, size-7, src, 0, 8),
		"past the source":         c.Read(dst, 0, src, size-7, 8),
		"0 bytes past the end":    c.Read(dst, 0, src, size+1, 0),
		"size overflows":          c.Read(dst, 8, src, 8, 1<<64-8),
		"offset overflows":        c.Read(dst, 0, src, 1<<64-8, 16),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	p.flush(t)
	expectZeros(t, "this rank's memory, by a read that was refused,", dst.Buffer())
	if err := c.Read(dst, 8, src, 8, 8); err != nil {
		t.Fatal(err)
	}
	p.flush(t)
	want := make([]byte, size)
	copy(want[8:16], noise(size)[8:])
	testcmp.Equal(t, "a read after reads that were refused", read[byte](t, dst, 0, size), want)
	p.close(t)
	testerr.Expect(t, c.Read(dst, 0, src, 0, 8), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
}

// testReadOfClosed reads a memory that the peer has closed. Where the peer's memory is
// mapped that works. Elsewhere the error says that it is closed.
func testReadOfClosed(t *testing.T, p *pair) {
	reads(t, p)
	own, src := p.onDevice(t, 64)
	dst := p.a.memory(t, device, 64)
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	err := p.a.Connection.Read(dst, 0, src, 0, 64)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = p.flushUntil(ctx)
	}
	if src.Buffer() != nil && err == nil {
		return
	}
	expectRemote(t, "a read of a memory that the peer has closed", err)
}

// testReadsAndClose closes a memory that is being read into. Once Close has returned
// nothing writes there any more.
func testReadsAndClose(t *testing.T, p *pair) {
	reads(t, p)
	const size = 256 << 10
	own, src := p.onDevice(t, size)
	if err := gpu.CopyIn(own.Buffer(), noise(size)); err != nil {
		t.Fatal(err)
	}
	dst := p.a.memory(t, device, size)
	buf := dst.Buffer()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for end := time.Now().Add(patience); time.Now().Before(end); {
				err := p.a.Connection.Read(dst, 0, src, 0, size)
				if err == nil {
					err = p.a.Connection.Flush(context.Background())
				}
				if err != nil {
					testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
					return
				}
			}
			t.Error("the memory was never closed")
		})
	}
	time.Sleep(10 * time.Millisecond)
	if err := dst.Close(); err != nil {
		t.Error(err)
	}
	if err := gpu.CopyIn(buf, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if !soon(all.Wait) {
		t.Fatal("a read or a flush does not return")
	}
	p.flush(t)
	expectZeros(t, "a memory that was closed, by a read,", buf)
}

// testReadsOfDeadPeer ends the peer among reads. Calls fail in time.
func testReadsOfDeadPeer(t *testing.T, p *pair) {
	if p.b.Kill == nil {
		t.Skip("the transport does not need the peer")
	}
	reads(t, p)
	const size = 1 << 20
	c := p.a.Connection
	_, src := p.onDevice(t, size)
	dst := p.a.memory(t, device, size)
	time.AfterFunc(5*time.Millisecond, p.b.Kill)
	expectDead(t, "a read or a flush after the peer's death", func() error {
		for {
			if err := errors.Join(c.Read(dst, 0, src, 0, size), c.Flush(context.Background())); err != nil {
				return err
			}
		}
	})
	testerr.Expect(t, c.Read(dst, 0, src, 0, 64), mscclgo.ErrRemote, "rank 0, peer 1")
	p.close(t)
}

// testReadsOfMany has many goroutines read and write over one connection. What each queues is
// in order.
func testReadsOfMany(t *testing.T, p *pair) {
	reads(t, p)
	const goroutines, rounds = 6, 40
	values := make([]uint64, rounds+1)
	for i := range values {
		values[i] = uint64(i)
	}
	src := source(t, p, device, 8*(rounds+1), values)
	_, dst := p.onDevice(t, 8*goroutines)
	back := p.a.memory(t, device, 8*goroutines)
	var all sync.WaitGroup
	for g := range uint64(goroutines) {
		all.Go(func() {
			for k := uint64(1); k <= rounds; k++ {
				if err := errors.Join(p.a.Connection.Write(dst, 8*g, src, 8*k, 8), p.a.Connection.Read(back, 8*g, dst, 8*g, 8)); err != nil {
					t.Error(fmt.Errorf("goroutine %d, round %d: %w", g, k, err))
					return
				}
				if !p.flush(t) {
					return
				}
				testcmp.Equal(t, "what was read after a flush", read[uint64](t, back, 8*g, 1), []uint64{k})
			}
		})
	}
	all.Wait()
}
