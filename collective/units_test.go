package collective

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestCompilersAtATime has no more compilers run at a time than there are processors.
func TestCompilersAtATime(t *testing.T) {
	dir := t.TempDir()
	log, script := filepath.Join(dir, "log"), filepath.Join(dir, "cxx")
	text := "#!/bin/sh\nprintf + >>" + log + "\ng++ \"$@\"\nstatus=$?\nprintf - >>" + log + "\nexit $status\n"
	testerr.Check(t, os.WriteFile(script, []byte(text), 0o700))
	t.Setenv("CXX", script)
	t.Setenv("MSCCLGO_CACHE", filepath.Join(dir, "cache"))
	var units []unit
	for i := range 3 * runtime.GOMAXPROCS(0) {
		units = append(units, unit{unitKey: unitKey{file: "k.cu"}, text: fmt.Appendf(nil, `extern "C" __global__ void k%d() {}`, i)})
	}
	testerr.Check(t, compileAll(t.Context(), devicecode.ArchEmu, units, func() {}))
	calls := testerr.Must(os.ReadFile(log))(t)
	run, most := 0, 0
	for _, c := range calls {
		if c == '+' {
			run++
		} else {
			run--
		}
		most = max(most, run)
	}
	if run != 0 || most == 0 || most > runtime.GOMAXPROCS(0) {
		t.Errorf("%d compilers ran at a time on %d processors: %s", most, runtime.GOMAXPROCS(0), calls)
	}
}

// TestPrecompileAll has Precompile know every file of kernels.
func TestPrecompileAll(t *testing.T) {
	units, err := PrecompileOptions{SeveralHosts: true}.units()
	testerr.Check(t, err)
	known := map[string]bool{}
	for _, u := range units {
		known[u.file] = true
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
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2, 3, 4}}, 4},
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2, 8, 72, 73, 1000}}, 12},
		{PrecompileOptions{Kinds: []Kind{Broadcast}, Ranks: []int{2}, SeveralHosts: true}, 5},
		{PrecompileOptions{Kinds: []Kind{AllReduce}, Types: []Type{F16, U8}, Ops: []Op{Sum, Avg}, Ranks: []int{2}}, 4*3 + 2},
	} {
		if units, err := c.o.units(); err != nil || len(units) != c.want {
			t.Errorf("%+v: %d files, %v; want %d", c.o, len(units), err, c.want)
		}
	}
}
