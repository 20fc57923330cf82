package fifo_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// patience bounds how long a test polls for the next trigger.
const patience = 60 * time.Second

// mix does what mix of push_test.cu does.
func mix(x uint64) uint64 {
	x = (x ^ x>>31) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// TestNothingLostDoubledTornOrReordered checks every bit of every trigger.
func TestNothingLostDoubledTornOrReordered(t *testing.T) {
	for _, c := range []struct {
		size, grid, block int
		count             uint64
		relaxed           bool
		start             uint64 // the position of the first trigger
	}{
		{size: 2, grid: 1, block: 1, count: 3000},
		{size: 2, grid: 2, block: 32, count: 40, relaxed: true},
		{size: 4, grid: 8, block: 1, count: 300},
		{size: 16, grid: 1, block: 1024, count: 5},
		{size: 128, grid: 4, block: 33, count: 60, relaxed: true},
		{size: 512, grid: 8, block: 128, count: 20},
		{size: 4096, grid: 1, block: 1, count: 20000, relaxed: true},
		{size: 4096, grid: 2, block: 512, count: 20},
		// Through the ends of 32 bits and of a signed count.
		{size: 4, grid: 2, block: 3, count: 30, start: 1<<32 - 8},
		{size: 512, grid: 1, block: 64, count: 40, start: 1<<32 - 1024, relaxed: true},
		{size: 8, grid: 2, block: 2, count: 30, start: 1<<63 - 16},
	} {
		t.Run(fmt.Sprintf("ring %d, %dx%d threads, from %d", c.size, c.grid, c.block, c.start), func(t *testing.T) {
			b := newBench(t, c.size, patience)
			startAt(t, b, c.start)
			producers := c.grid * c.block
			results := output[uint32](t, b, producers)
			positions := output[uint64](t, b, producers)
			b.launch(t, "produce", c.grid, c.block, b.ring.Handle(), c.count, c.relaxed, results, positions)
			last := consume(t, b, producers, c.start, c.count)
			b.wait(t)
			if _, more := b.ring.Poll(); more || b.ring.Len() != 0 {
				t.Error("a trigger is left")
			}
			for p, r := range read[uint32](t, results, producers) {
				if r != 0 {
					t.Fatalf("producer %d ended with result %d", p, r)
				}
			}
			for p, position := range read[uint64](t, positions, producers) {
				if position != last[p] {
					t.Fatalf("producer %d has its last trigger at %d, the host saw it at %d", p, position, last[p])
				}
			}
		})
	}
}

// startAt has a ring that is empty begin at another position, as if so many triggers had been
// served: a multiple of two laps, so that fresh memory has the tag of no lap.
func startAt(t *testing.T, b *bench, position uint64) {
	t.Helper()
	b.launch(t, "startAt", 1, 1, b.ring.Handle(), position)
	b.wait(t)
	state := b.ring.Internal().State()
	state.Polled = position
	state.Popped = position
	*(*uint64)(state.Tail) = position
}

// consume takes count triggers of each producer, the first at position start, in batches of
// changing sizes, and returns the position of the last of each.
func consume(t *testing.T, b *bench, producers int, start, count uint64) []uint64 {
	t.Helper()
	next, last := make([]uint64, producers), make([]uint64, producers)
	total := count * uint64(producers)
	deadline := time.Now().Add(patience)
	batch := make([]fifo.Trigger, 64)
	for got := uint64(0); got < total; {
		n := b.ring.PollBatch(batch[:1+got%uint64(len(batch))])
		if n == 0 {
			runtime.Gosched()
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d triggers arrived", got, total)
			}
			continue
		}
		deadline = time.Now().Add(patience)
		for i, trigger := range batch[:n] {
			p := trigger.A
			if p >= uint64(producers) {
				t.Fatalf("trigger %d is of producer %d of %d: %+v", got, p, producers, trigger)
			}
			want := fifo.Trigger{A: p, B: next[p], C: mix(p<<32 | next[p]), Detail: mix(next[p]) & (1<<52 - 1), Kind: uint8(fifo.FirstUserKind + p%128)}
			if trigger != want {
				t.Fatalf("trigger %d (-want +got):\n%s", got, cmp.Diff(want, trigger))
			}
			next[p]++
			last[p] = start + got + uint64(i)
		}
		got += uint64(n)
		testerr.Check(t, b.ring.Pop(n))
		if b.ring.Popped() != start+got {
			t.Fatalf("popped %d from %d on, the ring counts %d", got, start, b.ring.Popped())
		}
	}
	return last
}

// TestPushPublishes checks that what a thread wrote before push is there for the
// host, and that sync waits for Pop.
func TestPushPublishes(t *testing.T) {
	b := newBench(t, 8, patience)
	const grid, block, count = 4, 8, 50
	data := testerr.Must(b.dev.AllocHost(grid * block * 8))(t)
	t.Cleanup(func() { data.Close() })
	results := output[uint32](t, b, grid*block)
	b.launch(t, "publish", grid, block, b.ring.Handle(), data, uint64(count), results)
	seen := make([]uint64, grid*block)
	deadline := time.Now().Add(patience)
	for got := 0; got < grid*block*count; {
		trigger, ok := b.ring.Poll()
		if !ok {
			runtime.Gosched()
			if time.Now().After(deadline) {
				t.Fatalf("%d triggers arrived", got)
			}
			continue
		}
		deadline = time.Now().Add(patience)
		got++
		testerr.Check(t, gpu.CopyOut(seen, data))
		// The thread waits in sync, so no later push has changed the value.
		if seen[trigger.A] != trigger.B {
			t.Fatalf("thread %d pushed %d and the host reads %d", trigger.A, trigger.B, seen[trigger.A])
		}
		testerr.Check(t, b.ring.Pop(1))
	}
	b.wait(t)
	for p, r := range read[uint32](t, results, grid*block) {
		if r != 0 {
			t.Fatalf("thread %d ended with result %d", p, r)
		}
	}
}

