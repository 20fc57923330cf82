package emu_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/gpu/internal/emu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// must fails the test unless all went well.
func must(t testing.TB, errs ...error) {
	t.Helper()
	testerr.Check(t, errors.Join(errs...))
}

const streamSource = `
extern "C" __global__ void add(int* a, int n) { atomicAdd(a + threadIdx.x, n); }
extern "C" __global__ void await(unsigned long long* flag, unsigned long long value, unsigned long long* answer) {
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0ull) < value) {}
    if (answer) atomicAdd(answer, 1ull);
  }
  __syncthreads();
}
`

func TestStreamOrder(t *testing.T) {
	d := open(t)
	add := kernelOf(t, load(t, d, streamSource), "add")
	s := stream(t, d)
	a, b := alloc(t, d, 4096), alloc(t, d, 4096)
	for i := range 50 {
		must(t,
			s.Fill(a.Ptr(), byte(i), 256),
			s.Launch(add, shape(2, 64), pack(a.Ptr(), int32(i))),
			s.Copy(b.Ptr()+uint64(i), a.Ptr(), 1))
	}
	must(t, s.Synchronize(deadline(t)))
	if done, err := s.Query(); !done || err != nil {
		t.Errorf("after Synchronize: %v, %v", done, err)
	}
	for i, v := range read[uint8](t, d, b.Ptr(), 50) {
		if int(v) != 3*i {
			t.Fatalf("round %d left %d", i, v)
		}
	}
}

