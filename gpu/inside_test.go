package gpu_test

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestNativeOrder has a thread in C and Go queue copies in turn; each needs the one
// before.
func TestNativeOrder(t *testing.T) {
	d := testdev.Open(t, 0)
	if !d.Info().StreamMemoryOps {
		t.Skip("the device's streams store no values")
	}
	s := newStream(t, d)
	const steps = 64
	words := must[*gpu.Buffer](t)(gpu.Upload(d, make([]uint64, steps+1)))
	q, at := s.Internal().Queue(), uint64(words.Ptr())
	if q == nil || q != s.Internal().Queue() {
		t.Fatal("the stream has no queue, or several")
	}
	do := func(op native.Op, a, b, n uint64) {
		t.Helper()
		end := time.Now().Add(20 * time.Second)
		rc := nativetest.Do(q, op, a, b, n)
		for ; rc == nativetest.Busy; rc = nativetest.Do(q, op, a, b, n) {
			if time.Now().After(end) {
				t.Fatal("the stream stays busy")
			}
		}
		if rc != 0 {
			t.Fatalf("operation %d returned %d", op, rc)
		}
	}
	do(native.Store, at, 42, 0)
	for i := range uint64(steps) {
		if i%2 == 0 {
			check(t, s.Copy(words, 8*i+8, words, 8*i, 8))
		} else {
			do(native.Write, at+8*i+8, at+8*i, 8)
		}
	}
	end := time.Now().Add(20 * time.Second)
	for rc := nativetest.Do(q, native.Mark, 3, 0, 0); rc != 0; rc = nativetest.Do(q, native.Reach, 3, 0, 0) {
		if rc != nativetest.Pending && rc != nativetest.Busy || time.Now().After(end) {
			t.Fatalf("the mark returned %d", rc)
		}
	}
	synchronize(t, s)
	for i, v := range contents[uint64](t, words, steps+1) {
		if v != 42 {
			t.Fatalf("word %d is %d", i, v)
		}
	}
	check(t, s.Close())
	if rc := nativetest.Do(q, native.Store, at, 1, 0); rc != nativetest.Closed {
		t.Errorf("a store on a closed stream returned %d", rc)
	}
	if newer := newStream(t, d); newer.Close() != nil || newer.Internal().Queue() != nil {
		t.Error("a closed stream has a queue")
	}
}

// TestGate: memory and modules wait for threads in C that use them.
func TestGate(t *testing.T) {
	d := testdev.Open(t, 0)
	b := alloc(t, d, 4096)
	view, err := b.Slice(8, 8)
	check(t, err)
	g := view.Internal().Gate()
	if g != b.Internal().Gate() {
		t.Error("a view has a gate of its own")
	}
	leave, ok := nativetest.EnterGate(g)
	if !ok {
		t.Fatal("open memory's gate is closed")
	}
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("the memory was released in use: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	leave()
	check(t, <-closed)
	for _, g := range []*native.Gate{g, b.Internal().Gate(), view.Internal().Gate()} {
		if _, ok := nativetest.EnterGate(g); ok {
			t.Error("closed memory's gate is open")
		}
	}
	other := alloc(t, d, 4096)
	check(t, other.Close())
	if _, ok := nativetest.EnterGate(other.Internal().Gate()); ok {
		t.Error("a gate is open that was first asked for after the memory was closed")
	}
}

// TestBeforeClose: a stream calls the functions that were registered before it closes,
// and they can still queue work.
func TestBeforeClose(t *testing.T) {
	d := testdev.Open(t, 0)
	s, e := newStream(t, d), newEvent(t, d)
	told := map[string]int{}
	for id, name := range []string{"first", "cancelled", "replaced"} {
		s.Internal().BeforeClose(uint64(id), func() {
			told[name]++
			check(t, s.Record(e))
		})
	}
	s.Internal().BeforeClose(1, nil)
	s.Internal().BeforeClose(2, func() { told["replacement"]++ })
	check(t, s.Close())
	check(t, s.Close())
	testcmp.Equal(t, "calls", told, map[string]int{"first": 1, "replacement": 1})
	check(t, e.Synchronize(deadline(t)))
}

// TestInContext calls a function in a stream's context, which emulated devices lack.
func TestInContext(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	lost, calls := errors.New("lost"), 0
	f := func() error { calls++; return lost }
	err := s.Internal().InContext(f)
	if !testdev.CUDA() {
		testerr.Expect(t, err, mscclgo.ErrUnsupported, d.String())
	} else if err != lost || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	before := calls
	check(t, s.Close())
	testerr.Expect(t, s.Internal().InContext(f), mscclgo.ErrInvalid, "closed")
	testcmp.Equal(t, "calls for a closed stream", calls, before)
}
