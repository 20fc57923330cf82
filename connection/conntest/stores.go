package conntest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// stores skips a test of stores where the transport has none, which it says in an error.
func stores(t *testing.T, p *pair) {
	t.Helper()
	_, dst := p.onDevice(t, 8)
	err := p.a.Connection.Store(dst, 0, 1)
	if errors.Is(err, mscclgo.ErrUnsupported) {
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1")
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testStores stores any values, while a reader looks all the time: it sees only values that
// were stored, whole where the transport can, and their neighbours stay.
func testStores(t *testing.T, p *pair) {
	stores(t, p)
	const rounds = 3000
	for _, k := range []kind{device, pinned} {
		own, dst, ok := p.target(t, k, 24)
		if !ok {
			continue
		}
		var stop atomic.Bool
		var reader sync.WaitGroup
		reader.Go(func() {
			for !stop.Load() && !p.a.Tears {
				if seen := word(t, own, 8); seen != 0 && seen != whole(seen&0xffffffff) {
					t.Errorf("%v memory: the word is torn: %#x", k, seen)
					return
				}
			}
		})
		random := rand.New(rand.NewPCG(3, 4))
		for range rounds {
			if err := p.a.Connection.Store(dst, 8, whole(random.Uint64N(1<<32))); err != nil {
				t.Error(err)
				break
			}
		}
		p.flush(t)
		stop.Store(true)
		reader.Wait()
		for _, value := range []uint64{1<<64 - 1, 0, 1 << 63, 1, 1 << 32} {
			if t.Failed() {
				return
			}
			if err := p.a.Connection.Store(dst, 8, value); err != nil {
				t.Fatal(err)
			}
			p.flush(t)
			testcmp.Equal(t, fmt.Sprintf("%v memory: the word after a store of %#x, and its neighbours", k, value), read[uint64](t, own, 0, 3), []uint64{0, value, 0})
		}
	}
}

// testOrderOfStores mixes stores with writes and reads of the same words. All is as if it was
// done in order.
func testOrderOfStores(t *testing.T, p *pair) {
	stores(t, p)
	const rounds, words = 1500, 4
	c := p.a.Connection
	values := make([]uint64, rounds*words)
	for i := range values {
		values[i] = 1<<40 + uint64(i)
	}
	src := source(t, p, device, 8*rounds*words, values)
	own, dst := p.onDevice(t, 8*words)
	seen := p.a.memory(t, device, 8*rounds*words)
	canRead := true
	want, history := make([]uint64, words), make([]uint64, 0, rounds*words)
	for i := range uint64(rounds) {
		at, err := i%words, error(nil)
		switch i % 3 {
		case 0:
			copy(want, values[i*words:(i+1)*words])
			err = c.Write(dst, 0, src, 8*i*words, 8*words)
		default:
			want[at] = i
			err = c.Store(dst, 8*at, i)
		}
		if err != nil {
			t.Fatal(err)
		}
		history = append(history, want...)
		if canRead && i%5 == 0 {
			if err := c.Read(seen, 8*i*words, dst, 0, 8*words); errors.Is(err, mscclgo.ErrUnsupported) {
				canRead = false
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !p.flush(t) {
		return
	}
	testcmp.Equal(t, "the words after writes and stores in turn", read[uint64](t, own, 0, words), want)
	if !canRead {
		return
	}
	compareSeen(t, seen, history, words)
}

// compareSeen compares what every fifth read of some words found, each behind one operation more, with
// what was there.
func compareSeen(t *testing.T, seen *registeredmem.Memory, history []uint64, words int) {
	t.Helper()
	got := read[uint64](t, seen, 0, len(history))
	for at := 0; at < len(history); at += 5 * words {
		for w := range words {
			if got[at+w] != history[at+w] {
				t.Fatalf("a read behind %d operations found %#x in word %d, not %#x", at/words+1, got[at+w], w, history[at+w])
			}
		}
	}
}

// testStoreThenUpdate stores, and updates another word. A reader that sees the update sees
// the store.
func testStoreThenUpdate(t *testing.T, p *pair) {
	stores(t, p)
	rounds := p.rounds(3000)
	for _, k := range []kind{device, pinned} {
		own, dst, ok := p.target(t, k, 8)
		if !ok {
			continue
		}
		flag, remote := p.onDevice(t, 8)
		var sender sync.WaitGroup
		sender.Go(func() {
			for i := uint64(1); i <= rounds && !t.Failed(); i++ {
				if err := errors.Join(p.a.Connection.Store(dst, 0, whole(i)), p.a.Connection.UpdateAndSync(remote, 0, i-1, i)); err != nil {
					t.Error(err)
				}
			}
			p.flush(t)
		})
		for end, last := time.Now().Add(patience), uint64(0); last < rounds && !t.Failed(); {
			told := word(t, flag, 0)
			stored := word(t, own, 0)
			for told > 0 && stored != whole(stored&0xffffffff) && time.Now().Before(end) {
				stored = word(t, own, 0) // the next store is under way, and was seen in part
			}
			if stored &= 0xffffffff; stored < told {
				t.Errorf("%v memory: update %d is here, and the word is still of store %d", k, told, stored)
			}
			if told != last {
				end, last = time.Now().Add(patience), told
			}
			if time.Now().After(end) {
				t.Errorf("the updates stay at %d of %d", last, rounds)
			}
		}
		sender.Wait()
	}
}

// testWrongStores makes stores with invalid arguments. Nothing is stored.
func testWrongStores(t *testing.T, p *pair) {
	stores(t, p)
	const size = 64
	c := p.a.Connection
	own, dst := p.onDevice(t, size)
	mine := p.a.memory(t, device, size)
	_, gone := p.onDevice(t, size)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"nil":          c.Store(nil, 0, 1),
		"of this rank": c.Store(mine, 0, 1),
		"not imported": c.Store(own, 0, 1),
		"closed":       c.Store(gone, 0, 1),
		"not aligned":  c.Store(dst, 4, 1),
		"past the end": c.Store(dst, size, 1),
		"half a word":  c.Store(dst, size-4, 1),
		"far away":     c.Store(dst, 1<<64-8, 1),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	p.flush(t)
	expectZeros(t, "the peer's memory, by a store that was refused,", own.Buffer())
	p.close(t)
	testerr.Expect(t, c.Store(dst, 0, 1), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
}

// testWordsOfSlices changes words of memory that begins between two words: a word is aligned by its
// address at the peer, whatever its offset is. Others are refused here, and the connection works on.
func testWordsOfSlices(t *testing.T, p *pair) {
	const shift = 4
	whole := p.b.memory(t, device, 64)
	part, err := whole.Buffer().Slice(shift, 48)
	if err != nil {
		t.Fatal(err)
	}
	own, err := p.b.Registry.Register(part)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	data, err := own.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	dst, err := p.a.Registry.Import(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dst.Close() })
	c, mine := p.a.Connection, p.a.memory(t, device, 16)
	want := make([]uint64, 8)
	for name, op := range map[string]struct {
		word uint64 // of the whole memory
		do   func(offset uint64) error
	}{
		"update":   {1, func(offset uint64) error { return c.UpdateAndSync(dst, offset, 0, 5) }},
		"store":    {2, func(offset uint64) error { return c.Store(dst, offset, 5) }},
		"add":      {3, func(offset uint64) error { return c.Add(dst, offset, 5) }},
		"exchange": {4, func(offset uint64) error { return c.Exchange(mine, 0, dst, offset, 5) }},
	} {
		offset := 8*op.word - shift
		err := op.do(offset)
		if errors.Is(err, mscclgo.ErrUnsupported) {
			continue
		}
		if want[op.word] = 5; err != nil {
			t.Errorf("%s of an aligned word: %v", name, err)
		}
		for _, off := range []uint64{shift, 1} {
			testerr.Expect(t, op.do(offset+off), mscclgo.ErrInvalid, "rank 0, peer 1", "not aligned")
		}
	}
	if p.flush(t) {
		testcmp.Equal(t, "the memory", read[uint64](t, whole, 0, 8), want)
	}
}

// testStoresToDeadPeer ends the peer among stores. Calls fail in time.
func testStoresToDeadPeer(t *testing.T, p *pair) {
	if p.b.Kill == nil {
		t.Skip("the transport does not need the peer")
	}
	stores(t, p)
	c := p.a.Connection
	_, dst := p.onDevice(t, 8)
	p.b.Kill()
	expectDead(t, "a store or a flush after the peer's death", func() error {
		for {
			if err := errors.Join(c.Store(dst, 0, 1), c.Flush(t.Context())); err != nil {
				return err
			}
		}
	})
	testerr.Expect(t, c.Store(dst, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
}
