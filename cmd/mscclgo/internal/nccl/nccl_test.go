package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// Without NCCL, Open returns an error.
func Example() {
	_, err := Open("/nonexistent/libnccl.so.2")
	fmt.Println(errors.Is(err, mscclgo.ErrUnsupported))
	// Output: true
}

// fake compiles testdata/nccl.c and opens it.
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
	return testerr.Must(Open(file))(t)
}

// fakeStream is the only stream that the fake knows.
const fakeStream = 0x57

// inContext calls f on a thread that has the fake's context.
func inContext(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := func(constant string) error {
		return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(unsafe.StringData(constant))), 0, 0, 0)
	}
	if err := name("in context\x00"); err != nil {
		return err
	}
	return errors.Join(f(), name("another\x00"))
}

// join returns a communicator of one rank, with that many blocks, or 0.
func join(t *testing.T, l *Library, blocks int) *Comm {
	t.Helper()
	c := l.newComm(fakeStream, inContext)
	t.Cleanup(func() {
		for range 2 {
			testerr.Report(t, c.Close(false))
		}
	})
	id := testerr.Must(c.NewID())(t)
	testerr.Check(t, c.Join(t.Context(), id, 0, 1, blocks))
	return c
}

// at returns the bytes at an address that the fake has from the C library.
func at(p gpu.Ptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

var collectives = []string{
	"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-receive", "reduce", "gather", "scatter",
}

func TestCollectives(t *testing.T) {
	l := fake(t)
	if v := l.Version(); v != "2.28.3" {
		t.Errorf("version %q", v)
	}
	c := join(t, l, 0)
	in := testerr.Must(c.Alloc(4096))(t)
	out := testerr.Must(c.Alloc(4096))(t)
	for i, name := range collectives {
		copy(at(in.Ptr, 4096), bytes.Repeat([]byte{byte(i + 1)}, 4096))
		clear(at(out.Ptr, 4096))
		testerr.Check(t, c.Queue(Call{Collective: name, Type: "f16", Op: "max", Count: 100, PartBytes: 200, In: in.Ptr, Out: out.Ptr}))
		want := make([]byte, 4096)
		copy(want, bytes.Repeat([]byte{byte(i + 1)}, 200))
		if diff := testcmp.Diff(want, bytes.Clone(at(out.Ptr, 4096))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// Types of as many bytes as NCCL takes them for, and all operations.
	for _, typ := range collective.Types() {
		for _, op := range collective.Ops() {
			copy(at(in.Ptr, 4096), bytes.Repeat([]byte{1}, 4096))
			clear(at(out.Ptr, 4096))
			testerr.Check(t, c.Queue(Call{Collective: "all-reduce", Type: typ.String(), Op: op.String(), Count: 100, In: in.Ptr, Out: out.Ptr}))
			if n := bytes.Count(at(out.Ptr, 4096), []byte{1}); n != 100*typ.Size() {
				t.Errorf("%v, %v: %d bytes were moved, want %d", typ, op, n, 100*typ.Size())
			}
		}
	}
	testerr.Report(t, errors.Join(in.Close(), in.Close(), out.Close()))
}

// TestBlocks asks for a number of blocks.
func TestBlocks(t *testing.T) {
	join(t, fake(t), 3) // the only number that the fake takes
}

func TestErrors(t *testing.T) {
	l := fake(t, "-DOLD")
	lost := mscclgo.Errorf(mscclgo.ErrSystem, "enter", "the context is lost")
	none := l.newComm(fakeStream, func(func() error) error { return lost })
	_, err := none.NewID()
	for _, err := range []error{err, none.Join(t.Context(), ID{}, 0, 1, 0), none.Queue(Call{Collective: "all-reduce", Type: "f32", Op: "sum"})} {
		testerr.Expect(t, err, mscclgo.ErrSystem, "the context is lost")
	}
	if err := none.Close(false); err != nil { // there is nothing to enter the context for
		t.Error(err)
	}
	c := join(t, l, 0)
	testerr.Expect(t, l.newComm(fakeStream, inContext).Join(t.Context(), ID{}, 0, 1, 3), mscclgo.ErrUnsupported, "ncclCommInitRankConfig", "too old")
	_, err = c.Alloc(64)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "ncclMemAlloc", "too old")
	testerr.Expect(t, c.Queue(Call{Collective: "all-reduce", Type: "f8", Op: "sum"}), mscclgo.ErrUnsupported, "f8")
	testerr.Expect(t, c.Queue(Call{Collective: "hand-around", Type: "f32", Op: "sum"}), mscclgo.ErrUnsupported, "no such collective")
	testerr.Expect(t, c.Queue(Call{Collective: "broadcast", Type: "f32", Op: "sum", Root: 1}), mscclgo.ErrSystem, "invalid argument (4)")
	for _, file := range []string{"libnccl-absent.so", "libc.so.6"} {
		_, err := Open(file)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, file, "LD_LIBRARY_PATH")
	}
}

func TestEmulatedDevice(t *testing.T) {
	d, err := gpu.Open("emu:0")
	testerr.Check(t, err)
	defer d.Close()
	s := testerr.Must(d.NewStream())(t)
	defer s.Close()
	_, err = fake(t).NewComm(s)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "emu:0")
}
