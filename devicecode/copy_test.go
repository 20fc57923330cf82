package devicecode_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed copy_test.cu
var copySource string

// copyMistake is the kernels' Mistake.
type copyMistake struct {
	Count                   uint32
	Dst, Src, Size, Threads uint32
	At                      uint32
}

// TestCopy copies every size up to 200 bytes between all alignments from 0 to 31,
// with accesses of each width.
func TestCopy(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "copy_test.cu", copySource)
	const blocks, threads, most, stride = 16, 8, 200, 512
	arena := upload(t, d, make([]byte, blocks*2*stride))
	mistake := upload(t, d, make([]copyMistake, 1))
	for _, width := range []int{4, 8, 16} {
		check(t, gpu.CopyIn(mistake, []copyMistake{{}}))
		run(t, d, kernel(fmt.Sprintf("all%d", width)), gpu.Blocks(blocks, threads), arena, stride, most, mistake)
		if m := contents[copyMistake](t, mistake, 1)[0]; m.Count != 0 {
			t.Errorf("width %d: %d bytes are wrong, first %+v", width, m.Count, m)
		}
	}
}

func TestCopyLarge(t *testing.T) {
	d := testdev.Open(t, 0)
	large := kernels(t, d, "copy_test.cu", copySource)("large")
	const size, guard = 1<<20 + 64, 32
	random := rand.NewChaCha8([32]byte{1})
	data, around := make([]byte, size), bytes.Repeat([]byte{0x5a}, size)
	random.Read(data)
	src, dst := upload(t, d, data), upload(t, d, around)
	s := newStream(t, d)
	for _, width := range []int{4, 8, 16} {
		for _, c := range []struct {
			dst, src uint64
			n        uint64
		}{{0, 0, 1 << 20}, {0, 0, 1<<20 - 1}, {1, 1, 999_983}, {0, 1, 1 << 20}, {5, 0, 777_777}, {13, 2, 1<<20 - 15}, {8, 0, 1 << 19}, {4, 12, 1<<20 - 17}} {
			check(t, gpu.CopyIn(dst, around))
			check(t, large.Launch(s, gpu.Blocks(3, 96), dst.Ptr()+gpu.Ptr(guard+c.dst), src.Ptr()+gpu.Ptr(c.src), c.n, width))
			synchronize(t, s)
			want := bytes.Clone(around)
			copy(want[guard+c.dst:], data[c.src:c.src+c.n])
			what := fmt.Sprintf("width %d: %d bytes from offset %d to %d", width, c.n, c.src, c.dst)
			testcmp.Equal(t, what, contents[byte](t, dst, size), want)
		}
	}
	testcmp.Equal(t, "the source", contents[byte](t, src, size), data)
}

// TestPartial loads and stores the first bytes of values.
func TestPartial(t *testing.T) {
	d := testdev.Open(t, 0)
	arena, mistake := upload(t, d, make([]byte, 128)), upload(t, d, make([]copyMistake, 1))
	run(t, d, kernels(t, d, "copy_test.cu", copySource)("partials"), gpu.Blocks(1, 1), arena, mistake)
	if m := contents[copyMistake](t, mistake, 1)[0]; m.Count != 0 {
		t.Errorf("%d bytes are wrong, first %+v", m.Count, m)
	}
}
