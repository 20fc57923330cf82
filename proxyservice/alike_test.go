package proxyservice

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// outcome is what serving a trigger changed.
type outcome struct {
	Memory  []byte // that puts go to
	Signals uint64
	Flushed bool
	Handled int
	Err     string
}

// outcome serves a trigger and returns what that changed.
func (b *bed) outcome(t testing.TB, x fifo.Trigger) outcome {
	t.Helper()
	read := func() (memory []byte, signals uint64) {
		t.Helper()
		testerr.Check(t, b.conn.Flush(t.Context()))
		memory, word := make([]byte, bedBytes), make([]uint64, 1)
		testerr.Check(t, gpu.CopyOut(memory, b.to))
		testerr.Check(t, gpu.CopyOut(word, b.words))
		return memory, word[0]
	}
	testerr.Check(t, gpu.CopyIn(b.to, make([]byte, bedBytes)))
	_, before := read()
	handled, position := b.handled, b.service.ring.Popped()
	b.push(x, 1)
	o := outcome{}
	if err := b.serve(); err != nil {
		o.Err = err.Error()
		testerr.Check(t, b.service.ring.Pop(1))
	}
	done, _ := b.service.ring.Internal().Words()
	o.Flushed = done[0].Load() == position+1
	o.Handled = b.handled - handled
	o.Memory, o.Signals = read()
	o.Signals -= before
	return o
}

// FuzzServe serves any trigger in C and in Go: both must change the same or fail with
// the same error.
func FuzzServe(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(0), uint8(0))
	f.Add(uint64(1)<<48|4096, uint64(2)<<48|1, uint64(64), uint64(3), uint8(layout.PortPut|layout.PortSignal))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), uint8(255))
	const all = layout.PortPut | layout.PortSignal | layout.PortFlush | layout.PortInline
	for kind := range uint8(all + 1) {
		f.Add(uint64(100), uint64(1)<<48|7, uint64(1000), uint64(0), kind)
	}
	f.Add(uint64(4096), uint64(1)<<48|4096, uint64(0), uint64(0), uint8(all))
	f.Add(uint64(4000), uint64(1)<<48, uint64(97), uint64(0), uint8(all))
	f.Add(uint64(0), uint64(1)<<48|1, uint64(4096), uint64(0), uint8(all))
	f.Add(uint64(0), uint64(1)<<48, uint64(1)<<48, uint64(0), uint8(all))
	f.Add(uint64(0), uint64(0), uint64(8), uint64(1), uint8(layout.PortSignal))
	f.Add(uint64(1)<<48, uint64(0), uint64(8), uint64(0), uint8(layout.PortPut)) // to itself both are this rank's
	for kind := range uint8(layout.PortGet) {
		f.Add(uint64(100), uint64(1)<<48|7, uint64(1000), uint64(0), layout.PortGet|kind)
	}
	for _, offset := range []uint64{0, 8, 4, 4088, 4089, 4096, 1<<48 | 8, 9 << 48} {
		f.Add(offset, ^uint64(0), uint64(8), uint64(0), uint8(layout.PortStore))
		f.Add(offset, uint64(7), uint64(8), uint64(0), uint8(layout.PortStore|layout.PortFlush))
	}
	f.Add(uint64(0), uint64(7), uint64(4), uint64(0), uint8(layout.PortStore))
	for _, offset := range []uint64{8, 4, 4088, 4089, 1<<48 | 8, 9 << 48} {
		f.Add(offset, ^uint64(0), uint64(8), uint64(0), uint8(layout.PortAdd))
		f.Add(offset, uint64(7), uint64(8), uint64(0), uint8(layout.PortAdd|layout.PortFlush))
		f.Add(offset, uint64(1)<<48|8, uint64(1)<<63, uint64(0), uint8(layout.PortExchange))
		f.Add(uint64(8), offset, uint64(7), uint64(0), uint8(layout.PortExchange|layout.PortFlush))
	}
	f.Add(uint64(4000), uint64(1)<<48, uint64(97), uint64(0), uint8(layout.PortGet))
	f.Add(uint64(0), uint64(1)<<48|4000, uint64(97), uint64(0), uint8(layout.PortGet))
	inC, inGo := newBed(f, overCudaIPC), newBed(f, overGo)
	if inC.conn.Internal().Path().Queue == nil {
		f.Skip("threads in C cannot use the connection here")
	}
	f.Fuzz(func(t *testing.T, a, b, c, detail uint64, kind uint8) {
		x := fifo.Trigger{A: a, B: b, C: c, Detail: detail, Kind: kind}
		if diff := cmp.Diff(inC.outcome(t, x), inGo.outcome(t, x)); diff != "" {
			t.Errorf("%+v has other outcomes (-in C +in Go):\n%s", x, diff)
		}
	})
}
