package bench

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
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
		testerr.Must(f.Write([]byte("a line\n")))(t)
		ShowProgress(f)("first")
		ShowProgress(f)("second")
		testerr.Check(t, f.Clear())
		testerr.Must(f.Write([]byte("another\n")))(t)
		err := f.Clear()
		if diff := cmp.Diff(c.want, out.String()); err != nil || diff != "" {
			t.Errorf("terminal %v: %v (-want +got):\n%s", c.terminal, err, diff)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []time.Duration
		want time.Duration
	}{{[]time.Duration{5}, 5}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{9, 1, 5, 7}, 6}} {
		given := slices.Clone(c.in)
		if got := median(c.in); got != c.want {
			t.Errorf("median of %v is %v, want %v", given, got, c.want)
		}
		if diff := cmp.Diff(given, c.in); diff != "" {
			t.Errorf("median changes its argument (-want +got):\n%s", diff)
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

// made returns a result of that many nanoseconds.
func made(bytes uint64, algorithm string, blocks int, nanoseconds time.Duration, others ...Other) Result {
	return Result{
		Collective: "all-reduce", Ranks: 4, Link: collective.NVLink, Bytes: bytes, Type: "f16", Place: "out", Device: "a GPU",
		Algorithm: algorithm, Blocks: blocks, Threads: 512, Time: Times{Median: nanoseconds}, Others: others, bus: 1.5,
	}
}

// TestRules makes rules of what is fastest, and joins neighbours that agree.
func TestRules(t *testing.T) {
	got := rules(collective.AllReduce, map[uint64][]Result{
		1 << 10: {made(1<<10, "oneShotLL16", 4, 9), made(1<<10, "oneShotLL8", 4, 8), made(1<<10, "direct", 4, 10)},
		4 << 10: {made(4<<10, "oneShotLL8", 4, 9), made(4<<10, "direct", 4, 10)},
		1 << 20: {made(1<<20, "direct", 4, 11), made(1<<20, "direct", 32, 10)},
	})
	want := []collective.Rule{
		{Link: collective.NVLink, Kind: collective.AllReduce, Ranks: 4, UpTo: 64 << 10, Choice: collective.Choice{Algorithm: "oneShotLL8", Blocks: 4, Threads: 512}},
		{Link: collective.NVLink, Kind: collective.AllReduce, Ranks: 4, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct", Blocks: 32, Threads: 512}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rules (-want +got):\n%s", diff)
	}
	bounded := made(1024, "bulk", 4, 9)
	bounded.SMs = 16
	if got := rules(collective.AllGather, map[uint64][]Result{1024: {bounded}}); len(got) != 1 || got[0].Within != 16 {
		t.Errorf("with at most 16 blocks: %+v", got)
	}
}

func TestCurves(t *testing.T) {
	nccl := Other{Name: "nccl", Time: Times{Median: 4000}}
	ours, direct := made(1024, "oneShotLL8", 4, 2000, nccl), made(4096, "direct", 4, 3000, nccl)
	ncclCurve := &curve{"nccl", []Point{{1024, 4}, {4096, 4}}, []Point{{1024, 0.384}, {4096, 1.536}}}
	for _, c := range []struct {
		what    string
		results []Result
		want    []*curve
	}{
		{"by tuning", []Result{ours, direct}, []*curve{
			{"mscclgo", []Point{{1024, 2}, {4096, 3}}, []Point{{1024, 0.768}, {4096, 2.048}}}, ncclCurve,
		}},
		{"all algorithms", []Result{ours, made(1024, "direct", 4, 3000, nccl), direct}, []*curve{
			{"oneShotLL8", []Point{{1024, 2}}, []Point{{1024, 0.768}}}, ncclCurve,
			{"direct", []Point{{1024, 3}, {4096, 3}}, []Point{{1024, 0.512}, {4096, 2.048}}},
		}},
	} {
		if diff := cmp.Diff(c.want, curvesOf(c.results, acrossSizes), cmp.AllowUnexported(curve{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}

// drawing is what TestPlot looks for in an SVG.
type drawing struct {
	Groups []struct {
		Texts  []string `xml:"text"`
		Panels []struct {
			Texts  []string `xml:"text"`
			Curves []struct {
				Points string `xml:"points,attr"`
			} `xml:"polyline"`
		} `xml:"g"`
	} `xml:"g"`
}

func TestPlot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.svg")
	results := []Result{made(1024, "oneShotLL8", 4, 2000), made(1<<20, "direct", 4, 9000), made(4<<20, "direct", 4, 0)}
	in := made(1024, "direct", 4, 5000)
	in.Place, in.Device = "in", "<b>a GPU</b>"
	testerr.Check(t, Plot(file, append(results, in)))
	text := testerr.Must(os.ReadFile(file))(t)
	var got drawing
	if err := xml.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	var headings [][]string
	var curves []string
	for _, g := range got.Groups {
		headings = append(headings, g.Texts)
		for _, p := range g.Panels {
			for _, c := range p.Curves {
				curves = append(curves, strings.TrimSpace(c.Points))
			}
		}
	}
	wantHeadings := [][]string{
		{"all-reduce, 4 ranks, f16, out of place", "a GPU", "mscclgo"}, {"all-reduce, 4 ranks, f16, in place", "<b>a GPU</b>", "mscclgo"},
	}
	if diff := cmp.Diff(wantHeadings, headings); diff != "" {
		t.Errorf("headings (-want +got):\n%s", diff)
	}
	// The first from 2 us to 9 us on an axis from 2 to 10; the second in the middle.
	wantCurves := []string{"0.0,230.0 400.0,15.1", "0.0,213.5 400.0,5.2", "200.0,230.0", "200.0,122.3"}
	if diff := cmp.Diff(wantCurves, curves); diff != "" {
		t.Errorf("curves (-want +got):\n%s", diff)
	}
	if texts := got.Groups[0].Panels[0].Texts; !slices.Contains(texts, "64K") || !slices.Contains(texts, "5") {
		t.Errorf("the labels of the first panel are %q", texts)
	}
	if err := Plot(filepath.Join(t.TempDir(), "no", "folder"), results); err == nil || !strings.Contains(err.Error(), "folder") {
		t.Errorf("a plot in no folder: %v", err)
	}
}

func TestSizesOfRange(t *testing.T) {
	got, err := Sizes(1000, 40_000, 4)
	if diff := cmp.Diff([]uint64{1000, 4000, 16_000}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
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

// TestWithin waits for a function that returns, and not for one that does not.
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
