package collective

import (
	"path/filepath"
	"testing"
)

// TestPrecompileAll has Precompile know every file of kernels.
func TestPrecompileAll(t *testing.T) {
	units, err := PrecompileOptions{SeveralHosts: true}.units()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, u := range units {
		known[u.name] = true
	}
	files, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of kernels, %v", len(files), err)
	}
	for _, file := range files {
		if !known[filepath.Base(file)] {
			t.Errorf("%s would be compiled by the first call that needs it", file)
		}
	}
	// One host needs fewer, and each file is compiled once for each kind of numbers of ranks.
	for _, c := range []struct {
		o    PrecompileOptions
		want int
	}{
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2, 3, 4}}, 3},
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2, 8, 72, 73, 1000}}, 9},
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2}, SeveralHosts: true}, 4},
		{PrecompileOptions{Kinds: []Kind{AllReduce}, Types: []Type{F16, U8}, Ops: []Op{Sum, Avg}, Ranks: []int{2}}, 4*3 + 2},
	} {
		if units, err := c.o.units(); err != nil || len(units) != c.want {
			t.Errorf("%+v: %d files, %v; want %d", c.o, len(units), err, c.want)
		}
	}
}
