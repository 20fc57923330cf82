package gpu_test

import (
	"bytes"
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestCopyFill moves bytes between every two kinds of memory, at odd offsets.
func TestCopyFill(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	if s.Device() != d {
		t.Errorf("the stream is of %v", s.Device())
	}
	kinds := map[string]func(testing.TB, *gpu.Device, uint64) *gpu.Buffer{"device": alloc, "pinned": allocHost}
	for from, newSource := range kinds {
		for to, newTarget := range kinds {
			src, dst := newSource(t, d, 1000), newTarget(t, d, 1000)
			check(t, gpu.CopyIn(src, counting(1000, 7)))
			check(t, s.Fill(dst, 0, 0xee, 1000))
			check(t, s.Copy(dst, 3, src, 501, 499))
			check(t, s.Fill(dst, 999, 1, 1))
			check(t, s.Copy(dst, 0, src, 0, 0))
			check(t, s.Fill(dst, 1000, 1, 0))
			synchronize(t, s)
			want := bytes.Repeat([]byte{0xee}, 1000)
			copy(want[3:], counting(1000, 7)[501:])
			want[999] = 1
			testcmp.Equal(t, from+" to "+to, contents[byte](t, dst, 1000), want)
		}
	}
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("after synchronizing the stream is done: %v, %v", done, err)
	}
}

func TestStreamRefuses(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	b := alloc(t, d, 100)
	other := alloc(t, testdev.Open(t, 1), 100)
	closed, err := d.Alloc(100)
	check(t, err)
	check(t, closed.Close())

	const most = math.MaxUint64
	for _, r := range [][2]uint64{{0, 101}, {101, 0}, {100, 1}, {1, 100}, {most, 1}, {1, most}, {most, most}, {most - 3, 8}} {
		invalid(t, s.Copy(b, r[0], b, 0, r[1]), "copy to", "100 bytes", name(t))
		if r[1] <= 100 {
			invalid(t, s.Copy(b, 0, b, r[0], r[1]), "copy from", "100 bytes", name(t))
		}
		invalid(t, s.Fill(b, r[0], 0, r[1]), "fill", "100 bytes", name(t))
	}
	for _, offset := range []uint64{93, 96, 100, most, most - 7} {
		invalid(t, s.WriteValue64(b, offset, 1), "write value", name(t))
		invalid(t, s.WaitValue64(b, offset, 1, gpu.Equal), "wait value", name(t))
	}
	invalid(t, s.WriteValue64(b, 4, 1), "offset 4", "aligned")
	invalid(t, s.WaitValue64(b, 9, 1, gpu.Equal), "offset 9", "aligned")
	invalid(t, s.WaitValue64(b, 8, 1, gpu.Equal+1), "comparison 2")

	for _, bad := range []struct {
		b    *gpu.Buffer
		says string
	}{{other, "Access"}, {closed, "closed"}, {nil, "nil"}} {
		invalid(t, s.Copy(b, 0, bad.b, 0, 8), "copy from", bad.says)
		invalid(t, s.Copy(bad.b, 0, b, 0, 8), "copy to", bad.says)
		invalid(t, s.Fill(bad.b, 0, 0, 8), "fill", bad.says)
		invalid(t, s.WriteValue64(bad.b, 0, 1), bad.says)
		invalid(t, s.WaitValue64(bad.b, 0, 1, gpu.Equal), bad.says)
	}
	synchronize(t, s) // nothing was queued, so nothing waits
}

func TestStreamClosed(t *testing.T) {
	d := testdev.Open(t, 0)
	s, err := d.NewStream()
	check(t, err)
	b, e := alloc(t, d, 8), newEvent(t, d)
	check(t, s.Close())
	check(t, s.Close())
	_, query := s.Query()
	_, capture := s.EndCapture()
	for _, err := range []error{
		s.Fill(b, 0, 0, 8), s.Copy(b, 0, b, 4, 4), s.WriteValue64(b, 0, 0), s.WaitValue64(b, 0, 0, gpu.Equal),
		s.Record(e), s.Wait(e), s.BeginCapture(), s.Synchronize(t.Context()), query, capture,
		kernel(t, load(t, d), "nothing").Launch(s, gpu.Blocks(1, 1)),
	} {
		invalid(t, err, "the stream on "+d.String()+" is closed")
	}
}

