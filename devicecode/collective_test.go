package devicecode_test

import (
	_ "embed"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed collective_test.cu
var collectiveSource string

// reduceMistake is the kernels' Mistake.
type reduceMistake struct {
	Count                               uint32
	Ranks, In, Apart, Out, Elements, At uint32
}

// TestReduceRange reduces up to 70 elements of one to five ranks between all
// alignments, and sees that nothing else is written.
func TestReduceRange(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "collective_test.cu", collectiveSource)
	const blocks, threads = 16, 8
	arena := upload(t, d, make([]byte, blocks*6*768))
	mistake := upload(t, d, make([]reduceMistake, 1))
	for _, name := range []string{"halves", "floats", "bytes", "longs"} {
		check(t, gpu.CopyIn(mistake, []reduceMistake{{}}))
		run(t, d, kernel(name), gpu.Blocks(blocks, threads), arena, mistake)
		if m := contents[reduceMistake](t, mistake, 1)[0]; m.Count != 0 {
			t.Errorf("%s: %d elements are wrong, first %+v", name, m.Count, m)
		}
	}
}
