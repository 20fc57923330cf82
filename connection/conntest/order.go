package conntest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// testWrites writes ranges of many sizes and alignments, from and to both kinds
// of memory, and checks all bytes, also those beside the ranges.
func testWrites(t *testing.T, p *pair) {
	const size = 1<<20 + 77
	data := noise(size)
	for _, to := range []kind{device, pinned} {
		own, dst, ok := p.target(t, to, size)
		if !ok {
			continue
		}
		for _, from := range []kind{device, pinned} {
			src := source(t, p, from, size, data)
			zeros := source(t, p, from, size, make([]byte, size))
			for _, w := range []struct{ to, from, n uint64 }{
				{7, 3, 0}, {size, size, 0}, {0, 1, 1}, {3, 9, 5}, {8, 16, 8}, {31, 3, 7}, {4097, 1, 4095}, {4096, 8192, 4096},
				{16384, 5, 100_003}, {1, 2, 256 << 10}, {1 << 10, 1<<10 + 1, 700_003}, {size - 1, 0, 1}, {0, 0, size},
			} {
				if err := errors.Join(p.a.Connection.Write(dst, 0, zeros, 0, size), p.a.Connection.Write(dst, w.to, src, w.from, w.n)); err != nil {
					t.Fatal(err)
				}
				if !p.flush(t) {
					return
				}
				want := make([]byte, size)
				copy(want[w.to:w.to+w.n], data[w.from:])
				got := read[byte](t, own, 0, size)
				if at := differ(want, got); at >= 0 {
					fault := "has not arrived"
					if at := uint64(at); at < w.to || at >= w.to+w.n {
						fault = "is outside the range and was written"
					}
					t.Errorf("%d bytes from %d of %v memory to %d of %v memory: byte %d %s: it is %#x, not %#x",
						w.n, w.from, from, w.to, to, at, fault, got[at], want[at])
				}
			}
		}
	}
}

// differ returns the first place where two slices of one length differ, or -1. A
// diff of a MiB helps nobody.
func differ(want, got []byte) int {
	for i := range want {
		if want[i] != got[i] {
			return i
		}
	}
	return -1
}

// testOrderOfWrites checks that the last of several writes to one place remains.
func testOrderOfWrites(t *testing.T, p *pair) {
	for _, size := range []uint64{64, 300_000} {
		const writes = 8
		data := noise(int(writes * size))
		src := source(t, p, device, writes*size, data)
		own, dst := p.onDevice(t, size)
		for i := range uint64(writes) {
			// The later ones are shorter and quicker.
			n := size - i*size/(2*writes)
			if err := p.a.Connection.Write(dst, 0, src, i*size, n); err != nil {
				t.Fatal(err)
			}
		}
		p.flush(t)
		want := make([]byte, size)
		for i := range uint64(writes) {
			copy(want[:size-i*size/(2*writes)], data[i*size:])
		}
		if at := differ(want, read[byte](t, own, 0, int(size))); at >= 0 {
			t.Errorf("writes of %d bytes: byte %d is not the last write's", size, at)
		}
	}
}

// testEachArrives makes thousands of small writes, each to a place of its own, and each
// followed by an update of a word that it wrote itself. So what is lost or out of
// order stays visible.
func testEachArrives(t *testing.T, p *pair) {
	const each = 3 // words
	rounds := p.rounds(10_000)
	written, want := make([]uint64, rounds*each), make([]uint64, rounds*each)
	for k := range rounds {
		// The word, from which the update starts, and two that stay.
		copy(written[each*k:], []uint64{k + 1, whole(k), whole(k + 1)})
		copy(want[each*k:], []uint64{k + 1 + rounds, whole(k), whole(k + 1)})
	}
	src := source(t, p, device, 8*rounds*each, written)
	own, dst := p.onDevice(t, 8*rounds*each)
	for k := range rounds {
		at := 8 * each * k
		if err := errors.Join(
			p.a.Connection.Write(dst, at, src, at, 8*each),
			p.a.Connection.UpdateAndSync(dst, at, k+1, k+1+rounds),
		); err != nil {
			t.Fatal(err)
		}
	}
	p.flush(t)
	got := read[uint64](t, own, 0, int(rounds*each))
	for k := range rounds {
		word, from, to := got[each*k], written[each*k], want[each*k]
		switch {
		case got[each*k+1] != want[each*k+1] || got[each*k+2] != want[each*k+2]:
			t.Fatalf("write %d of %d is lost", k+1, rounds)
		case word == from:
			t.Fatalf("update %d of %d, from %d to %d, is lost or was done before the write that was queued before it", k+1, rounds, from, to)
		case word != to:
			t.Fatalf("update %d of %d, from %d to %d, left %d", k+1, rounds, from, to, word)
		}
	}
}

