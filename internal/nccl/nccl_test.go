package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Without NCCL there is an error that says so.
func Example() {
	_, err := Open("/nonexistent/libnccl.so.2")
	fmt.Println(errors.Is(err, mscclgo.ErrUnsupported))
	// Output: true
}

// fake compiles testdata/nccl.c and opens it as both libraries.
func fake(t *testing.T, flags ...string) *Library {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build a fake with:", err)
	}
	file := filepath.Join(t.TempDir(), "libfake.so")
	args := append(flags, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", file, "testdata/nccl.c")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l, err := open(file, file)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// join gives a queue of a communicator of one rank.
func join(t *testing.T, l *Library) *Queue {
	t.Helper()
	q, err := l.NewQueue("0000:1b:00.0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := q.Close(false); err != nil {
				t.Error(err)
			}
		}
	})
	id, err := q.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Join(t.Context(), id, 0, 1); err != nil {
		t.Fatal(err)
	}
	return q
}

// at gives the bytes at an address that the fake has from the C library.
func at(p gpu.Ptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

var collectives = []string{"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-receive"}

// TestCollectives runs each at once, and twice from a graph that is timed.
func TestCollectives(t *testing.T) {
	l := fake(t)
	if v := l.Version(); v != "2.28.3" {
		t.Errorf("version %q", v)
	}
	q := join(t, l)
	in, err := q.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	out, err := q.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range collectives {
		call := Call{Collective: name, Type: "f16", Op: "max", Count: 100, PartBytes: 200, In: in.Ptr, Out: out.Ptr}
		copy(at(in.Ptr, 4096), bytes.Repeat([]byte{byte(i + 1)}, 4096))
		right := func(when string, want byte) {
			t.Helper()
			if got := at(out.Ptr, 4096); bytes.Count(got[:200], []byte{want}) != 200 || bytes.IndexByte(got[200:], want) >= 0 {
				t.Errorf("%s, %s: %v", name, when, got[:210])
			}
			clear(at(out.Ptr, 4096))
		}
		clear(at(out.Ptr, 4096))
		if err := q.Queue(call); err != nil {
			t.Fatal(err)
		}
		if err := q.Synchronize(t.Context()); err != nil {
			t.Fatal(err)
		}
		right("at once", byte(i+1))

		if err := errors.Join(q.Begin(), q.Queue(call)); err != nil {
			t.Fatal(err)
		}
		graph, err := q.End()
		if err != nil {
			t.Fatal(err)
		}
		var marks [2]*Event
		for i := range marks {
			if marks[i], err = q.NewEvent(); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(marks[0].Record(), graph.Launch(), graph.Launch(), marks[1].Record()); err != nil {
			t.Fatal(err)
		}
		right("from a graph", byte(i+1))
		if took, err := marks[1].Since(marks[0]); err != nil || took != 4*time.Millisecond {
			t.Errorf("%s: it took %v, %v", name, took, err)
		}
		if err := errors.Join(marks[0].Close(), marks[1].Close(), graph.Close(), graph.Close()); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(in.Close(), in.Close(), out.Close()); err != nil {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	l := fake(t, "-DOLD")
	want := func(err error, kind error, parts ...string) {
		t.Helper()
		if !errors.Is(err, kind) {
			t.Errorf("%v is not %v", err, kind)
		}
		for _, part := range parts {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%v lacks %q", err, part)
			}
		}
	}
	_, err := l.NewQueue("0000:00:00.0")
	want(err, mscclgo.ErrSystem, "0000:00:00.0", "CUDA_ERROR_INVALID_DEVICE (101)")
	q := join(t, l)
	_, err = q.Alloc(64)
	want(err, mscclgo.ErrUnsupported, "ncclMemAlloc", "too old")
	want(q.Queue(Call{Collective: "all-reduce", Type: "f8", Op: "sum"}), mscclgo.ErrUnsupported, "f8")
	want(q.Queue(Call{Collective: "gather", Type: "f32", Op: "sum"}), mscclgo.ErrUnsupported, "no such collective")
	want(q.Queue(Call{Collective: "broadcast", Type: "f32", Op: "sum", Root: 1}), mscclgo.ErrSystem, "invalid argument (4)")
	for _, files := range [][2]string{{"libnccl-absent.so", driverFile}, {"libc.so.6", "libcuda-absent.so"}, {"libc.so.6", "libc.so.6"}} {
		_, err := open(files[0], files[1])
		want(err, mscclgo.ErrUnsupported, files[0], "LD_LIBRARY_PATH")
	}
}
