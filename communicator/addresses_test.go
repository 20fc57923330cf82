package communicator

import (
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestAddresses stores addresses again and again, at one place while they fit. What is there
// already is not written, as a kernel may be reading it.
func TestAddresses(t *testing.T) {
	private := &arena{dev: testdev.Open(t, 0)}
	defer private.close()
	var a addresses
	place := func(at ...gpu.Ptr) gpu.Ptr {
		t.Helper()
		return testerr.Must(a.place(private, at))(t)
	}
	stored := func(n int) []gpu.Ptr {
		t.Helper()
		b := testerr.Must(a.buffer(uint64(n) * 8))(t)
		got := make([]gpu.Ptr, n)
		testerr.Check(t, gpu.CopyOut(got, b))
		return got
	}
	if to := place(); to != 0 {
		t.Errorf("no addresses are at %#x", to)
	}
	first := place(1, 2, 3)
	testcmp.Equal(t, "the addresses", stored(3), []gpu.Ptr{1, 2, 3})
	b := testerr.Must(a.buffer(24))(t)
	testerr.Check(t, gpu.CopyIn(b, []gpu.Ptr{7, 7, 7}))
	if to := place(1, 2, 3); to != first {
		t.Errorf("the same addresses are at %#x, and were at %#x", to, first)
	}
	testcmp.Equal(t, "what is there when the same addresses are stored again", stored(3), []gpu.Ptr{7, 7, 7})
	if to := place(1, 2, 4); to != first {
		t.Errorf("other addresses are at %#x, and the first were at %#x", to, first)
	}
	testcmp.Equal(t, "the other addresses", stored(3), []gpu.Ptr{1, 2, 4})
	more := make([]gpu.Ptr, 40)
	for i := range more {
		more[i] = gpu.Ptr(i + 1)
	}
	place(more...)
	testcmp.Equal(t, "more addresses", stored(40), more)
	check(t, private, []piece{a.piece})
	a.free(private)
	a.free(private)
	check(t, private, nil)
	place(1, 2, 4)
	testcmp.Equal(t, "the addresses after all were freed", stored(3), []gpu.Ptr{1, 2, 4})
}
