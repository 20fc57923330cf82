package proxyservice

import (
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// FuzzServe serves any trigger: with empty tables and a user's handler it must give
// an error or reach the handler, never panic; and C and Go must decode it alike, and
// change the same when they serve it, or C leave it to Go.
func FuzzServe(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(0), uint8(0))
	f.Add(uint64(1)<<48|4096, uint64(2)<<48|1, uint64(64), uint64(3), uint8(devicecode.PortPut|devicecode.PortSignal))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), uint8(255))
	const all = devicecode.PortPut | devicecode.PortSignal | devicecode.PortFlush | devicecode.PortInline
	for kind := range uint8(all + 1) {
		f.Add(uint64(100), uint64(1)<<48|7, uint64(1000), uint64(0), kind)
	}
	f.Add(uint64(4096), uint64(1)<<48|4096, uint64(0), uint64(0), uint8(all))
	f.Add(uint64(4000), uint64(1)<<48, uint64(97), uint64(0), uint8(all))
	f.Add(uint64(0), uint64(1)<<48|1, uint64(4096), uint64(0), uint8(all))
	f.Add(uint64(0), uint64(1)<<48, uint64(1)<<48, uint64(0), uint8(all))
	f.Add(uint64(0), uint64(0), uint64(8), uint64(1), uint8(devicecode.PortSignal))
	f.Add(uint64(1)<<48, uint64(0), uint64(8), uint64(0), uint8(devicecode.PortPut)) // to itself both are this rank's
	ways := newTwoWays(f)
	f.Fuzz(func(t *testing.T, a, b, c, detail uint64, kind uint8) {
		var reached bool
		s := server{user: func(fifo.Trigger) error { reached = true; return nil }}
		s.memories.Store(&[]*registeredmem.Memory{})
		s.ports.Store(&[]port{})
		trigger := fifo.Trigger{A: a, B: b, C: c, Detail: detail, Kind: kind}
		err := s.serve(0, trigger)
		if reached != (kind >= fifo.FirstUserKind) || (err == nil) != reached {
			t.Fatalf("%+v: reached the handler: %v, error %v", trigger, reached, err)
		}
		r, err := decode(trigger)
		if err == nil && r.put && r.bytes > offsetMask {
			t.Fatalf("%+v: a put of %d bytes", trigger, r.bytes)
		}
		if uint64(r.dst)<<48|r.dstOffset != a || uint64(r.src)<<48|r.srcOffset != b || r.bytes != c || r.port != detail {
			t.Fatalf("%+v became %+v", trigger, r)
		}
		compareWays(t, ways, trigger)
	})
}

// compareWays pushes a trigger and has both C and Go serve it.
func compareWays(t *testing.T, w *twoWays, x fifo.Trigger) {
	x.Detail &= 1<<52 - 1 // what travels
	inC, request, isRequest := nativetest.Decode(w.push(x))
	r, err := decode(x)
	if fifo.Trigger(inC) != x || isRequest != (err == nil) {
		t.Fatalf("C decodes %+v as %+v, a port's: %v; Go says %v", x, inC, isRequest, err)
	}
	if want := (nativetest.Request{
		Put: r.put, Signal: r.signal, Flush: r.flush, Inline: r.inline, Dst: r.dst, Src: r.src, Port: r.port,
		DstOffset: r.dstOffset, SrcOffset: r.srcOffset, Bytes: r.bytes,
	}); request != want {
		t.Fatalf("%+v is %+v to C, %+v to Go", x, request, want)
	}

	changed, served := w.inC(t)
	if served {
		w.push(x)
	}
	w.reached = false
	want, got, err := w.inGo(t)
	if got != x {
		t.Fatalf("%+v was pushed, Go has %+v", x, got)
	}
	if served != (err == nil && !w.reached) {
		t.Fatalf("%+v: served in C: %v, in Go: %v", x, served, err)
	}
	if served && !changed.equal(want) {
		t.Fatalf("%+v: in C %d signals, flushed: %v, in Go %d, %v; the memory is the same: %v",
			x, changed.signals, changed.flushed, want.signals, want.flushed, string(changed.memory) == string(want.memory))
	}
}
