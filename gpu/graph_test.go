package gpu_test

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestGraph captures a copy, a kernel and a fill, and runs them again and again.
func TestGraph(t *testing.T) {
	d := testdev.Open(t, 0)
	s, elsewhere := newStream(t, d), newStream(t, d)
	in, out := allocHost(t, d, 40), alloc(t, d, 40)
	fill := kernel(t, load(t, d), "fill")

	check(t, s.BeginCapture())
	check(t, s.Copy(out, 0, in, 0, 40))
	check(t, fill.Launch(s, gpu.Blocks(1, 32), out.Ptr()+4, 2, uint32(0x01020304)))
	check(t, s.Fill(out, 12, 9, 1))
	graph, err := s.EndCapture()
	check(t, err)
	closer(t, graph)
	in.Bytes()[0] = 77 // nothing has run yet

	for i := range byte(5) {
		check(t, gpu.CopyIn(in, counting(40, i)))
		on := s
		if i%2 == 1 {
			on = elsewhere
		}
		check(t, graph.Launch(on))
		synchronize(t, on)
		want := counting(40, i)
		copy(want[4:], []byte{4, 3, 2, 1, 4, 3, 2, 1, 9})
		if got := contents[byte](t, out, 40); string(got) != string(want) {
			t.Errorf("run %d gave %v", i, got)
		}
	}

	other := testdev.Open(t, 1)
	invalid(t, graph.Launch(newStream(t, other)), "graph", d.String())
	invalid(t, graph.Launch(nil), "nil")
	check(t, graph.Close())
	check(t, graph.Close())
	invalid(t, graph.Launch(s), "closed")
}

func TestEmptyGraph(t *testing.T) {
	s := newStream(t, testdev.Open(t, 0))
	check(t, s.BeginCapture())
	graph, err := s.EndCapture()
	check(t, err)
	closer(t, graph)
	check(t, graph.Launch(s))
	synchronize(t, s)
}

func TestCaptureRefuses(t *testing.T) {
	s := newStream(t, testdev.Open(t, 0))
	_, err := s.EndCapture()
	refused(t, err, mscclgo.ErrInvalid, "end a capture", name(t))
	check(t, s.BeginCapture())
	refused(t, s.BeginCapture(), mscclgo.ErrInvalid, "begin a capture", name(t))
	// A driver may take the capture for spoilt now, or end it.
	if graph, err := s.EndCapture(); err == nil {
		check(t, graph.Close())
	}
	check(t, s.BeginCapture())
	refused(t, s.Synchronize(deadline(t)), mscclgo.ErrInvalid, name(t))
	if graph, err := s.EndCapture(); err == nil {
		check(t, graph.Close())
	}
	synchronize(t, s)
}
