package gpu_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
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
		testcmp.Equal(t, fmt.Sprintf("the result of run %d", i), contents[byte](t, out, 40), want)
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

// TestWorkDuringCapture: memory can be allocated and filled, and modules loaded, while a
// stream captures.
func TestWorkDuringCapture(t *testing.T) {
	d := testdev.Open(t, 0)
	code, s, other := image(t, d), newStream(t, d), newStream(t, d)
	check(t, s.BeginCapture())
	out := must[*gpu.Buffer](t)(gpu.Upload(d, []uint32{1, 1}))
	allocHost(t, d, 8)
	fill := kernel(t, must[*gpu.Module](t)(d.LoadModule(code)), "fill")
	check(t, fill.Launch(s, gpu.Blocks(1, 32), out, 1, uint32(2)))
	check(t, fill.Launch(other, gpu.Blocks(1, 32), out.Ptr()+4, 1, uint32(3)))
	synchronize(t, other)
	for _, temporary := range []interface{ Close() error }{alloc(t, d, 8), newEvent(t, d), newStream(t, d)} {
		check(t, temporary.Close())
	}
	testcmp.Equal(t, "the memory before the graph is launched", contents[uint32](t, out, 2), []uint32{1, 3})
	graph := must[*gpu.Graph](t)(s.EndCapture())
	check(t, graph.Launch(s))
	synchronize(t, s)
	testcmp.Equal(t, "the memory after it is launched", contents[uint32](t, out, 2), []uint32{2, 3})
}

// TestLaunchHooks: each launch of a graph goes through the functions that were registered
// during its capture, and no others.
func TestLaunchHooks(t *testing.T) {
	d := testdev.Open(t, 0)
	s, on := newStream(t, d), newStream(t, d)
	var log []string
	fail := errors.New("refused")
	hook := func(name string) func(*gpu.Stream, inside.GraphLaunch) error {
		return func(stream *gpu.Stream, g inside.GraphLaunch) error {
			log = append(log, fmt.Sprint(name, " begins ", stream == on))
			if name == "refuses" {
				return fail
			}
			defer func() { log = append(log, name+" ends") }()
			return g.Launch()
		}
	}
	capture := func(hooks map[uint64]string) *gpu.Graph {
		check(t, s.BeginCapture())
		for id, name := range hooks {
			s.Internal().Carry(id, id == 7, hook(name))
			s.Internal().Carry(id, false, hook("a second one"))
		}
		return must[*gpu.Graph](t)(s.EndCapture())
	}
	s.Internal().Carry(1, false, hook("outside"))
	check(t, capture(nil).Launch(on))
	check(t, capture(map[uint64]string{7: "inner", 3: "outer"}).Launch(on))
	if err := capture(map[uint64]string{7: "inner", 3: "refuses"}).Launch(on); err != fail {
		t.Errorf("a launch that is refused returned %v", err)
	}
	want := []string{"outer begins true", "inner begins true", "inner ends", "outer ends", "refuses begins true"}
	testcmp.Equal(t, "calls", log, want)
}

// TestCapture: all streams of a capture have the same number until it ends.
func TestCapture(t *testing.T) {
	d := testdev.Open(t, 0)
	s, joined, e := newStream(t, d), newStream(t, d), newEvent(t, d)
	is := func(stream *gpu.Stream, want uint64) {
		t.Helper()
		if got := stream.Internal().Capture(); got != want {
			t.Errorf("the capture is %v, want %v", got, want)
		}
	}
	is(s, 0)
	check(t, s.Record(e))
	check(t, s.BeginCapture())
	first := s.Internal().Capture()
	if first == 0 {
		t.Fatal("the stream does not capture")
	}
	is(joined, 0)
	check(t, joined.Wait(e)) // recorded before
	is(joined, 0)
	check(t, s.Record(e))
	check(t, joined.Wait(e))
	is(joined, first)
	check(t, joined.Record(e))
	check(t, s.Wait(e))
	check(t, must[*gpu.Graph](t)(s.EndCapture()).Launch(joined))
	synchronize(t, joined)
	is(s, 0)
	is(joined, 0)
	check(t, s.BeginCapture())
	if second := s.Internal().Capture(); second == 0 || second == first {
		t.Error("a new capture has no number, or the old one's")
	}
	must[*gpu.Graph](t)(s.EndCapture())
}

