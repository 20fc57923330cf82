package cuda

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// fakeStream returns a stream of a driver without a GPU behind it.
func fakeStream(t *testing.T, flags ...string) backend.Stream {
	t.Helper()
	d := must(newDriver(buildFake(t, flags...)).Open(0))(t)
	closeAtEnd(t, d.Close)
	return must(d.NewStream())(t)
}

func TestNativeQueue(t *testing.T) {
	s := fakeStream(t, "-DQUEUE")
	q := s.Native()
	words := new([4]uint64)
	at := uint64(uintptr(unsafe.Pointer(words)))
	words[0] = 7
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s returned %d, want %d", what, got, want)
		}
	}
	expect("a copy", nativetest.Do(q, native.Write, at+8, at, 8), 0)
	expect("a store", nativetest.Do(q, native.Store, at+16, 1, 0), 0)
	expect("an update", nativetest.Do(q, native.Update, at+16, 9, 1), 0)
	if words[1] != 7 || words[2] != 9 {
		t.Errorf("the words are %d", *words)
	}
	for _, mark := range []uint64{0, nativetest.Marks - 1, 0} {
		expect("a mark", nativetest.Do(q, native.Mark, mark, 0, 0), nativetest.Pending)
		expect("asking for it", nativetest.Do(q, native.Reach, mark, 0, 0), nativetest.Pending)
		expect("asking again", nativetest.Do(q, native.Reach, mark, 0, 0), 0)
	}

	// A failure gives the same error as the method.
	const launchFailed = 719
	expect("a copy to nowhere", nativetest.Do(q, native.Write, 0, at, 8), launchFailed)
	expect("a store to nowhere", nativetest.Do(q, native.Store, 0, 1, 0), launchFailed)
	for _, c := range []struct {
		f      native.Failure
		method error
	}{
		{native.Failure{Op: native.Write, Code: launchFailed, Src: at, Bytes: 8}, s.Copy(0, at, 8)},
		{native.Failure{Op: native.Store, Code: launchFailed}, s.WriteValue64(0, 1)},
		{native.Failure{Op: native.Update, Code: launchFailed}, s.WriteValue64(0, 1)},
	} {
		if got := s.NativeError(c.f); c.method == nil || got.Error() != c.method.Error() {
			t.Errorf("operation %d in C: %v\nthe method: %v", c.f.Op, got, c.method)
		}
	}
	for op, text := range map[native.Op]string{native.Begin: "context", native.Mark: "record an event", native.Reach: "reach an event"} {
		testerr.Expect(t, s.NativeError(native.Failure{Op: op, Code: launchFailed}), mscclgo.ErrSystem, text, "cuda:0", "CUDA_ERROR_LAUNCH_FAILED (719)")
	}

	q.Close()
	expect("a store on a closed queue", nativetest.Do(q, native.Store, at, 1, 0), nativetest.Closed)
	check(t, s.Close()) // fails if a mark is left
	runtime.KeepAlive(words)
}

// TestNativeQueueOldDriver: a missing function is the failure of what needs it.
func TestNativeQueueOldDriver(t *testing.T) {
	s := fakeStream(t)
	q := s.Native()
	for op, text := range map[native.Op]string{native.Store: "cuStreamWriteValue64_v2", native.Mark: "cuEventCreate", native.Reach: "cuEventQuery"} {
		code := nativetest.Do(q, op, 0, 0, 0)
		testerr.Expect(t, s.NativeError(native.Failure{Op: op, Code: code}), mscclgo.ErrUnsupported, text, "it is for CUDA 11.0")
	}
	q.Close()
	check(t, s.Close())
}
