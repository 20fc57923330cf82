package devicecode_test

import (
	_ "embed"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed atomic_test.cu
var atomicSource string

// TestContendedAdds has many threads add to the same counters. Each value is seen
// once, so what they saw adds up.
func TestContendedAdds(t *testing.T) {
	d := testdev.Open(t, 0)
	const blocks, threads, times = 8, 64, 50
	const n = blocks * threads * times
	words, longs, seen := upload(t, d, make([]uint32, 4)), upload(t, d, make([]uint64, 4)), upload(t, d, make([]uint64, 8))
	run(t, d, kernels(t, d, "atomic_test.cu", atomicSource)("contend"), gpu.Blocks(blocks, threads), words, longs, seen, times)
	for i, sum := range contents[uint64](t, seen, 8) {
		if sum != n*(n-1)/2 {
			t.Errorf("form %d: the values seen add up to %d, want %d", i, sum, n*(n-1)/2)
		}
	}
	for i, v := range contents[uint32](t, words, 4) {
		if v != n {
			t.Errorf("32 bits, form %d: the counter is %d, want %d", i, v, n)
		}
	}
	for i, v := range contents[uint64](t, longs, 4) {
		if v != n {
			t.Errorf("64 bits, form %d: the counter is %d, want %d", i, v, n)
		}
	}
}

func TestLoadsAndStores(t *testing.T) {
	d := testdev.Open(t, 0)
	memory, wrong := upload(t, d, []uint64{1, 2, 3, 4}), upload(t, d, []uint32{99})
	run(t, d, kernels(t, d, "atomic_test.cu", atomicSource)("plain"), gpu.Blocks(1, 1), memory, wrong)
	if n := contents[uint32](t, wrong, 1)[0]; n != 0 {
		t.Errorf("%d accesses went wrong", n)
	}
}

// TestWholeValues reads 8-byte words while another block writes them.
func TestWholeValues(t *testing.T) {
	d := testdev.Open(t, 0)
	k := kernels(t, d, "atomic_test.cu", atomicSource)("whole")
	memory, wrong := upload(t, d, make([]uint64, 32)), upload(t, d, []uint32{0})
	run(t, d, k, gpu.LaunchConfig{Grid: gpu.Dim3{X: 2}, Cooperative: true}, memory, memory.Ptr()+128, 100_000, wrong)
	if n := contents[uint32](t, wrong, 1)[0]; n != 0 {
		t.Errorf("%#x values were torn, old or missing", n)
	}
}

// TestMessagePassing has data follow a flag between two blocks, thousands of times
// in the same memory, with each pair of functions that orders them.
func TestMessagePassing(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "atomic_test.cu", atomicSource)
	w, _ := watch(t, d, 10*time.Second)
	const rounds, threads = 3000, 64
	for _, how := range []string{"byRelease", "byFence", "byAdd"} {
		words, wrong := upload(t, d, make([]uint32, 64+33*threads)), upload(t, d, []uint32{0})
		run(t, d, kernel(how), gpu.LaunchConfig{Grid: gpu.Dim3{X: 2}, Block: gpu.Dim3{X: threads}, Cooperative: true}, words, rounds, w, wrong)
		if n := contents[uint32](t, wrong, 1)[0]; n != 0 {
			t.Errorf("%s: %d values were old, %d waits ended early", how, n&(1<<20-1), n>>20)
		}
	}
}
