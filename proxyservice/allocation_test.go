package proxyservice

import (
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// triggers are the triggers that tests and benchmarks serve.
var triggers = map[string]fifo.Trigger{
	"put with signal and flush": {B: 1 << 48, C: 64, Kind: layout.PortPut | layout.PortSignal | layout.PortFlush},
	"inlined put":               {B: 5, C: 64, Kind: layout.PortPut | layout.PortInline},
	"get with flush":            {B: 1 << 48, C: 64, Kind: layout.PortGet | layout.PortFlush},
	"store with flush":          {A: 8, B: 1 << 63, C: 8, Kind: layout.PortStore | layout.PortFlush},
	"add with flush":            {A: 8, B: 1 << 63, C: 8, Kind: layout.PortAdd | layout.PortFlush},
	"exchange with flush":       {A: 8, B: 1 << 48, C: 1 << 63, Kind: layout.PortExchange | layout.PortFlush},
	"user's":                    {A: 1, Kind: 200},
}

// TestServeAllocatesNothing serves each kind of trigger in C, where that can be, and
// in Go.
func TestServeAllocatesNothing(t *testing.T) {
	for name, x := range triggers {
		for where, queue := range map[string]*native.Queue{"in Go": nil, "in C": nativetest.NewQueue().Queue} {
			t.Run(name+" "+where, func(t *testing.T) {
				if queue != nil && testdev.CUDA() {
					t.Skip("the queue writes to host memory")
				}
				d := &idle{queue: queue}
				b := newBed(t, over(d))
				served := uint64(0)
				if n := testing.AllocsPerRun(1000, func() {
					b.push(x, 1)
					testerr.Check(t, b.serve())
					served++
				}); n != 0 {
					t.Errorf("%v allocations a trigger", n)
				}
				s := b.service.Snapshot()
				if s.Triggers[x.Kind] != served || s.Waiting != 0 {
					t.Errorf("%d of %d triggers are counted, %d wait", s.Triggers[x.Kind], served, s.Waiting)
				}
				if done, _ := b.service.ring.Internal().Words(); x.Kind&layout.PortFlush != 0 && x.Kind < fifo.FirstUserKind && done[0].Load() != served {
					t.Errorf("flushes are done up to %d of %d", done[0].Load(), served)
				}
			})
		}
	}
}

// TestInlinedBytes serves a put whose bytes are in the ring.
func TestInlinedBytes(t *testing.T) {
	d := &idle{}
	b := newBed(t, over(d))
	x := triggers["inlined put"]
	ring := b.service.ring.Internal().State()
	want := make([]byte, x.C)
	for i := range want {
		want[i] = byte(i + 1)
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(ring.Payloads, x.B)), x.C), want)
	b.push(x, 1)
	testerr.Check(t, b.serve())
	if diff := cmp.Diff(want, d.wrote); diff != "" {
		t.Errorf("other bytes were written (-want +got):\n%s", diff)
	}
}
