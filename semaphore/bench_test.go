package semaphore_test

import (
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed bench_test.cu
var benchKernels []byte

// BenchmarkRoundTrip measures a signal and one back between two devices, made in several ways.
// The header has library and relaxed. They are compared with bare stores and registersToDevice,
// whose fence orders too little.
func BenchmarkRoundTrip(b *testing.B) {
	for _, put := range []bool{false, true} {
		for _, way := range []string{"library", "registers", "adds", "registersToDevice", "relaxed", "relaxedAdds", "bare"} {
			b.Run(fmt.Sprintf("put=%v/%s", put, way), func(b *testing.B) { roundTrips(b, way, put) })
		}
	}
}

func roundTrips(b *testing.B, way string, put bool) {
	testdev.Apart(b, 2)
	p := newPlayers(b, [2]time.Duration{patience, patience})
	var kernels [2]*gpu.Kernel
	var took [2]*gpu.Buffer
	for i := range p { // both first, as loading may wait for a kernel, which waits for its peer
		kernels[i], took[i] = benchKernel(b, p[i].dev, way)
	}
	for i := range p {
		testerr.Check(b, kernels[i].Launch(p[i].stream, gpu.Blocks(1, 1), p[i].end.Handle(), uint32(1-i), uint32(b.N), put, p[i].peer.Ptr()+dataOffset, took[i]))
	}
	for i := range p {
		testerr.Check(b, p[i].stream.Synchronize(b.Context()))
	}
	reportEach(b, took[0])
}

// BenchmarkFence measures a fence of one thread that has an access under way, or has had one
// 3000 clocks before.
func BenchmarkFence(b *testing.B) {
	for _, access := range []struct {
		name, memory string
		kind         uint32
	}{{"nothing", "local", 0}, {"load", "local", 1}, {"store", "local", 2}, {"atomic", "local", 3}, {"store", "peer", 2}, {"store", "pinned", 2}} {
		for _, pause := range []uint32{0, 3000} {
			for scope, name := range []string{"none", "device", "system"} {
				b.Run(fmt.Sprintf("%s-%s/pause=%d/fence=%s", access.memory, access.name, pause, name), func(b *testing.B) {
					fences(b, access.memory, access.kind, pause, uint32(scope))
				})
			}
		}
	}
}

func fences(b *testing.B, memory string, kind, pause, scope uint32) {
	must := func(err error) {
		b.Helper()
		testerr.Check(b, err)
	}
	dev := testdev.Open(b, 0)
	var word *gpu.Buffer
	var err error
	switch memory {
	case "local":
		word, err = gpu.Upload(dev, make([]uint64, 16))
	case "peer":
		testdev.Apart(b, 2)
		far, uploaded := gpu.Upload(testdev.Open(b, 1), make([]uint64, 16))
		must(uploaded)
		word, err = dev.Access(far)
	case "pinned":
		word, err = dev.AllocHost(128)
	}
	must(err)
	stream, err := dev.NewStream()
	must(err)
	b.Cleanup(func() { stream.Close() })
	kernel, took := benchKernel(b, dev, "fences")
	must(kernel.Launch(stream, gpu.Blocks(1, 1), kind, word, pause, scope, uint32(b.N), took))
	must(stream.Synchronize(b.Context()))
	reportEach(b, took)
}

// benchKernel returns a kernel, and memory for what it took.
func benchKernel(b *testing.B, dev *gpu.Device, name string) (*gpu.Kernel, *gpu.Buffer) {
	b.Helper()
	module := testerr.Must(devicecode.Load(b.Context(), dev, "bench_test.cu", benchKernels, devicecode.Options{}))(b)
	kernel := testerr.Must(module.Kernel(name))(b)
	took := testerr.Must(gpu.Upload(dev, make([]uint64, 2)))(b)
	return kernel, took
}

// reportEach reports the time of each round.
func reportEach(b *testing.B, took *gpu.Buffer) {
	b.Helper()
	var nanoseconds [1]uint64
	testerr.Check(b, gpu.CopyOut(nanoseconds[:], took))
	b.ReportMetric(float64(nanoseconds[0])/float64(b.N)/1000, "us/round")
}