// ends launches one pusher into a ring that nobody serves and returns how it ended.
func ends(t *testing.T, b *bench, count uint64) devicecode.WaitResult {
	t.Helper()
	results := output[uint32](t, b, 1)
	positions := output[uint64](t, b, 1)
	b.launch(t, "produce", 1, 1, b.ring.Handle(), count, false, results, positions)
	b.wait(t)
	return devicecode.WaitResult(read[uint32](t, results, 1)[0])
}

func TestPushIntoFullRingTimesOut(t *testing.T) {
	b := newBench(t, 4, 200*time.Millisecond)
	if got := ends(t, b, 4); got != devicecode.WaitDone {
		t.Fatalf("a push with room ended with %v", got)
	}
	if b.ring.Len() != 4 {
		t.Fatalf("%d triggers in a full ring of 4", b.ring.Len())
	}
	if got := ends(t, b, 1); got != devicecode.WaitTimedOut {
		t.Fatalf("a push into a full ring ended with %v", got)
	}
	if _, _, failed := layout.ParseFailedWait(b.words().FirstFailed); !failed {
		t.Error("the wait that timed out was not reported")
	}
}

func TestPushIntoFullRingEndsWhenAborted(t *testing.T) {
	b := newBench(t, 4, patience)
	ends(t, b, 4)
	time.AfterFunc(50*time.Millisecond, func() { gpu.CopyIn(b.status, []uint32{1}) })
	if got := ends(t, b, 1); got != devicecode.WaitAborted {
		t.Fatalf("a push into a full ring of a failed group ended with %v", got)
	}
}

func TestSyncTimesOut(t *testing.T) {
	b := newBench(t, 4, 200*time.Millisecond)
	data := output[uint64](t, b, 1)
	results := output[uint32](t, b, 1)
	b.launch(t, "publish", 1, 1, b.ring.Handle(), data, uint64(1), results)
	b.wait(t)
	if got := devicecode.WaitResult(read[uint32](t, results, 1)[0]); got != devicecode.WaitTimedOut {
		t.Fatalf("sync ended with %v", got)
	}
}

func TestWrongUse(t *testing.T) {
	b := newBench(t, 2, patience)
	watch := devicecode.Watch{Status: b.status.Ptr(), Timeout: 1}
	for _, o := range []fifo.Options{
		{Size: -1, Watch: watch}, {Size: 1, Watch: watch}, {Size: 3, Watch: watch}, {Size: 1 << 17, Watch: watch},
		{Words: -1, Watch: watch}, {Words: 1 << 30, Watch: watch},
		{Watch: devicecode.Watch{Status: watch.Status + 8, Timeout: 1}}, {Watch: devicecode.Watch{Timeout: 1 << 63}},
	} {
		if _, err := fifo.New(b.dev, o); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("options %+v: %v", o, err)
		}
	}
	for _, n := range []int{-1, 1} {
		if err := b.ring.Pop(n); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("popping %d of an empty ring: %v", n, err)
		}
	}
}

// TestZeroOptions pushes into a ring of the zero Options until it is full.
func TestZeroOptions(t *testing.T) {
	b := newBench(t, 2, patience)
	ring := b.newRing(t, fifo.Options{})
	if got := ring.Handle().Internal().Watch; got.Status == 0 || got.Timeout != uint64(30*time.Second) || ring.Size() != fifo.DefaultSize {
		t.Fatalf("%d triggers, %+v", ring.Size(), got)
	}
	b.ring = ring
	if got := ends(t, b, fifo.DefaultSize); got != devicecode.WaitDone || ring.Len() != fifo.DefaultSize {
		t.Fatalf("%d pushes ended with %v", ring.Len(), got)
	}
}

func TestWords(t *testing.T) {
	b := newBench(t, 2, patience)
	ring := b.newRing(t, fifo.Options{Size: 2, Words: 3, Watch: devicecode.Watch{Status: b.status.Ptr()}})
	words, first := ring.Internal().Words()
	if len(words) != 3 || first == 0 || words[2].Load() != 0 {
		t.Fatalf("%d words at %#x", len(words), first)
	}
	words[2].Store(1)
	if ring.Len() != 0 {
		t.Error("a word is taken for a trigger")
	}
	testerr.Check(t, ring.Close())
	if err := ring.Close(); err != nil {
		t.Fatalf("closing twice: %v", err)
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	b := newBench(t, 512, patience)
	ends(t, b, 400)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := b.ring.Poll(); !ok {
			t.Fatal("no trigger")
		}
		testerr.Check(t, b.ring.Pop(1))
	}); n != 0 {
		t.Errorf("%v allocations a trigger", n)
	}
}