// testWords updates a word while a reader looks all the time. Both halves of the value
// change each time, so that a torn word shows. Then the word takes large values, which
// must not touch its neighbours.
func testWords(t *testing.T, p *pair) {
	const both = 1<<32 | 1                                      // one more in either half
	rounds, changes := p.rounds(5000), int64(p.rounds(200_000)) // that are made, and that the reader sees if it has the time
	for _, k := range []kind{device, pinned} {
		own, dst, ok := p.target(t, k, 24)
		if !ok {
			continue
		}
		var stop atomic.Bool
		var changed atomic.Int64
		var reader sync.WaitGroup
		reader.Go(func() {
			for last := uint64(0); !stop.Load(); {
				seen := word(t, own, 8)
				if seen>>32 != seen&0xffffffff || seen < last {
					t.Errorf("%v memory: the word is torn, or falls: after %#x it is %#x", k, last, seen)
					return
				}
				if seen != last {
					last = seen
					changed.Add(1)
				}
			}
		})
		value := uint64(0)
		update := func(to uint64) bool {
			err := p.a.Connection.UpdateAndSync(dst, 8, value, to)
			if err != nil {
				t.Error(err)
			}
			value = to
			return err == nil
		}
		end := time.Now().Add(time.Second)
		for i := uint64(0); i < rounds || changed.Load() < changes && time.Now().Before(end); i++ {
			if t.Failed() || !update(value+both) {
				break
			}
		}
		p.flush(t)
		stop.Store(true)
		reader.Wait()
		for _, to := range []uint64{value, 1 << 62, 1<<62 + 1, 1 << 63, 1<<64 - 1} {
			if t.Failed() || !update(to) || !p.flush(t) {
				return
			}
			testcmp.Equal(t, fmt.Sprintf("the word after an update to %#x, and its neighbours", to), read[uint64](t, own, 0, 3), []uint64{0, to, 0})
		}
	}
}

// testPuts makes 10,000 small writes with an update each, and then fewer both
// ways at once.
func testPuts(t *testing.T, p *pair) {
	puts(t, p.rounds(10_000), 64, []kind{device}, p)
	puts(t, p.rounds(500), 64, []kind{device, pinned}, p, p.back())
}

// testLargePuts makes some large ones both ways at once.
func testLargePuts(t *testing.T, p *pair) { puts(t, 20, 400_000, []kind{device, pinned}, p, p.back()) }

// puts makes rounds of writes of n bytes with an update each, over several pairs at
// once. The updates are of words in memory of those kinds.
func puts(t *testing.T, rounds, n uint64, kinds []kind, pairs ...*pair) {
	var all sync.WaitGroup
	for _, p := range pairs {
		for _, k := range kinds {
			word, flag, ok := p.target(t, k, 8)
			if !ok {
				continue
			}
			values := make([]uint64, rounds+n/8)
			for i := range values {
				values[i] = whole(uint64(i))
			}
			src := source(t, p, device, 8*uint64(len(values)), values)
			mine, dst := p.onDevice(t, n)
			all.Go(func() { sendRounds(t, p, dst, flag, src, rounds) })
			all.Go(func() { checkRounds(t, mine, word, rounds) })
		}
	}
	all.Wait()
}

// whole returns a number with its complement above it. A reader may see half of a
// word that is being written: half of one number and half of another do not match.
func whole(n uint64) uint64 { return n | (^n&0xffffffff)<<32 }

// sendRounds writes the number of each round and the numbers that follow it, and then
// the number of the round to the flag.
func sendRounds(t *testing.T, p *pair, dst, flag, src *registeredmem.Memory, rounds uint64) {
	c := p.a.Connection
	for k := uint64(1); k <= rounds && !t.Failed(); k++ {
		if err := errors.Join(c.Write(dst, 0, src, 8*k, dst.Size()), c.UpdateAndSync(flag, 0, k-1, k)); err != nil {
			t.Error(err)
			return
		}
	}
	p.flush(t)
}

// checkRounds checks that a reader who sees the flag of a round sees its data, at
// both ends and in the middle.
func checkRounds(t *testing.T, mine, word *registeredmem.Memory, rounds uint64) {
	words := mine.Size() / 8
	last := uint64(0)
	for end := time.Now().Add(patience); last < rounds && !t.Failed(); {
		seen := read[uint64](t, word, 0, 1)[0]
		if seen < last {
			t.Errorf("the word fell from %d to %d", last, seen)
			return
		}
		for _, i := range []uint64{0, words / 2, words - 1} {
			var got uint64
			for got = 0; seen > 0 && got != whole(got&0xffffffff) && time.Now().Before(end); {
				got = read[uint64](t, mine, 8*i, 1)[0]
			}
			if got &= 0xffffffff; seen > 0 && got < seen+i {
				t.Errorf("round %d is announced, and word %d is of round %d", seen, i, int64(got)-int64(i))
				return
			}
		}
		if seen > last {
			last, end = seen, time.Now().Add(patience)
		}
		if time.Now().After(end) {
			t.Errorf("the word stays at %d of %d", seen, rounds)
			return
		}
	}
}

