package devicecode_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed bulk_test.cu
var bulkSource string

// ringed returns a launch with room for a ring of four stages.
func ringed(t *testing.T, k *gpu.Kernel, blocks, threads, stage int) gpu.LaunchConfig {
	t.Helper()
	shape := gpu.Blocks(blocks, threads)
	shape.DynamicShared = 128 + 4*stage
	check(t, k.SetMaxDynamicShared(shape.DynamicShared))
	return shape
}

// TestBulkCopy copies between all alignments, alike and not, through a ring that is used again,
// with fewer pieces than stages and with many.
func TestBulkCopy(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "bulk_test.cu", bulkSource)("pieces")
	const times = 32
	for _, n := range []uint64{0, 1, 15, 16, 17, 31, 47, 128, 1000, 4099, 70001} {
		apart := n/128*128 + 256
		data := make([]byte, times*apart+32)
		random := rand.NewChaCha8([32]byte{1})
		random.Read(data)
		around := bytes.Repeat([]byte{0x5a}, len(data))
		want := bytes.Clone(around)
		for i := range uint64(times) {
			to, from := i*apart+i%16, i*apart+(i+i/16)%16
			copy(want[to:to+n], data[from:])
		}
		for _, c := range []struct{ blocks, stage int }{{1, 128}, {3, 1024}, {2, 16 << 10}} {
			src, dst := upload(t, d, data), upload(t, d, around)
			run(t, d, kernel, ringed(t, kernel, c.blocks, 64, c.stage), dst, src, n, apart, times, c.stage)
			what := fmt.Sprintf("%d bytes by %d blocks with stages of %d", n, c.blocks, c.stage)
			testcmp.Equal(t, what, contents[byte](t, dst, len(data)), want)
			testcmp.Equal(t, what+", the source", contents[byte](t, src, len(data)), data)
		}
	}
}

func TestBulkCopyLarge(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "bulk_test.cu", bulkSource)("large")
	const size, guard = 4<<20 + 256, 64
	random := rand.NewChaCha8([32]byte{2})
	data, around := make([]byte, size), bytes.Repeat([]byte{0x5a}, size)
	random.Read(data)
	src, dst := upload(t, d, data), upload(t, d, around)
	for _, c := range []struct{ dst, src, n uint64 }{{0, 0, 4 << 20}, {0, 16, 4<<20 - 1}, {3, 19, 3_999_983}, {1, 0, 1 << 20}} {
		check(t, gpu.CopyIn(dst, around))
		run(t, d, kernel, ringed(t, kernel, 3, 96, 16<<10), dst.Ptr()+gpu.Ptr(guard+c.dst), src.Ptr()+gpu.Ptr(c.src), c.n, 16<<10)
		want := bytes.Clone(around)
		copy(want[guard+c.dst:], data[c.src:c.src+c.n])
		testcmp.Equal(t, fmt.Sprintf("%d bytes from offset %d to %d", c.n, c.src, c.dst), contents[byte](t, dst, size), want)
	}
}

// TestBulkOrder has threads change what the engine wrote, and the engine read it again.
func TestBulkOrder(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "bulk_test.cu", bulkSource)("doubled")
	const words = 100_000
	data, want := make([]uint32, words), make([]uint32, words)
	for i := range data {
		data[i], want[i] = uint32(i), uint32(2*i)
	}
	src, middle, dst := upload(t, d, data), upload(t, d, make([]uint32, words)), upload(t, d, make([]uint32, words))
	run(t, d, kernel, ringed(t, kernel, 1, 256, 4096), dst, middle, src, words, 4096)
	testcmp.Equal(t, "the copy", contents[uint32](t, dst, words), want)
}

// TestBulkBarrier uses the parts of a bulk copy by themselves.
func TestBulkBarrier(t *testing.T) {
	d := testdev.Open(t, 0)
	if arch := d.Info().Arch; strings.HasPrefix(arch, "sm_7") || strings.HasPrefix(arch, "sm_8") {
		t.Skipf("%s has no engine for bulk copies", arch)
	}
	kernel := kernels(t, d, "bulk_test.cu", bulkSource)("several")
	data, want := make([]uint32, 192), make([]uint32, 192)
	for i := range data {
		data[i] = uint32(i * i)
		want[i] = data[i] + uint32(i%64)
	}
	src, dst := upload(t, d, data), upload(t, d, make([]uint32, 192))
	run(t, d, kernel, gpu.Blocks(1, 64), dst, src)
	testcmp.Equal(t, "the copy", contents[uint32](t, dst, 192), want)
}
