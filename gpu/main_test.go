package gpu_test

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed gpu_test.cu
var source []byte

func TestMain(m *testing.M) {
	if os.Getenv(childDevice) != "" {
		if err := child(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// closer closes c when the test ends.
func closer(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing a %T: %v", c, err)
		}
	})
}

// must returns the value of a call that succeeded, and closes it when the test ends.
func must[T interface{ Close() error }](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		check(t, err)
		closer(t, v)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	testerr.Check(t, err)
}

func alloc(t testing.TB, d *gpu.Device, size uint64) *gpu.Buffer {
	t.Helper()
	return must[*gpu.Buffer](t)(d.Alloc(size))
}

func allocHost(t testing.TB, d *gpu.Device, size uint64) *gpu.Buffer {
	t.Helper()
	return must[*gpu.Buffer](t)(d.AllocHost(size))
}

func newStream(t testing.TB, d *gpu.Device) *gpu.Stream {
	t.Helper()
	return must[*gpu.Stream](t)(d.NewStream())
}

func newEvent(t testing.TB, d *gpu.Device) *gpu.Event {
	t.Helper()
	return must[*gpu.Event](t)(d.NewEvent())
}

// image compiles the tests' kernels.
func image(t testing.TB, d *gpu.Device) []byte {
	t.Helper()
	image, err := devicecode.Compile(t.Context(), d.Info().Arch, "gpu_test.cu", source, devicecode.Options{})
	check(t, err)
	return image
}

// load loads the tests' kernels.
func load(t testing.TB, d *gpu.Device) *gpu.Module {
	t.Helper()
	return must[*gpu.Module](t)(d.LoadModule(image(t, d)))
}

func kernel(t testing.TB, m *gpu.Module, name string) *gpu.Kernel {
	t.Helper()
	k, err := m.Kernel(name)
	check(t, err)
	return k
}

// deadline returns a context for the waits of a test.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func synchronize(t testing.TB, s *gpu.Stream) {
	t.Helper()
	check(t, s.Synchronize(deadline(t)))
}

// contents returns the first n values of a buffer.
func contents[T any](t testing.TB, b *gpu.Buffer, n int) []T {
	t.Helper()
	values := make([]T, n)
	check(t, gpu.CopyOut(values, b))
	return values
}

// counting returns n bytes that count up from first.
func counting(n int, first byte) []byte {
	values := make([]byte, n)
	for i := range values {
		values[i] = first + byte(i)
	}
	return values
}

// invalid checks for ErrInvalid on the device.
func invalid(t testing.TB, err error, parts ...string) {
	t.Helper()
	testerr.Expect(t, err, mscclgo.ErrInvalid, parts...)
}

// name returns the name of the tests' device in errors.
func name(t testing.TB) string { return testdev.Name(t, 0) }
