package fifo_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestPayload checks every byte that threads push with triggers, of all sizes and places, in
// rings that are full most of the time. Nothing else of the ring may be touched.
func TestPayload(t *testing.T) {
	for _, c := range []struct{ size, payload, grid, block, count int }{
		{size: 2, payload: 1, grid: 1, block: 1, count: 64},
		{size: 4, payload: 40, grid: 2, block: 8, count: 40},
		{size: 16, payload: 1024, grid: 2, block: 2, count: 48},
		{size: 8, payload: fifo.MaxPayload, grid: 1, block: 1, count: 20},
	} {
		t.Run(fmt.Sprintf("ring %d, %d bytes, %dx%d threads", c.size, c.payload, c.grid, c.block), func(t *testing.T) {
			b := newBench(t, 2, patience)
			ring := b.newRing(t, fifo.Options{Size: c.size, Payload: c.payload, Words: 4, Watch: devicecode.Watch{Status: b.status.Ptr(), Timeout: uint64(patience)}})
			if ring.Internal().PayloadSize() != c.payload {
				t.Fatalf("the ring takes %d bytes", ring.Internal().PayloadSize())
			}
			words, _ := ring.Internal().Words()
			for i := range words {
				words[i].Store(^uint64(0))
			}
			producers := c.grid * c.block
			data := output[byte](t, b, producers*(c.payload+16))
			results := output[uint32](t, b, producers)
			b.launch(t, "carry", c.grid, c.block, ring.Handle(), data, uint64(c.payload), uint64(c.count), results)
			receive(t, ring, producers, c.count)
			b.wait(t)
			for p, r := range read[uint32](t, results, producers) {
				if r != 0 {
					t.Fatalf("producer %d ended with result %d", p, r)
				}
			}
			for i := range words {
				if words[i].Load() != ^uint64(0) {
					t.Errorf("word %d was overwritten", i)
				}
			}
		})
	}
}

// receive takes count triggers of each producer, and checks what came with them.
func receive(t *testing.T, ring *fifo.Ring, producers, count int) {
	t.Helper()
	next := make([]uint64, producers)
	batch := make([]fifo.Trigger, 3)
	deadline := time.Now().Add(patience)
	for left := producers * count; left > 0; {
		n := ring.PollBatch(batch)
		if n == 0 {
			runtime.Gosched()
			if time.Now().After(deadline) {
				t.Fatalf("%d triggers are missing", left)
			}
			continue
		}
		deadline = time.Now().Add(patience)
		for i, trigger := range batch[:n] {
			bytes, ok := ring.Payload(ring.Popped()+uint64(i), trigger)
			me, round := trigger.Detail>>20, trigger.Detail&(1<<20-1)
			if !ok || me >= uint64(producers) || round != next[me] || uint64(len(bytes)) != trigger.A {
				t.Fatalf("%d bytes came with %+v, %v", len(bytes), trigger, ok)
			}
			next[me]++
			for k, got := range bytes {
				if want := byte(mix(me<<40 | round<<20 | uint64(k))); got != want {
					t.Fatalf("byte %d of %d of trigger %d of producer %d, at %d, is %d, want %d", k, len(bytes), round, me, trigger.B, got, want)
				}
			}
		}
		testerr.Check(t, ring.Pop(n))
		left -= n
	}
}

// TestNoPayload checks that a trigger whose bytes cannot be there gets none.
func TestNoPayload(t *testing.T) {
	b := newBench(t, 2, patience)
	watch := devicecode.Watch{Status: b.status.Ptr(), Timeout: uint64(patience)}
	const most = 100
	for name, c := range map[string]struct {
		payload int
		change  func(*fifo.Trigger)
		away    uint64 // from the trigger's position
		ok      bool
	}{
		"right":                {payload: most, ok: true, change: func(*fifo.Trigger) {}},
		"begins too far":       {payload: most, change: func(t *fifo.Trigger) { t.B = 16 }},
		"begins far away":      {payload: most, change: func(t *fifo.Trigger) { t.B = ^uint64(0) }},
		"no bytes":             {payload: most, change: func(t *fifo.Trigger) { t.C = 0 }},
		"too many":             {payload: most, change: func(t *fifo.Trigger) { t.C = most + 1 }},
		"far too many":         {payload: most, change: func(t *fifo.Trigger) { t.C = ^uint64(0) }},
		"of one not polled":    {payload: most, away: 1, change: func(*fifo.Trigger) {}},
		"of one popped before": {payload: most, away: ^uint64(0), change: func(*fifo.Trigger) {}},
		"of a ring for none":   {payload: 0, change: func(*fifo.Trigger) {}},
	} {
		t.Run(name, func(t *testing.T) {
			ring := b.newRing(t, fifo.Options{Size: 4, Payload: c.payload, Watch: watch})
			results, positions := output[uint32](t, b, 1), output[uint64](t, b, 1)
			b.launch(t, "produce", 1, 1, ring.Handle(), uint64(2), false, results, positions)
			b.wait(t)
			for range 2 {
				if _, ok := ring.Poll(); !ok {
					t.Fatal("no trigger")
				}
			}
			testerr.Check(t, ring.Pop(1))
			trigger := fifo.Trigger{B: 3, C: most}
			c.change(&trigger)
			if bytes, ok := ring.Payload(1+c.away, trigger); ok != c.ok || ok && len(bytes) != most {
				t.Errorf("%+v has %d bytes, %v", trigger, len(bytes), ok)
			}
			testerr.Check(t, ring.Close())
			if _, ok := ring.Payload(1, fifo.Trigger{C: 1}); ok {
				t.Error("a closed ring has bytes")
			}
		})
	}
	for _, payload := range []int{-1, fifo.MaxPayload + 1} {
		if _, err := fifo.New(b.dev, fifo.Options{Payload: payload, Watch: watch}); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("a payload of %d bytes: %v", payload, err)
		}
	}
}
