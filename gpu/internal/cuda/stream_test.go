package cuda

import (
	"context"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const spinLimit = uint64(10 * time.Second) // of a kernel nobody releases

// TestSpinningKernel shows that a kernel which waits holds up neither
// synchronous copies nor other streams, nor the search for another kernel, and
// that Synchronize can be left.
func TestSpinningKernel(t *testing.T) {
	d := openDevice(t, 0)
	s, other, m := newStream(t, d), newStream(t, d), loadKernels(t, d)
	spin := must(m.Kernel("spin"))(t)
	flag, data := alloc(t, d, 8), alloc(t, d, 8)
	write64(t, d, flag.Ptr(), 0)
	write64(t, d, data.Ptr(), 0)

	check(t, s.Launch(spin, blocks(1, 1), packed(t, spin, flag.Ptr(), spinLimit)))
	if done := must(s.Query())(t); done {
		t.Fatal("the kernel ended by itself")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, s.Synchronize(ctx), mscclgo.ErrTimeout, "synchronize a stream", "cuda:0")
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	testerr.Expect(t, s.Synchronize(ctx), mscclgo.ErrAborted)

	add := must(m.Kernel("add"))(t)
	check(t, other.Launch(add, blocks(1, 1), packed(t, add, data.Ptr(), 1, 42)))
	finish(t, other)
	if got := read64(t, d, data.Ptr()); got != 42 {
		t.Errorf("the other stream's kernel wrote %d", got)
	}
	if done := must(s.Query())(t); done {
		t.Error("the kernel ended before it was released")
	}
	write64(t, d, flag.Ptr(), 1)
	finish(t, s)
	if done := must(s.Query())(t); !done {
		t.Error("Query returned false after Synchronize")
	}
}

// TestLazyLoading is TestSpinningKernel in a process with lazy loading.
func TestLazyLoading(t *testing.T) {
	openDevice(t, 0)
	cmd := exec.Command(os.Args[0], "-test.run=^TestSpinningKernel$")
	cmd.Env = append(os.Environ(), "CUDA_MODULE_LOADING=LAZY")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestStreamValues(t *testing.T) {
	d := openDevice(t, 0)
	if !d.Info().StreamMemoryOps {
		t.Skip("no stream memory operations here")
	}
	s := newStream(t, d)
	h := must(d.AllocHost(16))(t)
	closeAtEnd(t, h.Free)
	in := (*uint64)(unsafe.Pointer(&h.Bytes()[0]))
	out := (*uint64)(unsafe.Pointer(&h.Bytes()[8]))
	atomic.StoreUint64(in, ^uint64(0)) // -1: below 1 as a signed difference

	check(t, s.WaitValue64(h.Ptr(), 1, false))
	check(t, s.WriteValue64(h.Ptr()+8, 11))
	check(t, s.WaitValue64(h.Ptr(), 7, true))
	check(t, s.WriteValue64(h.Ptr()+8, 12))
	time.Sleep(10 * time.Millisecond)
	if v := atomic.LoadUint64(out); v != 0 {
		t.Fatalf("wrote %d before the value waited for", v)
	}
	atomic.StoreUint64(in, 5)
	for deadline := time.Now().Add(10 * time.Second); atomic.LoadUint64(out) != 11; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("wrote %d, want 11", atomic.LoadUint64(out))
		}
	}
	atomic.StoreUint64(in, 7)
	finish(t, s)
	if v := atomic.LoadUint64(out); v != 12 {
		t.Errorf("wrote %d, want 12", v)
	}
}

func TestEvents(t *testing.T) {
	d := openDevice(t, 0)
	s, other := newStream(t, d), newStream(t, d)
	m := loadKernels(t, d)
	spin, add := must(m.Kernel("spin"))(t), must(m.Kernel("add"))(t)
	var events [2]backend.Event
	for i := range events {
		events[i] = must(d.NewEvent())(t)
		closeAtEnd(t, events[i].Close)
	}
	start, end := events[0], events[1]
	_, err := end.Since(start)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "two events")

	flag, data := alloc(t, d, 8), alloc(t, d, 8)
	write64(t, d, flag.Ptr(), 0)
	write64(t, d, data.Ptr(), 0)
	const long = 30 * time.Millisecond
	check(t, s.Record(start))
	check(t, s.Launch(spin, blocks(1, 1), packed(t, spin, flag.Ptr(), uint64(long))))
	check(t, s.Launch(add, blocks(1, 1), packed(t, add, data.Ptr(), 1, 1)))
	check(t, s.Record(end))
	if done := must(end.Query())(t); done {
		t.Error("the event came before the work in front of it")
	}
	check(t, other.WaitEvent(end))
	check(t, other.Copy(data.Ptr()+4, data.Ptr(), 4))
	finish(t, other)
	if got := read64(t, d, data.Ptr()); got != 1|1<<32 {
		t.Errorf("the other stream did not wait for the event: %#x", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	check(t, end.Synchronize(ctx))
	if took := must(end.Since(start))(t); took < long || took > 100*long {
		t.Errorf("a kernel of %v took %v", long, took)
	}
}

func TestCapture(t *testing.T) {
	d := openDevice(t, 0)
	s, m := newStream(t, d), loadKernels(t, d)
	add := must(m.Kernel("add"))(t)
	data := alloc(t, d, 8)
	write64(t, d, data.Ptr(), 0)

	check(t, s.BeginCapture())
	check(t, s.Launch(add, blocks(1, 1), packed(t, add, data.Ptr(), 1, 3)))
	check(t, s.Copy(data.Ptr()+4, data.Ptr(), 4))
	g := must(s.EndCapture())(t)
	closeAtEnd(t, g.Close)
	if got := read64(t, d, data.Ptr()); got != 0 {
		t.Errorf("captured work ran: %#x", got)
	}
	for range 10 {
		check(t, g.Launch(s))
	}
	finish(t, s)
	if got := read64(t, d, data.Ptr()); got != 30|30<<32 {
		t.Errorf("ten launches returned %#x", got)
	}
	_, err := s.EndCapture()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "end a capture")

	check(t, s.BeginCapture())
	_, err = s.Query()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "CAPTURE")
	s.EndCapture() // the query spoiled it, as the driver does
	check(t, s.Fill(data.Ptr(), 0, 8))
	finish(t, s)

	for _, spoiled := range []bool{false, true} {
		check(t, s.BeginCapture())
		check(t, s.Fill(data.Ptr(), 9, 8))
		if spoiled {
			s.Query()
		}
		s.DropCapture()
		finish(t, s)
		if got := read64(t, d, data.Ptr()); got != 0 {
			t.Errorf("dropped work ran: %#x", got)
		}
	}
}
