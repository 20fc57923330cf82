package cuda

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed testdata/kernels.ptx
var kernels []byte

// childVariable makes a test binary run one of children instead of the tests.
const childVariable = "MSCCLGO_CUDA_TEST_CHILD"

// children are what tests need other processes for.
var children = map[string]func(args []string) error{
	"import": importInChild,
	"ipc":    ipcInChild,
	"fault":  faultInChild,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild runs one of children in a process of its own and returns its output.
func runChild(t *testing.T, name string, files []*os.File, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.ExtraFiles = files
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, out)
	}
	return string(out)
}

// openDevice opens a GPU, or skips the test where there is none.
func openDevice(t testing.TB, n int) *device {
	t.Helper()
	infos, err := Driver().List()
	if errors.Is(err, mscclgo.ErrUnsupported) {
		t.Skip("no NVIDIA GPU:", err)
	}
	testerr.Check(t, err)
	if n >= len(infos) {
		t.Skipf("needs %d GPUs, there are %d", n+1, len(infos))
	}
	d := testerr.Must(Driver().Open(n))(t)
	closeAtEnd(t, d.Close)
	return d.(*device)
}

func closeAtEnd(t testing.TB, closer func() error) {
	t.Cleanup(func() {
		for range 2 { // safe twice
			testerr.Report(t, closer())
		}
	})
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		testerr.Check(t, err)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	testerr.Check(t, err)
}

func alloc(t testing.TB, d *device, size uint64) backend.Memory {
	t.Helper()
	m := must(d.Alloc(size))(t)
	closeAtEnd(t, m.Free)
	return m
}

func newStream(t testing.TB, d *device) backend.Stream {
	t.Helper()
	s := must(d.NewStream())(t)
	closeAtEnd(t, s.Close)
	return s
}

func loadKernels(t testing.TB, d *device) backend.Module {
	t.Helper()
	m := must(d.LoadModule(kernels))(t)
	closeAtEnd(t, m.Close)
	return m
}

// finish waits for a stream, up to a deadline.
func finish(t testing.TB, s backend.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	check(t, s.Synchronize(ctx))
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func readBack(t testing.TB, d *device, ptr uint64, n int) []byte {
	t.Helper()
	b := bytes.Repeat([]byte{0xa5}, n)
	check(t, d.CopyToHost(b, ptr))
	return b
}

func read64(t testing.TB, d *device, ptr uint64) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(readBack(t, d, ptr, 8))
}

func write64(t testing.TB, d *device, ptr, v uint64) {
	t.Helper()
	check(t, d.CopyFromHost(ptr, binary.NativeEndian.AppendUint64(nil, v)))
}

// packed lays out the arguments of a kernel by its parameters.
func packed(t testing.TB, k backend.Kernel, args ...uint64) []byte {
	t.Helper()
	params := k.Params()
	if len(params) != len(args) {
		t.Fatalf("the kernel has %d parameters, got %d arguments", len(params), len(args))
	}
	var b []byte
	for i, p := range params {
		b = append(b, make([]byte, int(p.Offset+p.Size)-len(b))...)
		copy(b[p.Offset:], binary.LittleEndian.AppendUint64(nil, args[i])[:p.Size])
	}
	return b
}

func blocks(grid, block uint32) backend.LaunchConfig {
	return backend.LaunchConfig{Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{block, 1, 1}}
}
