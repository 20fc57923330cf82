package conntest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// atomics skips a test of atomic operations where the transport has none, which it says in an
// error.
func atomics(t *testing.T, p *pair) {
	t.Helper()
	_, dst := p.onDevice(t, 8)
	err := p.a.Connection.Add(dst, 0, 1)
	if errors.Is(err, mscclgo.ErrUnsupported) {
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1")
		testerr.Expect(t, p.a.Connection.Exchange(p.a.memory(t, device, 8), 0, dst, 0, 1), mscclgo.ErrUnsupported, "rank 0, peer 1")
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// owner is what the other rank does to a word of its own at the same time: by the host where
// it can, else by the device.
type owner struct {
	word   *uint64 // nil: the device
	stream *gpu.Stream
	m      *registeredmem.Memory
	old    *gpu.Buffer
}

// owner returns nil where what the other rank does is not atomic to what the connection does.
func (p *pair) owner(t *testing.T, m *registeredmem.Memory) *owner {
	t.Helper()
	if p.a.Apart {
		return nil
	}
	if host := m.Buffer().HostBytes(); host != nil {
		return &owner{word: (*uint64)(unsafe.Pointer(&host[0]))}
	}
	o := &owner{m: m}
	var err error
	if o.stream, err = p.b.Registry.Device().NewStream(); err == nil {
		o.old, err = p.b.Registry.Device().AllocHost(8)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(o.stream.Close(), o.old.Close()); err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *owner) add(value uint64) error {
	if o.word != nil {
		atomic.AddUint64(o.word, value)
		return nil
	}
	return errors.Join(o.stream.Internal().Add64(o.m.Buffer(), 0, value), o.stream.Synchronize(context.Background()))
}

func (o *owner) exchange(value uint64) (old uint64, err error) {
	if o.word != nil {
		return atomic.SwapUint64(o.word, value), nil
	}
	err = errors.Join(o.stream.Internal().Exchange64(o.m.Buffer(), 0, value, o.old, 0), o.stream.Synchronize(context.Background()))
	return *(*uint64)(unsafe.Pointer(&o.old.Bytes()[0])), err
}

// testAdds adds from several goroutines, in both directions, while the ranks whose words they
// are add too. Nothing is lost, and nothing is carried out of the word.
func testAdds(t *testing.T, p *pair) {
	atomics(t, p)
	const adders = 4
	rounds := p.rounds(1000)
	for _, k := range []kind{device, pinned} {
		type sum struct {
			own  *registeredmem.Memory
			want uint64
		}
		var sums []*sum
		var added, owners sync.WaitGroup
		var stop atomic.Bool
		for _, p := range []*pair{p, p.back()} {
			own, dst, ok := p.target(t, k, 16)
			if !ok {
				continue
			}
			s := &sum{own: own}
			sums = append(sums, s)
			for i := range uint64(adders) {
				s.want += rounds * (1<<50 + i)
				added.Go(func() {
					for range rounds {
						if err := p.a.Connection.Add(dst, 0, 1<<50+i); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			o := p.owner(t, own)
			owners.Go(func() {
				for ; o != nil && !stop.Load() && !t.Failed(); runtime.Gosched() {
					if err := o.add(1 << 30); err != nil {
						t.Error(err)
					}
					s.want += 1 << 30
				}
			})
		}
		added.Wait()
		flushed := p.flush(t) && p.back().flush(t)
		stop.Store(true)
		owners.Wait()
		if !flushed {
			return
		}
		for _, s := range sums {
			testcmp.Equal(t, fmt.Sprintf("%v memory: the sum, and what is beside it", k), read[uint64](t, s.own, 0, 2), []uint64{s.want, 0})
		}
	}
}

// testExchanges has both ranks replace one word by numbers that none has used before. Each is
// taken out by one exchange, but for the last, which is still there.
func testExchanges(t *testing.T, p *pair) {
	atomics(t, p)
	rounds := p.rounds(500)
	for _, k := range []kind{device, pinned} {
		own, dst, ok := p.target(t, k, 8)
		if !ok {
			continue
		}
		olds := p.a.memory(t, k, 8*rounds)
		var theirs []uint64
		var other sync.WaitGroup
		if o := p.owner(t, own); o != nil {
			other.Go(func() {
				for i := range rounds {
					old, err := o.exchange(1<<63 + i)
					if err != nil {
						t.Error(err)
					}
					theirs = append(theirs, old)
				}
			})
		}
		for i := range rounds {
			if err := p.a.Connection.Exchange(olds, 8*i, dst, 0, i+1); err != nil {
				t.Fatal(err)
			}
		}
		other.Wait()
		if !p.flush(t) {
			return
		}
		want := []uint64{0} // what was there first
		for i := range rounds {
			want = append(want, i+1)
		}
		for i := range uint64(len(theirs)) {
			want = append(want, 1<<63+i)
		}
		got := slices.Concat(read[uint64](t, olds, 0, int(rounds)), theirs, []uint64{word(t, own, 0)})
		slices.Sort(got)
		testcmp.Equal(t, fmt.Sprintf("%v memory: what was exchanged, and what is left", k), got, want)
	}
}

// testOrderOfAtomics mixes additions and exchanges with writes, stores and reads of the same
// words, and sends on what was exchanged. All is as if it was done in order.
func testOrderOfAtomics(t *testing.T, p *pair) {
	atomics(t, p)
	const rounds, words = 1200, 4
	c := p.a.Connection
	values := make([]uint64, rounds*words)
	for i := range values {
		values[i] = 1<<40 + uint64(i)
	}
	src := source(t, p, device, 8*rounds*words, values)
	own, dst := p.onDevice(t, 8*words)
	_, copied := p.onDevice(t, 8*rounds)
	olds, place := p.a.memory(t, device, 8*rounds), p.a.memory(t, device, 8)
	seen, back := p.a.memory(t, device, 8*rounds*words), p.a.memory(t, device, 8*rounds)
	can := map[string]bool{"read": true, "store": true}
	try := func(what string, f func() error) {
		t.Helper()
		if !can[what] {
			return
		}
		if err := f(); errors.Is(err, mscclgo.ErrUnsupported) {
			can[what] = false
		} else if err != nil {
			t.Fatal(err)
		}
	}
	want, history := make([]uint64, words), make([]uint64, 0, rounds*words)
	wantOlds, wantCopied := make([]uint64, rounds), make([]uint64, rounds)
	for i := range uint64(rounds) {
		at := i / 6 % words
		var err error
		switch i % 6 {
		case 0:
			copy(want, values[i*words:(i+1)*words])
			err = c.Write(dst, 0, src, 8*i*words, 8*words)
		case 1, 4:
			want[at] += i << 20
			err = c.Add(dst, 8*at, i<<20)
		case 2:
			try("store", func() error { return c.Store(dst, 8*at, i) })
			if can["store"] {
				want[at] = i
			}
		case 3:
			wantOlds[i], want[at] = want[at], ^i
			err = c.Exchange(olds, 8*i, dst, 8*at, ^i)
		case 5:
			// What is there goes on, and the next takes its place here.
			wantCopied[i], want[at] = want[at], i
			err = errors.Join(c.Exchange(place, 0, dst, 8*at, i), c.Write(copied, 8*i, place, 0, 8))
		}
		if err != nil {
			t.Fatal(err)
		}
		history = append(history, want...)
		if i%5 == 0 {
			try("read", func() error { return c.Read(seen, 8*i*words, dst, 0, 8*words) })
		}
	}
	try("read", func() error { return c.Read(back, 0, copied, 0, 8*rounds) })
	if !p.flush(t) {
		return
	}
	testcmp.Equal(t, "the words after writes and atomic operations in turn", read[uint64](t, own, 0, words), want)
	for i, old := range read[uint64](t, olds, 0, rounds) {
		if old != wantOlds[i] {
			t.Errorf("exchange %d found %#x, not %#x", i, old, wantOlds[i])
			break // what was sent on may be wrong too
		}
	}
	if !can["read"] {
		return
	}
	for i, old := range read[uint64](t, back, 0, rounds) {
		if old != wantCopied[i] {
			t.Fatalf("what exchange %d found was sent on as %#x, and is %#x", i, old, wantCopied[i])
		}
	}
	compareSeen(t, seen, history, words)
}

// testAddThenUpdate adds 1, and updates another word. A reader that sees the update sees the sum.
func testAddThenUpdate(t *testing.T, p *pair) {
	atomics(t, p)
	rounds := p.rounds(2000)
	for _, k := range []kind{device, pinned} {
		own, dst, ok := p.target(t, k, 8)
		if !ok {
			continue
		}
		flag, remote := p.onDevice(t, 8)
		var sender sync.WaitGroup
		sender.Go(func() {
			for i := uint64(1); i <= rounds && !t.Failed(); i++ {
				if err := errors.Join(p.a.Connection.Add(dst, 0, 1), p.a.Connection.UpdateAndSync(remote, 0, i-1, i)); err != nil {
					t.Error(err)
				}
			}
			p.flush(t)
		})
		for end, last := time.Now().Add(patience), uint64(0); last < rounds && !t.Failed(); {
			told := word(t, flag, 0)
			// The next sum may be under way, and be seen in part.
			sum := word(t, own, 0)
			for p.a.Tears && sum < told && time.Now().Before(end) {
				sum = word(t, own, 0)
			}
			if sum < told {
				t.Errorf("%v memory: update %d is here, and the sum is still %d", k, told, sum)
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

// testExchangeTurns takes turns to exchange while nothing is done, until there is no room. No
// call in a turn waits. A transport whose exchanges always wait has no turn for them.
func testExchangeTurns(t *testing.T, p *pair) {
	atomics(t, p)
	p.flush(t)
	c := p.a.Connection
	own, dst := p.onDevice(t, 8)
	old := p.a.memory(t, device, 8)
	n := uint64(0)
	take := turnsOf(t, "an exchange", func() (bool, error) {
		turn, ok := c.Internal().TryTurn(connection.Exchange, 0)
		if !ok {
			return false, nil
		}
		defer turn.End()
		n++
		err := turn.Do(connection.Operation{Kind: connection.Exchange, Theirs: dst, Own: old, To: n})
		if err == nil {
			_, err = turn.Mark()
		}
		return true, err
	})
	if p.a.Apart {
		if take() {
			t.Error("there is a turn for an exchange that waits")
		}
		return
	}
	takeTurns(t, p, "to exchange", take)
	testcmp.Equal(t, "the word, and what it was", []uint64{word(t, own, 0), word(t, old, 0)}, []uint64{n, n - 1})
}

// testWrongAtomics makes atomic operations with invalid arguments. Nothing changes.
func testWrongAtomics(t *testing.T, p *pair) {
	atomics(t, p)
	const size = 64
	c := p.a.Connection
	own, dst := p.onDevice(t, size)
	mine := p.a.memory(t, device, size)
	left := p.a.memory(t, device, size)
	_, gone := p.onDevice(t, size)
	if err := errors.Join(gone.Close(), left.Close()); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"nil":                  c.Add(nil, 0, 1),
		"of this rank":         c.Add(mine, 0, 1),
		"not imported":         c.Add(own, 0, 1),
		"closed":               c.Add(gone, 0, 1),
		"not aligned":          c.Add(dst, 4, 1),
		"past the end":         c.Add(dst, size, 1),
		"half a word":          c.Add(dst, size-4, 1),
		"far away":             c.Add(dst, 1<<64-8, 1),
		"exchange nil":         c.Exchange(mine, 0, nil, 0, 1),
		"exchange into nil":    c.Exchange(nil, 0, dst, 0, 1),
		"exchange backwards":   c.Exchange(dst, 0, mine, 0, 1),
		"exchange closed":      c.Exchange(mine, 0, gone, 0, 1),
		"exchange into closed": c.Exchange(left, 0, dst, 0, 1),
		"exchange not aligned": c.Exchange(mine, 0, dst, 1, 1),
		"into what is not":     c.Exchange(mine, 12, dst, 0, 1),
		"exchange past end":    c.Exchange(mine, 0, dst, size, 1),
		"exchange into no end": c.Exchange(mine, size, dst, 0, 1),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0, peer 1") })
	}
	p.flush(t)
	expectZeros(t, "the peer's memory, by an operation that was refused,", own.Buffer())
	expectZeros(t, "this rank's memory, by an exchange that was refused,", mine.Buffer())
	p.close(t)
	testerr.Expect(t, c.Add(dst, 0, 1), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
	testerr.Expect(t, c.Exchange(mine, 0, dst, 0, 1), mscclgo.ErrInvalid, "closed", "rank 0, peer 1")
}

// testAtomicsOfDeadPeer ends the peer among atomic operations. Calls fail in time.
func testAtomicsOfDeadPeer(t *testing.T, p *pair) {
	if p.b.Kill == nil {
		t.Skip("the transport does not need the peer")
	}
	atomics(t, p)
	c := p.a.Connection
	_, dst := p.onDevice(t, 8)
	mine := p.a.memory(t, device, 8)
	p.b.Kill()
	expectDead(t, "an addition, an exchange or a flush after the peer's death", func() error {
		for {
			if err := errors.Join(c.Add(dst, 0, 1), c.Exchange(mine, 0, dst, 0, 1), c.Flush(t.Context())); err != nil {
				return err
			}
		}
	})
	testerr.Expect(t, c.Add(dst, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Expect(t, c.Exchange(mine, 0, dst, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
}
