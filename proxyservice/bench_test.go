package proxyservice_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/garbage"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// BenchmarkRoundTrip measures a put with signal to the peer's kernel and one back: by
// the hosts, serving in C and in Go, and by the kernels' threads where puts are small.
func BenchmarkRoundTrip(b *testing.B) {
	for _, by := range []struct {
		name   string
		direct channel.Direct
		where  func(testing.TB, [2]*rank) [2]*rank
	}{{"host", channel.HostOnly, inC}, {"host-in-go", channel.HostOnly, inGo}, {"direct", channel.DefaultDirect, inC}} {
		for _, bytes := range []uint64{8, 1 << 10, 2 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/bytes=%d", by.name, bytes), func(b *testing.B) {
				volley(b, by.where(b, newPair(b, proxyservice.ServiceOptions{Direct: by.direct})), bytes)
			})
		}
	}
}

func volley(b *testing.B, ranks [2]*rank, bytes uint64) {
	d := newDuo(b, ranks, bytes)
	rounds := min(b.N, 1<<20)
	times := [2]*gpu.Buffer{ranks[0].alloc(b, uint64(rounds)*4), ranks[1].alloc(b, uint64(rounds)*4)}
	b.ResetTimer()
	for i, r := range ranks {
		r.launch(b, "volley", 1, 1, d.channels[i].Handle(), bytes, uint32(rounds), i == 0, times[i])
	}
	for _, r := range ranks {
		r.wait(b)
		testerr.Check(b, r.service.Err())
	}
	spread(b, read[uint32](b, times[0], rounds))
}

// spread prints quantiles of times in nanoseconds.
func spread(b *testing.B, times []uint32) {
	slices.Sort(times)
	for _, q := range []struct {
		name string
		part float64
	}{{"p50-us", 0.5}, {"p99-us", 0.99}, {"p99.9-us", 0.999}} {
		b.ReportMetric(float64(times[int(q.part*float64(len(times)-1))])/1e3, q.name)
	}
}

// BenchmarkBandwidth measures puts with signals, one behind the other, and a
// flush behind the last.
func BenchmarkBandwidth(b *testing.B) {
	for _, size := range []string{"1K", "64K", "1M", "4M", "16M", "128M"} {
		b.Run(size, func(b *testing.B) {
			var n uint64
			var unit byte
			fmt.Sscanf(size, "%d%c", &n, &unit)
			bytes := n << map[byte]int{'K': 10, 'M': 20}[unit]
			if bytes > 1<<20 && !testdev.CUDA() {
				b.Skip("an emulated device has no bandwidth to measure")
			}
			ranks := newPair(b, hostOnly)
			d := newDuo(b, ranks, bytes)
			r := ranks[0]
			result := r.alloc(b, 4)
			marks := [2]*gpu.Event{}
			for i := range marks {
				marks[i] = testerr.Must(r.dev.NewEvent())(b)
			}
			r.launch(b, "stream", 1, 1, d.channels[0].Handle(), bytes, uint32(1), result)
			b.ResetTimer()
			record(b, r, marks[0])
			r.launch(b, "stream", 1, 1, d.channels[0].Handle(), bytes, uint32(b.N), result)
			record(b, r, marks[1])
			r.wait(b)
			if got := read[uint32](b, result, 1)[0]; got != 0 {
				b.Fatalf("result %d (%v)", got, r.service.Err())
			}
			took := testerr.Must(marks[1].Since(marks[0]))(b)
			b.ReportMetric(float64(bytes)*float64(b.N)/took.Seconds()/1e9, "GB/s")
		})
	}
}

func record(b *testing.B, r *rank, e *gpu.Event) {
	testerr.Check(b, r.stream.Record(e))
}

// BenchmarkGarbage measures round trips while a goroutine allocates hard: from a
// kernel to a proxy's handler and back, and of puts from a kernel to another over the
// host, served in C and in Go. It also measures them without that goroutine.
func BenchmarkGarbage(b *testing.B) {
	for _, beside := range []string{"nothing", "garbage"} {
		b.Run("trigger/beside="+beside, func(b *testing.B) {
			ranks := newPair(b, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { return nil }})
			if beside == "garbage" {
				garbage.Make(b)
			}
			r := ranks[0]
			rounds := min(b.N, 1<<20)
			times := r.alloc(b, uint64(rounds)*4)
			b.ResetTimer()
			r.launch(b, "ask", 1, 1, r.service.Fifo(), uint32(rounds), times)
			r.wait(b)
			spread(b, read[uint32](b, times, rounds))
		})
		for _, served := range []struct {
			name string
			by   func(testing.TB, [2]*rank) [2]*rank
		}{{"put", inC}, {"put-in-go", inGo}} {
			b.Run(served.name+"/beside="+beside, func(b *testing.B) {
				ranks := served.by(b, newPair(b, hostOnly))
				if beside == "garbage" {
					garbage.Make(b)
				}
				volley(b, ranks, 1024)
			})
		}
	}
}

// BenchmarkIdle measures a round trip after the service has been idle for so
// long.
func BenchmarkIdle(b *testing.B) {
	for _, idle := range []time.Duration{100 * time.Microsecond, 2 * time.Millisecond, 50 * time.Millisecond} {
		b.Run(idle.String(), func(b *testing.B) {
			ranks := newPair(b, proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { return nil }})
			r := ranks[0]
			times := r.alloc(b, 4)
			var all []uint32
			for range min(b.N, 50) {
				time.Sleep(idle)
				r.launch(b, "ask", 1, 1, r.service.Fifo(), uint32(1), times)
				r.wait(b)
				all = append(all, read[uint32](b, times, 1)...)
			}
			spread(b, all)
		})
	}
}
