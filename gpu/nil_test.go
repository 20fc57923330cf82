package gpu_test

import (
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestNil calls methods of nil, which callers that ignored an error have. None panics.
func TestNil(t *testing.T) {
	dev := testdev.Open(t, 0)
	stream, memory := newStream(t, dev), alloc(t, dev, 8)
	var (
		d *gpu.Device
		b *gpu.Buffer
		s *gpu.Stream
		e *gpu.Event
		g *gpu.Graph
		m *gpu.Module
		k *gpu.Kernel
	)
	refuses := func(what string, err error) {
		t.Helper()
		invalid(t, err, what+" is nil")
	}
	_, err := d.Alloc(8)
	refuses("the device", err)
	_, err = d.Access(memory)
	refuses("the device", err)
	_, err = d.NewStream()
	refuses("the device", err)
	_, err = gpu.Upload(d, []byte{1})
	refuses("the device", err)
	_, err = dev.Access(b)
	refuses("the buffer", err)
	refuses("the buffer", stream.Fill(b, 0, 0, 8))
	refuses("the buffer", gpu.CopyIn(b, []byte{1}))
	if b.Bytes() != nil || b.HostBytes() != nil {
		t.Error("a nil buffer has bytes")
	}
	refuses("the stream", s.Fill(memory, 0, 0, 8))
	refuses("the event", stream.Record(e))
	_, err = e.Query()
	refuses("the event", err)
	refuses("the graph", g.Launch(stream))
	_, err = m.Kernel("nothing")
	refuses("the module", err)
	_, err = m.Symbol("counter")
	refuses("the module", err)
	refuses("the kernel", k.Launch(stream, gpu.Blocks(1, 1)))
	refuses("the kernel", k.SetMaxDynamicShared(0))
	_, err = k.Attributes()
	refuses("the kernel", err)
	_, err = k.MaxResidentBlocks(1, 0)
	refuses("the kernel", err)
	for _, c := range []interface{ Close() error }{d, b, s, e, g, m} {
		check(t, c.Close())
	}
}
