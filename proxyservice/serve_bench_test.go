package proxyservice

import (
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// BenchmarkServe measures what a proxy itself takes for a trigger, in C and in Go,
// over transports that do everything at once: for one at a time, and for a full ring.
func BenchmarkServe(b *testing.B) {
	const put, signal, flush, inline = layout.PortPut, layout.PortSignal, layout.PortFlush, layout.PortInline
	for _, c := range []struct {
		name   string
		native bool
		x      fifo.Trigger
	}{
		{"native/put+signal", true, fifo.Trigger{B: 1 << 48, C: 8, Kind: put | signal}},
		{"native/put+flush", true, fifo.Trigger{B: 1 << 48, C: 8, Kind: put | flush}},
		{"go/put+signal", false, fifo.Trigger{B: 1 << 48, C: 8, Kind: put | signal}},
		{"go/put+flush", false, fifo.Trigger{B: 1 << 48, C: 8, Kind: put | flush}},
		{"go/inline", false, fifo.Trigger{C: 8, Kind: put | inline}},
		{"handler", false, fifo.Trigger{A: 1, Kind: 200}},
	} {
		for name, n := range map[string]int{"single": 1, "full": fifo.DefaultSize} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				var queue *native.Queue
				if c.native {
					if testdev.CUDA() {
						b.Skip("the queue writes to host memory")
					}
					queue = nativetest.NewQueue().Queue
				}
				bed := newBed(b, over(&idle{queue: queue}))
				took := time.Duration(0)
				rounds := b.N/n + 1
				for range rounds {
					bed.push(c.x, n)
					start := time.Now()
					testerr.Check(b, bed.serve())
					took += time.Since(start)
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(rounds*n), "ns/trigger")
			})
		}
	}
}