// TestHandles: streams and events have handles until they are closed.
func TestHandles(t *testing.T) {
	d := testdev.Open(t, 0)
	seen := map[uintptr]bool{}
	for _, h := range []interface {
		Handle() uintptr
		Close() error
	}{newStream(t, d), newStream(t, d), newEvent(t, d), newEvent(t, d)} {
		handle := h.Handle()
		if handle == 0 || seen[handle] || handle != h.Handle() {
			t.Errorf("a %T on %v has handle %#x, then %#x", h, d, handle, h.Handle())
		}
		seen[handle] = true
		check(t, h.Close())
		if h.Handle() != 0 {
			t.Errorf("a closed %T has a handle", h)
		}
	}
}

// spinning is a kernel that runs until it is released, or for 10 seconds.
type spinning struct {
	stream *gpu.Stream
	memory *gpu.Buffer // the flag, then what the kernel writes
}

// startSpin launches it on a stream of its own. Everything else that the test
// needs must have been made before.
func startSpin(t testing.TB, d *gpu.Device) *spinning {
	t.Helper()
	spin := kernel(t, load(t, d), "spin")
	k := &spinning{stream: newStream(t, d), memory: allocHost(t, d, 8)}
	check(t, spin.Launch(k.stream, gpu.Blocks(1, 1), k.memory, uint64(10*time.Second), k.memory.Ptr()+4))
	return k
}

func (k *spinning) word(i int) *uint32 { return (*uint32)(unsafe.Pointer(&k.memory.Bytes()[4*i])) }

func (k *spinning) release() { atomic.StoreUint32(k.word(0), 1) }

// end releases the kernel and checks that this ended it.
func (k *spinning) end(t testing.TB) {
	t.Helper()
	k.release()
	synchronize(t, k.stream)
	if got := atomic.LoadUint32(k.word(1)); got != 1 {
		t.Errorf("the kernel wrote %d", got)
	}
}

func TestSynchronizeHonoursItsContext(t *testing.T) {
	d := testdev.Open(t, 0)
	e := newEvent(t, d)
	k := startSpin(t, d)
	check(t, k.stream.Record(e))

	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	start := time.Now()
	testerr.Expect(t, k.stream.Synchronize(short()), mscclgo.ErrTimeout, "synchronize a stream", name(t))
	testerr.Expect(t, e.Synchronize(short()), mscclgo.ErrTimeout, "event", name(t))
	if took := time.Since(start); took < 40*time.Millisecond || took > 5*time.Second {
		t.Errorf("two waits of 20 ms took %v", took)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, cancel)
	testerr.Expect(t, k.stream.Synchronize(cancelled), mscclgo.ErrAborted, "synchronize a stream")
	testerr.Expect(t, e.Synchronize(cancelled), mscclgo.ErrAborted)
	if done, err := k.stream.Query(); done || err != nil {
		t.Errorf("the stream of a running kernel is done: %v, %v", done, err)
	}
	if done, err := e.Query(); done || err != nil {
		t.Errorf("an event behind a running kernel has happened: %v, %v", done, err)
	}
	_, err := e.Since(e)
	invalid(t, err)

	k.end(t)
	check(t, e.Synchronize(deadline(t)))
	check(t, k.stream.Synchronize(cancelled)) // what is done is done, whatever the context
}

// TestEventOrdersStreams has one stream wait for what another did before an event.
func TestEventOrdersStreams(t *testing.T) {
	d := testdev.Open(t, 0)
	b, e, behind := alloc(t, d, 8), newEvent(t, d), newStream(t, d)
	check(t, gpu.CopyIn(b, make([]byte, 8)))
	out := allocHost(t, d, 8)
	k := startSpin(t, d)
	check(t, k.stream.Fill(b, 0, 5, 8))
	check(t, k.stream.Record(e))
	check(t, k.stream.Fill(b, 0, 6, 8)) // the event is not about this
	check(t, behind.Wait(e))
	check(t, behind.Copy(out, 0, b, 0, 4))
	time.Sleep(5 * time.Millisecond)
	if done, err := behind.Query(); done || err != nil {
		t.Errorf("the second stream did not wait: %v, %v", done, err)
	}
	k.end(t)
	synchronize(t, behind)
	if got := out.Bytes()[0]; got != 5 && got != 6 {
		t.Errorf("the second stream copied %d", got)
	}
}

