package gpu_test

import (
	"runtime"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// another returns a second Device of the same name, as the one of other code.
func another(t *testing.T, d *gpu.Device) *gpu.Device {
	t.Helper()
	return must[*gpu.Device](t)(gpu.Open(d.String()))
}

func wrapStream(t *testing.T, d *gpu.Device, handle uintptr) *gpu.Stream {
	t.Helper()
	return must[*gpu.Stream](t)(d.WrapStream(handle))
}

// TestWrapStream runs all kinds of work on a stream of other code, in one order with the
// work of its owner.
func TestWrapStream(t *testing.T) {
	d := testdev.Open(t, 0)
	theirs := another(t, d)
	owner := newStream(t, theirs)
	s := wrapStream(t, d, owner.Handle())
	testcmp.Equal(t, "the handle of the wrapped stream", s.Handle(), owner.Handle())
	a, b := alloc(t, d, 64), alloc(t, theirs, 64)
	gate := allocHost(t, d, 8)
	fill := kernel(t, load(t, d), "fill")
	e, mine := newEvent(t, d), newStream(t, d)
	shared, err := d.Access(b)
	check(t, err)

	check(t, s.WaitValue64(gate, 0, 1, gpu.Equal))
	check(t, owner.Fill(b, 0, 1, 64))
	check(t, s.Copy(a, 0, shared, 0, 64))
	check(t, fill.Launch(s, gpu.Blocks(1, 32), a, 4, uint32(0x02020202)))
	check(t, s.Record(e))
	check(t, mine.Wait(e))
	check(t, mine.Fill(a, 60, 3, 4))
	if done, err := owner.Query(); done || err != nil {
		t.Errorf("the owner's stream is done before the work began: %v, %v", done, err)
	}
	check(t, gpu.CopyIn(gate, []uint64{1}))
	synchronize(t, s)
	synchronize(t, owner)
	synchronize(t, mine)
	want := make([]byte, 64)
	for i := range want {
		want[i] = 1
		if i < 16 {
			want[i] = 2
		} else if i >= 60 {
			want[i] = 3
		}
	}
	testcmp.Equal(t, "the memory", contents[byte](t, a, 64), want)

	check(t, s.Close())
	check(t, s.Close())
	check(t, owner.Fill(b, 0, 9, 64)) // which Close left alone
	synchronize(t, owner)
	testcmp.Equal(t, "the owner's memory", contents[byte](t, b, 1), []byte{9})
}

// TestWrapOwn: what the same Device wraps stays open too.
func TestWrapOwn(t *testing.T) {
	d := testdev.Open(t, 0)
	owner, e := newStream(t, d), newEvent(t, d)
	check(t, wrapStream(t, d, owner.Handle()).Close())
	wrapped, err := d.WrapEvent(e.Handle())
	check(t, err)
	check(t, wrapped.Close())
	check(t, owner.Record(e))
	check(t, owner.Fill(alloc(t, d, 64), 0, 1, 64))
	synchronize(t, owner)
	check(t, e.Synchronize(t.Context()))
}

// TestWrapDefaultStreams: work on the default streams is done, and is marked for others.
func TestWrapDefaultStreams(t *testing.T) {
	d := testdev.Open(t, 0)
	runtime.LockOSThread() // for the stream of the thread
	defer runtime.UnlockOSThread()
	for handle := range uintptr(3) {
		s, again, mine, e := wrapStream(t, d, handle), wrapStream(t, d, handle), newStream(t, d), newEvent(t, d)
		a := alloc(t, d, 8)
		check(t, s.Fill(a, 0, 1, 8))
		check(t, again.Fill(a, 0, byte(handle), 4))
		check(t, s.Record(e))
		check(t, mine.Wait(e))
		check(t, mine.Copy(a, 4, a, 0, 4))
		synchronize(t, mine)
		testcmp.Equal(t, "the memory", contents[byte](t, a, 8), []byte{byte(handle), byte(handle), byte(handle), byte(handle), byte(handle), byte(handle), byte(handle), byte(handle)})
		check(t, s.Close())
		check(t, again.Fill(a, 0, 7, 8))
		synchronize(t, again)
	}
}

// TestWrapEvent waits for an event that other code recorded, and has it wait for ours.
func TestWrapEvent(t *testing.T) {
	d := testdev.Open(t, 0)
	theirs := another(t, d)
	owner, e := newStream(t, theirs), newEvent(t, theirs)
	wrapped, s := must[*gpu.Event](t)(d.WrapEvent(e.Handle())), newStream(t, d)
	testcmp.Equal(t, "the handle of the wrapped event", wrapped.Handle(), e.Handle())
	gate, word := allocHost(t, d, 8), allocHost(t, d, 8)
	there, err := theirs.Access(gate)
	check(t, err)

	check(t, owner.WaitValue64(there, 0, 1, gpu.Equal))
	check(t, owner.Record(e))
	check(t, s.Wait(wrapped))
	check(t, s.WriteValue64(word, 0, 5))
	if done, err := wrapped.Query(); done || err != nil {
		t.Errorf("the event is reached before its work began: %v, %v", done, err)
	}
	check(t, gpu.CopyIn(gate, []uint64{1}))
	check(t, wrapped.Synchronize(deadline(t)))
	synchronize(t, s)
	testcmp.Equal(t, "the word", contents[uint64](t, word, 1), []uint64{5})

	check(t, s.Record(wrapped)) // which the owner sees
	check(t, e.Synchronize(deadline(t)))
	if _, err := e.Since(e); err != nil {
		t.Error(err)
	}
	check(t, wrapped.Close())
	check(t, wrapped.Close())
	check(t, owner.Record(e))
	check(t, e.Synchronize(deadline(t)))
}

// TestForeignCapture: what a wrapped stream is given while its owner captures it becomes
// part of the owner's graph.
func TestForeignCapture(t *testing.T) {
	d := testdev.Open(t, 0)
	theirs := another(t, d)
	owner := newStream(t, theirs)
	s, e := wrapStream(t, d, owner.Handle()), newEvent(t, d)
	a := must[*gpu.Buffer](t)(gpu.Upload(d, []uint32{1, 1, 1}))
	fill := kernel(t, load(t, d), "fill")
	if s.Internal().Capture() != 0 {
		t.Error("the stream captures before its owner does")
	}

	check(t, owner.BeginCapture())
	id := s.Internal().Capture()
	if id == 0 || id != owner.Internal().Capture() || id != s.Internal().Capture() {
		t.Errorf("the capture is %v, its owner's %v", id, owner.Internal().Capture())
	}
	check(t, fill.Launch(s, gpu.Blocks(1, 32), a, 1, uint32(2)))
	check(t, s.Record(e))
	for _, err := range []error{
		s.Synchronize(deadline(t)), s.BeginCapture(), e.Synchronize(deadline(t)),
		func() error { _, err := s.Query(); return err }(),
		func() error { _, err := e.Query(); return err }(),
		func() error { _, err := s.EndCapture(); return err }(),
	} {
		testerr.Expect(t, err, mscclgo.ErrInvalid, "captur", d.String())
	}
	check(t, s.Copy(a, 4, a, 0, 4))
	testcmp.Equal(t, "the memory before the graph is launched", contents[uint32](t, a, 3), []uint32{1, 1, 1})
	graph := must[*gpu.Graph](t)(owner.EndCapture())
	if s.Internal().Capture() != 0 {
		t.Error("the stream captures after its owner's capture has ended")
	}
	check(t, s.Fill(a, 8, 0, 4)) // no part of it
	synchronize(t, s)
	testcmp.Equal(t, "the memory before the graph is launched", contents[uint32](t, a, 3), []uint32{1, 1, 0})
	check(t, graph.Launch(owner))
	synchronize(t, owner)
	testcmp.Equal(t, "the memory after it is launched", contents[uint32](t, a, 3), []uint32{2, 2, 0})

	check(t, owner.BeginCapture())
	if next := s.Internal().Capture(); next == 0 || next == id {
		t.Errorf("the next capture is %v, the one before was %v", next, id)
	}
	must[*gpu.Graph](t)(owner.EndCapture())
}

// TestOwnStreamCapturedByOthers: other code that has a stream's handle may capture it.
func TestOwnStreamCapturedByOthers(t *testing.T) {
	d := testdev.Open(t, 0)
	theirs := another(t, d)
	s := newStream(t, d)
	them := wrapStream(t, theirs, s.Handle())
	a := must[*gpu.Buffer](t)(gpu.Upload(d, []uint32{1}))
	check(t, them.BeginCapture())
	if s.Internal().Capture() == 0 {
		t.Error("the stream does not know that it captures")
	}
	check(t, s.Fill(a, 0, 3, 4))
	graph := must[*gpu.Graph](t)(them.EndCapture())
	testcmp.Equal(t, "the memory before the graph is launched", contents[uint32](t, a, 1), []uint32{1})
	check(t, graph.Launch(them))
	synchronize(t, s)
	testcmp.Equal(t, "the memory after it is launched", contents[uint32](t, a, 1), []uint32{0x03030303})
}

func TestWrapRefuses(t *testing.T) {
	d, elsewhere := testdev.Open(t, 0), testdev.Open(t, 1)
	s, e := newStream(t, elsewhere), newEvent(t, elsewhere)
	if d.String() != elsewhere.String() {
		_, err := d.WrapStream(s.Handle())
		invalid(t, err, "wrap stream", "the stream is of "+elsewhere.String())
	}
	_, err := d.WrapEvent(0)
	invalid(t, err, "wrap an event", "0")
	if d.Info().PCIBusID == "" {
		// The CUDA driver does not notice these.
		_, err = d.WrapEvent(e.Handle())
		invalid(t, err, "wrap event", "the event is of "+elsewhere.String())
		freed, err := d.NewStream()
		check(t, err)
		handle := freed.Handle()
		wrapped := wrapStream(t, d, handle)
		check(t, freed.Close())
		invalid(t, wrapped.Fill(alloc(t, d, 8), 0, 0, 8), "closed by its owner")
		invalid(t, wrapped.Synchronize(deadline(t)), "closed by its owner")
		for _, bad := range []uintptr{handle, e.Handle(), 3, 1 << 40, ^uintptr(0)} {
			_, err := d.WrapStream(bad)
			invalid(t, err, "wrap stream", "not the handle of an open stream")
		}
		_, err = d.WrapEvent(s.Handle())
		invalid(t, err, "wrap event", "not the handle of an open event")
	}
	closed, err := gpu.Open(d.String())
	check(t, err)
	check(t, closed.Close())
	_, err = closed.WrapStream(0)
	invalid(t, err, "closed")
	_, err = closed.WrapEvent(1)
	invalid(t, err, "closed")
	var none *gpu.Device
	_, err = none.WrapStream(0)
	invalid(t, err, "nil")
}

// TestWrappedOutlivesDevice: a Device may be closed while a stream that it wraps has work.
func TestWrappedOutlivesDevice(t *testing.T) {
	d := testdev.Open(t, 0)
	owner := newStream(t, d)
	gate, word := allocHost(t, d, 8), allocHost(t, d, 8)
	other, err := gpu.Open(d.String())
	check(t, err)
	s, err := other.WrapStream(owner.Handle())
	check(t, err)
	check(t, owner.WaitValue64(gate, 0, 1, gpu.Equal))
	check(t, s.Close())
	check(t, other.Close())
	check(t, owner.WriteValue64(word, 0, 4))
	check(t, gpu.CopyIn(gate, []uint64{1}))
	synchronize(t, owner)
	testcmp.Equal(t, "the word", contents[uint64](t, word, 1), []uint64{4})
}
