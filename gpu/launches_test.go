package gpu_test

import (
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestLaunches has a stream wait for a value between kernels, and looks at what is told of
// its launches.
func TestLaunches(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	fill := kernel(t, load(t, d), "fill")
	word, out := allocHost(t, d, 8), alloc(t, d, 40)
	hashes := map[uint32]bool{}
	say := func(query bool) (text string) {
		for _, l := range d.Internal().Launches(query)[0] {
			text += fmt.Sprintf("%d %s#%d %dx%d %v; ", l.Number, l.Name, l.Nth, l.Grid[0], l.Block[0], l.Ended)
			hashes[l.Hash] = true
		}
		return text
	}
	if all := d.Internal().Launches(true); len(all) != 0 {
		t.Errorf("before any launch: %v", all)
	}
	launch := func(on *gpu.Stream, what uint32) { check(t, fill.Launch(on, gpu.Blocks(1, 32), out.Ptr(), 2, what)) }
	launch(s, 1)
	synchronize(t, s)
	check(t, s.WaitValue64(word, 0, 1, gpu.Equal))
	launch(s, 2)
	testcmp.Equal(t, "while the second waits", say(true), "1 fill#1 1x32 true; 2 fill#2 1x32 false; ")
	check(t, gpu.CopyIn(word, []uint64{1}))
	for done := false; !done; {
		var err error
		done, err = s.Query()
		check(t, err)
	}
	testcmp.Equal(t, "after it", say(false), "1 fill#1 1x32 true; 2 fill#2 1x32 true; ")
	if len(hashes) != 2 {
		t.Errorf("two arguments have %d hashes", len(hashes))
	}

	check(t, s.BeginCapture())
	for i := range uint32(5) {
		launch(s, i)
	}
	say(true) // while it captures
	graph, err := s.EndCapture()
	check(t, err)
	closer(t, graph)
	check(t, graph.Launch(s))
	check(t, graph.Launch(s))
	synchronize(t, s)
	const name = "a graph of fill, fill, fill and 2 more"
	testcmp.Equal(t, "of graphs", say(false), "1 fill#1 1x32 true; 2 fill#2 1x32 true; 3 "+name+"#1 1x32 true; 4 "+name+"#2 1x32 true; ")
	for range 20 {
		launch(s, 3)
	}
	if all := d.Internal().Launches(false)[0]; len(all) != 8 || all[0].Number != 17 || all[7].Number != 24 || all[7].Nth != 22 {
		t.Errorf("of many: %+v", all)
	}
	synchronize(t, s)
	check(t, s.Close())
	if all := d.Internal().Launches(true); len(all) != 0 {
		t.Errorf("of a closed stream: %v", all)
	}
}

// TestLaunchGroups launches a kernel and graphs of it with memory of groups, and looks at which group
// they are said to be of, and at how they are counted.
func TestLaunchGroups(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	module := load(t, d)
	fill, sum := kernel(t, module, "fill"), kernel(t, module, "sum")
	none, one, two, more := alloc(t, d, 8), alloc(t, d, 8), alloc(t, d, 8), alloc(t, d, 8)
	launch := func(b *gpu.Buffer) { t.Helper(); check(t, fill.Launch(s, gpu.Blocks(1, 32), b.Ptr(), 0, uint32(1))) }
	captured := func(of ...*gpu.Buffer) *gpu.Graph {
		t.Helper()
		check(t, s.BeginCapture())
		for _, b := range of {
			launch(b)
		}
		graph, err := s.EndCapture()
		check(t, err)
		closer(t, graph)
		return graph
	}
	said := 0
	say := func() (text string) {
		t.Helper()
		synchronize(t, s)
		all := d.Internal().Launches(false)[0]
		for _, l := range all {
			if int(l.Number) > said {
				text += fmt.Sprintf("%d#%d ", l.Group, l.Nth)
			}
		}
		said = int(all[len(all)-1].Number)
		return text
	}
	has := func(b *gpu.Buffer) inside.LaunchGroup {
		g := d.Internal().GroupLaunches()
		g.Has(uint64(b.Ptr()), b.Size())
		return g
	}
	launch(one)
	testcmp.Equal(t, "before there are groups", say(), "0#1 ")
	first := has(one)
	testcmp.Equal(t, "whether the first is the only one", first.Only(), true)
	second := has(two)
	testcmp.Equal(t, "whether it is then", first.Only(), false)
	for _, b := range []*gpu.Buffer{one, two, none, one} {
		launch(b)
	}
	testcmp.Equal(t, "of two groups", say(), "1#1 2#1 0#2 1#2 ")
	ofOne, ofBoth := captured(none, one), captured(one, two, one)
	for _, g := range []*gpu.Graph{ofOne, ofBoth, ofOne} {
		check(t, g.Launch(s))
	}
	testcmp.Equal(t, "of graphs", say(), "1#1 0#1 1#2 ")
	first.Has(uint64(more.Ptr()), 8)
	launchWide := func(of ...*gpu.Buffer) {
		t.Helper()
		var wide [250]uint64
		for i, b := range of {
			wide[100*i] = uint64(b.Ptr())
		}
		check(t, sum.Launch(s, gpu.Blocks(1, 1), wide, none))
	}
	launchWide(one, more)
	launchWide(two, none)
	launchWide(two, more)
	testcmp.Equal(t, "of addresses in a struct", say(), "1#1 2#1 0#1 ")
	first.End()
	first.Has(uint64(one.Ptr()), 8)
	launch(one) // it is nobody's
	third := has(one)
	launch(one)
	check(t, ofOne.Launch(s))
	testcmp.Equal(t, "when another group has the memory", say(), "0#3 3#1 3#1 ")
	second.End()
	third.End()
}
