package bench

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
)

func TestProgressFilter(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		want     string
	}{
		{false, "a line\nanother\n"},
		{true, "a line\nfirst\r\x1b[Ksecond\r\x1b[Kanother\n"},
	} {
		var out bytes.Buffer
		f := &ProgressFilter{Out: &out, Terminal: c.terminal}
		if _, err := f.Write([]byte("a line\n")); err != nil {
			t.Fatal(err)
		}
		ShowProgress(f)("first")
		ShowProgress(f)("second")
		if err := f.Clear(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("another\n")); err != nil {
			t.Fatal(err)
		}
		if err := f.Clear(); err != nil || out.String() != c.want {
			t.Errorf("terminal %v: %q, %v", c.terminal, &out, err)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct{ in, want []time.Duration }{
		{[]time.Duration{5}, []time.Duration{5}},
		{[]time.Duration{9, 1, 5}, []time.Duration{5}},
		{[]time.Duration{9, 1, 5, 7}, []time.Duration{6}},
	} {
		given := slices.Clone(c.in)
		if got := median(c.in); got != c.want[0] || !slices.Equal(given, c.in) {
			t.Errorf("median of %v is %v, and they became %v", given, got, c.in)
		}
	}
}

func TestTakeTurns(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	for _, c := range []struct {
		seats []seat
		want  bool
	}{
		{[]seat{{one, 7}, {two, 8}}, false},
		{[]seat{{one, 7}, {two, 7}, {one, 7}}, false}, // in one process
		{[]seat{{one, 7}, {two, 8}, {one, 9}}, true},
	} {
		if got := takeTurns(c.seats); got != c.want {
			t.Errorf("%v: %v", c.seats, got)
		}
	}
}

// made gives a result of so many nanoseconds.
func made(bytes uint64, algorithm string, blocks int, nanoseconds time.Duration, others ...Other) Result {
	return Result{
		Collective: "all-reduce", Ranks: 4, Link: collective.NVLink, Bytes: bytes, Type: "f16", Place: "out", Device: "a GPU",
		Algorithm: algorithm, Blocks: blocks, Threads: 512, Time: Times{Median: nanoseconds}, Others: others, bus: 1.5,
	}
}

// TestRules makes rules of what is fastest, and joins neighbours that agree.
func TestRules(t *testing.T) {
	got := rules(map[uint64][]Result{
		1 << 10: {made(1<<10, "oneShotLL16", 4, 9), made(1<<10, "oneShotLL8", 4, 8), made(1<<10, "direct", 4, 10)},
		4 << 10: {made(4<<10, "oneShotLL8", 4, 9), made(4<<10, "direct", 4, 10)},
		1 << 20: {made(1<<20, "direct", 4, 11), made(1<<20, "direct", 32, 10)},
	})
	want := []collective.Rule{
		{Link: collective.NVLink, Collective: "all-reduce", Ranks: 4, UpTo: 64 << 10, Choice: collective.Choice{Algorithm: "oneShotLL8", Blocks: 4, Threads: 512}},
		{Link: collective.NVLink, Collective: "all-reduce", Ranks: 4, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct", Blocks: 32, Threads: 512}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the rules are %+v, want %+v", got, want)
	}
}

func TestLines(t *testing.T) {
	nccl := Other{Name: "nccl", Time: Times{Median: 4000}}
	auto := linesOf([]Result{made(1024, "oneShotLL8", 4, 2000, nccl), made(4096, "direct", 4, 3000, nccl)})
	if len(auto) != 2 || auto[0].name != "mscclgo" || len(auto[0].micros) != 2 || auto[1].name != "nccl" || auto[1].micros[1].Y != 4 {
		t.Errorf("by tuning: %+v", auto)
	}
	if bw := auto[0].busbw[0].Y; bw != 1024/2000.*1.5 {
		t.Errorf("bus bandwidth %v", bw)
	}
	all := linesOf([]Result{made(1024, "oneShotLL8", 4, 2000, nccl), made(1024, "direct", 4, 3000, nccl), made(4096, "direct", 4, 3000, nccl)})
	if len(all) != 3 || all[0].name != "oneShotLL8" || len(all[0].micros) != 1 || len(all[2].micros) != 2 {
		t.Errorf("all algorithms: %+v", all)
	}
}

func TestPlot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.png")
	results := []Result{made(1024, "oneShotLL8", 4, 2000), made(1<<20, "direct", 4, 9000), made(4<<20, "direct", 4, 0)}
	in := made(1024, "direct", 4, 5000)
	in.Place = "in"
	if err := Plot(file, append(results, in)); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	image, err := png.Decode(r)
	if err != nil {
		t.Fatal(err)
	}
	// Two rows of a title, axes and lines leave marks on the white.
	dark := 0
	for y := range image.Bounds().Dy() {
		for x := range image.Bounds().Dx() {
			if r, _, _, _ := image.At(x, y).RGBA(); r < 0x8000 {
				dark++
			}
		}
	}
	if dark < 5000 {
		t.Errorf("the plot of %v has %d dark pixels", image.Bounds(), dark)
	}
	if err := Plot(filepath.Join(t.TempDir(), "no", "folder"), results); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a plot in no folder: %v", err)
	}
}

func TestSizesOfRange(t *testing.T) {
	if got, err := Sizes(1000, 40_000, 4); err != nil || !slices.Equal(got, []uint64{1000, 4000, 16_000}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Sizes(1, maxSize, 1<<62); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for _, c := range [][3]uint64{{0, 1, 2}, {2, 1, 2}, {1, 2, 1}, {1, maxSize + 1, 2}} {
		if _, err := Sizes(c[0], c[1], c[2]); err == nil {
			t.Errorf("%v make no sizes", c)
		}
	}
}

// TestWithin waits for what ends, and not for what does not.
func TestWithin(t *testing.T) {
	failed := errors.New("failed")
	if err := within(t.Context(), "fail", func() error { return failed }); err != failed {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never := make(chan error)
	err := within(ctx, "wait", func() error { return <-never })
	if !errors.Is(err, mscclgo.ErrAborted) || !strings.Contains(err.Error(), "NCCL: wait") {
		t.Error(err)
	}
	if g := (&gaveUp{"nccl", err, false}); !errors.Is(g, mscclgo.ErrAborted) || !strings.HasPrefix(g.Error(), "nccl: ") || Stuck(g) {
		t.Error(g)
	}
}