// TestStreamsRunBesideEachOther makes each of four streams wait for the next one.
func TestStreamsRunBesideEachOther(t *testing.T) {
	d := open(t)
	await := kernelOf(t, load(t, d, streamSource), "await")
	host, err := d.AllocHost(64)
	must(t, err)
	defer host.Free()
	streams := make([]backend.Stream, 4)
	for i := range streams {
		streams[i] = stream(t, d)
		flag := host.Ptr() + uint64(i)*8
		must(t, streams[i].Launch(await, shape(2, 64), pack(flag, uint64(1), flag+8)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testerr.Expect(t, streams[3].Synchronize(ctx), mscclgo.ErrTimeout)
	if done, _ := streams[3].Query(); done {
		t.Error("a stream that waits is done")
	}
	first := stream(t, d)
	must(t, first.WriteValue64(host.Ptr(), 1))
	for _, s := range streams {
		must(t, s.Synchronize(deadline(t)))
	}
}

func TestStreamValues(t *testing.T) {
	d := open(t)
	mem := alloc(t, d, 64)
	word := func(i int) uint64 { return mem.Ptr() + uint64(i)*8 }
	write(t, d, mem.Ptr(), make([]uint64, 8))
	a, b := stream(t, d), stream(t, d)
	const before = ^uint64(0) - 1 // the numbers wrap around between here and 1
	must(t,
		a.WaitValue64(word(0), 1, false), a.WriteValue64(word(1), 7),
		a.WaitValue64(word(2), 9, true), a.WriteValue64(word(3), before),
		b.WriteValue64(word(0), 5), b.WaitValue64(word(1), 7, true), b.WriteValue64(word(2), 9),
		b.WaitValue64(word(3), before, true))
	must(t, a.Synchronize(deadline(t)), b.Synchronize(deadline(t)))
	must(t, a.WaitValue64(word(3), 1, false))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.Synchronize(ctx); !errors.Is(err, mscclgo.ErrTimeout) {
		t.Errorf("%#x counts as at least 1: %v", uint64(before), err)
	}
	must(t, b.WriteValue64(word(3), 1), a.Synchronize(deadline(t)))
}

func TestEvents(t *testing.T) {
	d := open(t)
	mem := alloc(t, d, 64)
	write(t, d, mem.Ptr(), make([]uint64, 8))
	a, b := stream(t, d), stream(t, d)
	start, err := d.NewEvent()
	must(t, err)
	end, err := d.NewEvent()
	must(t, err)
	if _, err := end.Since(start); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("time between events that never were: %v", err)
	}
	must(t, start.Synchronize(deadline(t)), a.Record(start), a.WaitValue64(mem.Ptr(), 1, true), a.Record(end), b.WaitEvent(end))
	must(t, b.WriteValue64(mem.Ptr()+8, 1))
	if done, err := end.Query(); done || err != nil {
		t.Errorf("an event behind a wait: %v, %v", done, err)
	}
	if v := read[uint64](t, d, mem.Ptr()+8, 1)[0]; v != 0 {
		t.Error("the other stream did not wait for the event")
	}
	must(t, start.Synchronize(deadline(t)))
	time.Sleep(5 * time.Millisecond)
	write(t, d, mem.Ptr(), []uint64{1})
	must(t, end.Synchronize(deadline(t)), b.Synchronize(deadline(t)))
	if took, err := end.Since(start); err != nil || took < 5*time.Millisecond {
		t.Errorf("took %v, %v", took, err)
	}
}

func TestCaptureAndReplay(t *testing.T) {
	d := open(t)
	m := load(t, d, streamSource)
	add := kernelOf(t, m, "add")
	s := stream(t, d)
	a := alloc(t, d, 256)
	write(t, d, a.Ptr(), make([]int32, 64))
	event, err := d.NewEvent()
	must(t, err)
	if _, err := s.EndCapture(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("EndCapture without a capture: %v", err)
	}
	must(t, s.BeginCapture())
	testerr.Expect(t, s.BeginCapture(), mscclgo.ErrInvalid)
	must(t, s.Launch(add, shape(1, 32), pack(a.Ptr(), int32(1))), s.Copy(a.Ptr()+128, a.Ptr(), 128), s.Record(event))
	testerr.Expect(t, stream(t, open(t)).WaitEvent(event), mscclgo.ErrUnsupported)
	testerr.Expect(t, s.Synchronize(deadline(t)), mscclgo.ErrInvalid)
	g, err := s.EndCapture()
	must(t, err, s.Synchronize(deadline(t)))
	if v := read[int32](t, d, a.Ptr(), 1)[0]; v != 0 {
		t.Fatalf("captured work ran: %d", v)
	}
	for range 5 {
		must(t, g.Launch(s))
	}
	must(t, event.Synchronize(deadline(t)))
	for i, v := range read[int32](t, d, a.Ptr(), 64) {
		if v != 5 {
			t.Fatalf("a[%d] = %d after 5 replays", i, v)
		}
	}
	must(t, s.BeginCapture())
	nothing, err := s.EndCapture()
	must(t, err, nothing.Launch(s), s.Synchronize(deadline(t)))
	must(t, m.Close())
	testerr.Expect(t, g.Launch(s), mscclgo.ErrInvalid)
	must(t, g.Close(), s.Synchronize(deadline(t)))
}

func TestFailureStaysWithItsStream(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void trap() { __trap(); }
extern "C" __global__ void set(int* a) { *a = 1; }
`)
	s, other := stream(t, d), stream(t, d)
	a := alloc(t, d, 4)
	write(t, d, a.Ptr(), []int32{0})
	event, err := d.NewEvent()
	must(t, err, s.Launch(kernelOf(t, m, "trap"), shape(1, 1), nil), s.Launch(kernelOf(t, m, "set"), shape(1, 1), pack(a.Ptr())), s.Record(event))
	for range 2 {
		testerr.Expect(t, s.Synchronize(deadline(t)), mscclgo.ErrSystem, "run trap")
	}
	testerr.Expect(t, event.Synchronize(deadline(t)), mscclgo.ErrSystem)
	if v := read[int32](t, d, a.Ptr(), 1)[0]; v != 0 {
		t.Error("work behind the failure ran")
	}
	must(t, other.Launch(kernelOf(t, m, "set"), shape(1, 1), pack(a.Ptr())), other.Synchronize(deadline(t)))
}

// TestFullQueue: a caller that is too far ahead waits, and Synchronize
// keeps its deadline then.
func TestFullQueue(t *testing.T) {
	d := open(t)
	mem := alloc(t, d, 16)
	write(t, d, mem.Ptr(), []uint64{0, 0})
	s := stream(t, d)
	must(t, s.WaitValue64(mem.Ptr(), 1, true))
	const calls = 20000
	queued := make(chan error, 1)
	go func() {
		for range calls {
			if err := s.WriteValue64(mem.Ptr()+8, 1); err != nil {
				queued <- err
				return
			}
		}
		queued <- nil
	}()
	select {
	case err := <-queued:
		t.Fatalf("%d calls were queued, %v", calls, err)
	case <-time.After(100 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	testerr.Expect(t, s.Synchronize(ctx), mscclgo.ErrTimeout)
	write(t, d, mem.Ptr(), []uint64{1})
	must(t, <-queued, s.Synchronize(deadline(t)))
}

// TestCloseEndsAllWork closes a device whose kernels, waits and queued work would
// never end, and frees memory that they use before that.
func TestCloseEndsAllWork(t *testing.T) {
	before := runtime.NumGoroutine()
	d, err := emu.Driver().Open(1)
	must(t, err)
	await := kernelOf(t, load(t, d, streamSource), "await")
	mem, err := d.Alloc(1 << 16)
	must(t, err)
	write(t, d, mem.Ptr(), make([]uint64, 8))
	a, b, c := stream(t, d), stream(t, d), stream(t, d)
	event, err := d.NewEvent()
	must(t, err)
	must(t, a.Launch(await, shape(40, 128), pack(mem.Ptr(), uint64(1), uint64(0))), a.Record(event))
	must(t, b.WaitValue64(mem.Ptr(), 1, true), c.WaitEvent(event), c.Fill(mem.Ptr(), 1, 8))
	time.Sleep(10 * time.Millisecond)
	must(t, mem.Free(), a.Close())
	testerr.Expect(t, d.Close(), mscclgo.ErrAborted)
	must(t, d.Close())
	testerr.Expect(t, event.Synchronize(deadline(t)), mscclgo.ErrAborted)
	testerr.Expect(t, b.Fill(mem.Ptr(), 1, 1), mscclgo.ErrInvalid)
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestInvalidLaunches(t *testing.T) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void __launch_bounds__(2 * 64, 1) few(int* a, int n) { __shared__ int s[4096]; s[n] = *a; *a = s[0]; }
`)
	k := kernelOf(t, m, "few")
	attributes, err := k.Attributes()
	must(t, err)
	if attributes.MaxThreadsPerBlock != 128 || attributes.StaticShared != 16384 || attributes.MaxDynamicShared != 32768 {
		t.Errorf("attributes: %+v", attributes)
	}
	s := stream(t, d)
	args := pack(uint64(0), int32(0))
	for what, cfg := range map[string]backend.LaunchConfig{
		"too many threads":    shape(1, 129),
		"too much shared":     {Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, DynamicShared: 32769},
		"too many for a gang": {Grid: [3]uint32{33, 1, 1}, Block: [3]uint32{1, 1, 1}, Cooperative: true},
	} {
		if err := s.Launch(k, cfg, args); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	testerr.Expect(t, s.Launch(k, shape(1, 1), args[:11]), mscclgo.ErrInvalid)
	testerr.Expect(t, k.SetMaxDynamicShared(227<<10-16384+1), mscclgo.ErrInvalid)
	must(t, k.SetMaxDynamicShared(100<<10))
	if n, err := k.MaxResidentBlocks(128, 100<<10); n != 32 || err != nil {
		t.Errorf("resident blocks: %d, %v", n, err)
	}
	if n, err := k.MaxResidentBlocks(129, 0); n != 0 || err != nil {
		t.Errorf("resident blocks of too many threads: %d, %v", n, err)
	}
}
