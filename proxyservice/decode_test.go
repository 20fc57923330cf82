package proxyservice

import (
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// FuzzServe serves any trigger with empty tables and with a user's handler: it
// must give an error or reach the handler, never panic.
func FuzzServe(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(0), uint8(0))
	f.Add(uint64(1)<<48|4096, uint64(2)<<48|1, uint64(64), uint64(3), uint8(devicecode.PortPut|devicecode.PortSignal))
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), uint8(255))
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
	})
}