// TestCaptureForks captures work of three streams, each of which waits for others.
func TestCaptureForks(t *testing.T) {
	d := testdev.Open(t, 0)
	s, left, right := newStream(t, d), newStream(t, d), newStream(t, d)
	fork, first, last := newEvent(t, d), newEvent(t, d), newEvent(t, d)
	b := must[*gpu.Buffer](t)(d.Alloc(32))
	check(t, gpu.CopyIn(b, make([]uint64, 4)))
	check(t, s.BeginCapture())
	check(t, errors.Join(
		s.Internal().Add64(b, 0, 1), s.Record(fork), left.Wait(fork), right.Wait(fork),
		left.Copy(b, 8, b, 0, 8), left.Record(first),
		right.Copy(b, 16, b, 0, 8), right.Wait(first), right.Internal().Add64(b, 8, 10), right.Record(last),
		s.Wait(last), s.Copy(b, 24, b, 8, 8)))
	_, err := left.Query()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "captur", name(t))
	g := must[*gpu.Graph](t)(s.EndCapture())
	for _, on := range []*gpu.Stream{s, left, newStream(t, d)} {
		check(t, g.Launch(on))
		synchronize(t, on)
	}
	for _, freed := range []*gpu.Stream{left, right} {
		check(t, freed.Internal().Add64(b, 0, 100)) // at once
		synchronize(t, freed)
	}
	got := make([]uint64, 4)
	check(t, gpu.CopyOut(got, b))
	testcmp.Equal(t, "words", got, []uint64{203, 13, 3, 13})
	check(t, g.Close())
}

// TestCaptureUnjoined: the stream that began a capture ends it, and waits for all that took part.
func TestCaptureUnjoined(t *testing.T) {
	d := testdev.Open(t, 0)
	s, side, other := newStream(t, d), newStream(t, d), newStream(t, d)
	fork := newEvent(t, d)
	b := must[*gpu.Buffer](t)(d.Alloc(8))
	check(t, gpu.CopyIn(b, []uint64{0}))
	begin := func() {
		t.Helper()
		check(t, errors.Join(s.BeginCapture(), s.Record(fork), side.Wait(fork), side.Internal().Add64(b, 0, 1)))
	}
	begin()
	_, err := s.EndCapture()
	testerr.Expect(t, err, mscclgo.ErrInvalid, name(t))
	check(t, side.Internal().Add64(b, 0, 10)) // takes part no more
	synchronize(t, side)

	begin()
	_, err = side.EndCapture()
	testerr.Expect(t, err, mscclgo.ErrInvalid, name(t))
	s.EndCapture() // the driver may have ended it

	begin()
	check(t, other.BeginCapture())
	testerr.Expect(t, other.Wait(fork), mscclgo.ErrInvalid, name(t))
	s.EndCapture()
	other.EndCapture()
	for _, stream := range []*gpu.Stream{s, side, other} {
		synchronize(t, stream)
	}
	got := make([]uint64, 1)
	check(t, gpu.CopyOut(got, b))
	testcmp.Equal(t, "the word", got, []uint64{10})
}

func TestCaptureRefuses(t *testing.T) {
	s := newStream(t, testdev.Open(t, 0))
	_, err := s.EndCapture()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "end a capture", name(t))
	check(t, s.BeginCapture())
	testerr.Expect(t, s.BeginCapture(), mscclgo.ErrInvalid, "begin a capture", name(t))
	// The driver may have invalidated the capture, or ended it.
	if graph, err := s.EndCapture(); err == nil {
		check(t, graph.Close())
	}
	check(t, s.BeginCapture())
	testerr.Expect(t, s.Synchronize(deadline(t)), mscclgo.ErrInvalid, name(t))
	if graph, err := s.EndCapture(); err == nil {
		check(t, graph.Close())
	}
	synchronize(t, s)
}
