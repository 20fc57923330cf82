package fifo_test

import (
	"context"
	_ "embed"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed push_test.cu
var source []byte

// images are what the source was compiled to, by architecture.
var images sync.Map

// image compiles the source for a device, once.
func image(t testing.TB, d *gpu.Device) []byte {
	t.Helper()
	arch := d.Info().Arch
	if image, ok := images.Load(arch); ok {
		return image.([]byte)
	}
	image := testerr.Must(devicecode.Compile(t.Context(), arch, "push_test.cu", source, devicecode.Options{}))(t)
	images.Store(arch, image)
	return image
}

// bench is a ring, and what kernels need to push into it.
type bench struct {
	dev    *gpu.Device
	module *gpu.Module
	stream *gpu.Stream
	status *gpu.Buffer
	ring   *fifo.Ring
}

func newBench(t testing.TB, size int, timeout time.Duration) *bench {
	t.Helper()
	b := &bench{dev: testdev.Open(t, 0)}
	b.module = testerr.Must(b.dev.LoadModule(image(t, b.dev)))(t)
	t.Cleanup(func() { b.module.Close() })
	b.stream = testerr.Must(b.dev.NewStream())(t)
	b.status = testerr.Must(b.dev.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))))(t)
	t.Cleanup(func() { b.status.Close() })
	b.ring = b.newRing(t, fifo.Options{Size: size, Watch: devicecode.Watch{Status: b.status.Ptr(), Timeout: uint64(timeout)}})
	// Before the memory goes, kernels end.
	t.Cleanup(func() {
		b.words().Aborted = 1
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		b.stream.Synchronize(ctx)
		b.stream.Close()
	})
	return b
}

func (b *bench) newRing(t testing.TB, o fifo.Options) *fifo.Ring {
	t.Helper()
	ring := testerr.Must(fifo.New(b.dev, o))(t)
	t.Cleanup(func() { ring.Close() })
	return ring
}

func (b *bench) words() *layout.GroupStatus {
	return (*layout.GroupStatus)(unsafe.Pointer(unsafe.SliceData(b.status.Bytes())))
}

// launch starts a kernel.
func (b *bench) launch(t testing.TB, kernel string, grid, block int, args ...any) {
	t.Helper()
	k := testerr.Must(b.module.Kernel(kernel))(t)
	testerr.Check(t, k.Launch(b.stream, gpu.LaunchConfig{Grid: gpu.Dim3{X: grid}, Block: gpu.Dim3{X: block}}, args...))
}

// output returns zeroed device memory for n values.
func output[T any](t testing.TB, b *bench, n int) *gpu.Buffer {
	t.Helper()
	buf := testerr.Must(gpu.Upload(b.dev, make([]T, n)))(t)
	t.Cleanup(func() { buf.Close() })
	return buf
}

func read[T any](t testing.TB, buf *gpu.Buffer, n int) []T {
	t.Helper()
	values := make([]T, n)
	testerr.Check(t, gpu.CopyOut(values, buf))
	return values
}

// wait waits for the kernels.
func (b *bench) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	testerr.Check(t, b.stream.Synchronize(ctx))
}