func TestEventTime(t *testing.T) {
	d := testdev.Open(t, 0)
	start, end, never := newEvent(t, d), newEvent(t, d), newEvent(t, d)
	flag, out := alloc(t, d, 4), alloc(t, d, 4)
	check(t, gpu.CopyIn(flag, []uint32{0}))
	s, spin := newStream(t, d), kernel(t, load(t, d), "spin")
	if done, err := never.Query(); !done || err != nil {
		t.Errorf("an event that was never recorded is done: %v, %v", done, err)
	}
	check(t, never.Synchronize(t.Context()))

	check(t, s.Record(start))
	check(t, spin.Launch(s, gpu.Blocks(1, 1), flag, 20_000_000, out))
	check(t, s.Record(end))
	check(t, end.Synchronize(deadline(t)))
	if took, err := end.Since(start); err != nil || took < 19*time.Millisecond || took > 10*time.Second {
		t.Errorf("a kernel of 20 ms took %v, %v", took, err)
	}
	if back, err := start.Since(end); err != nil || back > -19*time.Millisecond {
		t.Errorf("backwards that is %v, %v", back, err)
	}
	_, err := never.Since(start)
	invalid(t, err, name(t))
	_, err = end.Since(never)
	invalid(t, err, name(t))
	_, err = end.Since(nil)
	invalid(t, err, "nil")
	_, err = end.Since(newEvent(t, testdev.Open(t, 1)))
	invalid(t, err, name(t))
	invalid(t, s.Record(newEvent(t, testdev.Open(t, 1))), "record", name(t))
	again := testdev.Open(t, 0) // of the same name
	_, err = end.Since(newEvent(t, again))
	invalid(t, err, "opened twice")
	invalid(t, s.Record(newEvent(t, again)), "opened twice")
	invalid(t, spin.Launch(newStream(t, again), gpu.Blocks(1, 1), flag, 1, out), "opened twice")
	invalid(t, s.Record(nil), "nil")
	invalid(t, s.Wait(nil), "nil")

	closed, err := d.NewEvent()
	check(t, err)
	check(t, closed.Close())
	check(t, closed.Close())
	_, err = closed.Query()
	invalid(t, err, "the event on "+d.String()+" is closed")
	_, err = end.Since(closed)
	invalid(t, err, "closed")
	invalid(t, closed.Synchronize(t.Context()), "closed")
	invalid(t, s.Record(closed), "closed")
	invalid(t, s.Wait(closed), "closed")
}

// TestValuesOrderStreams passes a baton between two streams by 64-bit values.
func TestValuesOrderStreams(t *testing.T) {
	d := testdev.Open(t, 0)
	if !d.Info().StreamMemoryOps {
		t.Skip("the device has no stream write and wait values")
	}
	a, b := newStream(t, d), newStream(t, d)
	words, data, out := alloc(t, d, 16), alloc(t, d, 64), allocHost(t, d, 64)
	// The first value is one short of 0, which counts as less.
	check(t, gpu.CopyIn(words, []uint64{math.MaxUint64, 0}))
	check(t, gpu.CopyIn(data, make([]byte, 64)))
	for i := range uint64(10) {
		check(t, b.WaitValue64(words, 0, i, gpu.GreaterOrEqual))
		check(t, b.Copy(out, i, data, 0, 1))
		check(t, b.WriteValue64(words, 8, i+1))
	}
	time.Sleep(5 * time.Millisecond)
	if done, err := b.Query(); done || err != nil {
		t.Errorf("a stream did not wait for its value: %v, %v", done, err)
	}
	for i := range uint64(10) {
		check(t, a.Fill(data, 0, byte(10+i), 64))
		check(t, a.WriteValue64(words, 0, i))
		check(t, a.WaitValue64(words, 8, i+1, gpu.Equal))
	}
	synchronize(t, a)
	synchronize(t, b)
	testcmp.Equal(t, "what the second stream copied", out.Bytes()[:11], append(counting(10, 10), 0))
	testcmp.Equal(t, "the values", contents[uint64](t, words, 2), []uint64{9, 10})
}