// testFullBothWays queues more than any queue holds, both ways at once, while
// nobody waits.
func testFullBothWays(t *testing.T, p *pair) {
	const n = 5000
	var all sync.WaitGroup
	for _, direction := range []*pair{p, p.back()} {
		src := source(t, direction, device, 8, []uint64{7})
		own, dst := direction.onDevice(t, 16)
		all.Go(func() {
			for i := range uint64(n) {
				if err := errors.Join(direction.a.Connection.Write(dst, 8, src, 0, 8), direction.a.Connection.UpdateAndSync(dst, 0, i, i+1)); err != nil {
					t.Error(err)
					return
				}
			}
			direction.flush(t)
			testcmp.Equal(t, "what arrived", read[uint64](t, own, 0, 2), []uint64{n, 7})
		})
	}
	all.Wait()
}

// testGoroutines has many goroutines use one connection. What each queues is in
// order.
func testGoroutines(t *testing.T, p *pair) {
	const goroutines, rounds = 8, 50
	values := make([]uint64, rounds+1)
	for i := range values {
		values[i] = uint64(i)
	}
	src := source(t, p, device, 8*(rounds+1), values)
	own, dst := p.onDevice(t, 16*goroutines)
	var all sync.WaitGroup
	for g := range uint64(goroutines) {
		all.Go(func() {
			for k := uint64(1); k <= rounds; k++ {
				if err := errors.Join(
					p.a.Connection.Write(dst, 16*g+8, src, 8*k, 8),
					p.a.Connection.UpdateAndSync(dst, 16*g, k-1, k),
				); err != nil {
					t.Error(err)
					return
				}
				if !p.flush(t) {
					return
				}
				testcmp.Equal(t, "the word and what was written before it, after a flush", read[uint64](t, own, 16*g, 2), []uint64{k, k})
			}
		})
	}
	all.Wait()
}

// testWriteBytes writes bytes of all sizes among writes of memory and updates, to
// overlapping ranges. The bytes are changed as soon as they may be.
func testWriteBytes(t *testing.T, p *pair) {
	c := p.a.Connection
	limit := c.InlineLimit()
	if limit == 0 {
		t.Skip("the transport copies from registered memory only")
	}
	const size, operations = 1 << 20, 400
	data := noise(size)
	src := source(t, p, device, size, data)
	for _, to := range []kind{device, pinned} {
		own, dst, ok := p.target(t, to, 8+size)
		if !ok {
			continue
		}
		random := rand.New(rand.NewPCG(1, 2))
		want, buffer := make([]byte, 8+size), make([]byte, limit)
		word := uint64(0)
		last := make([]string, 8+size) // what wrote each byte
		for i := range operations {
			n := random.Uint64N(limit + 1)
			if i%8 == 0 {
				n = []uint64{0, 1, limit - 1, limit}[i/8%4]
			}
			large := random.IntN(16) == 0
			if large {
				n = random.Uint64N(size)
			}
			from, at := random.Uint64N(size-n), random.Uint64N(min(size-n, 8*limit))
			copy(want[8+at:8+at+n], data[from:])
			var err error
			call := "Write"
			if large || random.IntN(4) == 0 {
				err = c.Write(dst, 8+at, src, from, n)
			} else {
				call = "WriteBytes"
				copy(buffer, data[from:from+n])
				err = c.WriteBytes(dst, 8+at, buffer[:n])
				clear(buffer)
			}
			call = fmt.Sprintf("call %d of %d, %s of %d bytes at %d", i+1, operations, call, n, 8+at)
			for i := range n {
				last[8+at+i] = call
			}
			if err == nil && i%3 == 0 {
				err = c.UpdateAndSync(dst, 0, word, word+1)
				word++
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p.flush(t)
		binary.NativeEndian.PutUint64(want, word)
		got := read[byte](t, own, 0, 8+size)
		if at := differ(want, got); at >= 0 {
			hint := ""
			if strings.Contains(last[at], "WriteBytes") {
				hint = ", whose data may have been read after it had returned"
			}
			t.Errorf("%v memory: byte %d is %#x, not %#x; it was last written by %s%s", to, at, got[at], want[at], cmp.Or(last[at], "updates or not at all"), hint)
		}
	}
}

// testWriteBytesFull queues more bytes than there is room for.
func testWriteBytesFull(t *testing.T, p *pair) {
	if p.a.Connection.InlineLimit() == 0 {
		t.Skip("the transport copies from registered memory only")
	}
	const writes, each = 5000, 7
	data := noise(writes * each)
	own, dst := p.onDevice(t, writes*each)
	buffer := make([]byte, each)
	for at := uint64(0); at < writes*each; at += each {
		copy(buffer, data[at:])
		if err := p.a.Connection.WriteBytes(dst, at, buffer); err != nil {
			t.Fatal(fmt.Errorf("at %d: %w", at, err))
		}
		clear(buffer)
	}
	p.flush(t)
	if at := differ(data, read[byte](t, own, 0, writes*each)); at >= 0 {
		t.Errorf("write %d of %d bytes was lost, or its data were read after WriteBytes had returned", at/each+1, each)
	}
}
