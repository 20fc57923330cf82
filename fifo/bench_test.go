package fifo_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// drain pops total triggers as a proxy does, from a thread of its own, and
// closes the channel when it has, or when patience ends.
func drain(b *bench, total int, done chan<- bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	batch := make([]fifo.Trigger, 64)
	deadline := time.Now().Add(patience)
	for idle := 0; total > 0; {
		n := b.ring.PollBatch(batch)
		if n == 0 {
			if idle++; idle%4096 == 0 {
				if time.Now().After(deadline) {
					break
				}
				runtime.Gosched()
			}
			continue
		}
		if b.ring.Pop(n) != nil {
			break
		}
		total -= n
	}
	done <- total == 0
}

// BenchmarkTriggers measures how many triggers a second the host takes from so
// many blocks of one thread each.
func BenchmarkTriggers(b *testing.B) {
	for _, size := range []int{128, 512, 2048} {
		for _, kind := range []string{"push", "relaxedPush"} {
			for _, producers := range []int{1, 8, 32, 64, 128, 512} {
				b.Run(fmt.Sprintf("ring=%d/%s/producers=%d", size, kind, producers), func(b *testing.B) {
					triggers(b, size, producers, kind == "relaxedPush")
				})
			}
		}
	}
}

func triggers(b *testing.B, size, producers int, relaxed bool) {
	t := newBench(b, size, patience)
	results := output[uint32](b, t, producers)
	positions := output[uint64](b, t, producers)
	each := (b.N + producers - 1) / producers
	t.rate(b, each*producers, func() {
		t.launch(b, "produce", producers, 1, t.ring.Handle(), uint64(each), relaxed, results, positions)
	})
}

// rate reports how many triggers a second the host takes from a kernel that launch launches, and
// that pushes so many.
func (t *bench) rate(b *testing.B, count int, launch func()) {
	start, end := event(b, t), event(b, t)
	done := make(chan bool, 1)
	b.ResetTimer()
	record(b, t, start)
	launch()
	record(b, t, end)
	go drain(t, count, done)
	if !<-done {
		b.Fatal("triggers are missing")
	}
	t.wait(b)
	took := testerr.Must(end.Since(start))(b)
	b.ReportMetric(float64(count)/took.Seconds()/1e6, "Mtriggers/s")
}

// BenchmarkPushWays measures what one thread pushes a second in several ways: as the library
// does; with the fence before or behind the atomic on the head; two or four triggers with one of
// each; as the ring's only thread, without the atomic; and without the fence, which orders nothing.
func BenchmarkPushWays(b *testing.B) {
	for _, way := range []string{"libraryPushes", "fenceLast", "fenceFirst", "fenceTwo", "fenceFour", "fenceOwned", "relaxedOne", "relaxedFour", "relaxedOwned"} {
		b.Run(way, func(b *testing.B) {
			t := newBench(b, fifo.DefaultSize, patience)
			count := (b.N + 3) &^ 3
			t.rate(b, count, func() { t.launch(b, way, 1, 1, t.ring.Handle(), uint64(count)) })
		})
	}
}

// BenchmarkPushSync measures from a push until the kernel sees that the trigger
// was popped.
func BenchmarkPushSync(b *testing.B) {
	for _, kind := range []string{"push", "relaxedPush"} {
		b.Run(kind, func(b *testing.B) {
			t := newBench(b, fifo.DefaultSize, patience)
			n := min(b.N, 1<<20)
			times := output[uint32](b, t, n)
			start, end := event(b, t), event(b, t)
			done := make(chan bool, 1)
			b.ResetTimer()
			go drain(t, n, done)
			record(b, t, start)
			t.launch(b, "roundTrips", 1, 1, t.ring.Handle(), uint64(n), kind == "relaxedPush", times)
			record(b, t, end)
			if !<-done {
				b.Fatal("triggers are missing")
			}
			t.wait(b)
			took := testerr.Must(end.Since(start))(b)
			report(b, read[uint32](b, times, n), took)
		})
	}
}

// report prints the spread of the times, which are in ticks of a clock that ran
// while all of them took so long together.
func report(b *testing.B, ticks []uint32, took time.Duration) {
	sum := 0.0
	for _, t := range ticks {
		sum += float64(t)
	}
	slices.Sort(ticks)
	for _, q := range []struct {
		name string
		part float64
	}{{"p50-us", 0.5}, {"p99-us", 0.99}, {"p99.9-us", 0.999}} {
		at := ticks[int(q.part*float64(len(ticks)-1))]
		b.ReportMetric(float64(at)/sum*took.Seconds()*1e6, q.name)
	}
}

func event(b *testing.B, t *bench) *gpu.Event {
	e := testerr.Must(t.dev.NewEvent())(b)
	b.Cleanup(func() { e.Close() })
	return e
}

func record(b *testing.B, t *bench, e *gpu.Event) {
	testerr.Check(b, t.stream.Record(e))
}
