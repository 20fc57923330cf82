package gpu_test

import (
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
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
		for _, l := range native.LaunchesOf(d, query)[0] {
			text += fmt.Sprintf("%d %s#%d %dx%d %v; ", l.Number, l.Name, l.Nth, l.Grid[0], l.Block[0], l.Ended)
			hashes[l.Hash] = true
		}
		return text
	}
	if all := native.LaunchesOf(d, true); len(all) != 0 {
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
	testcmp.Equal(t, "of graphs", say(false), "1 fill#1 1x32 true; 2 fill#2 1x32 true; 3 "+name+"#1 0x0 true; 4 "+name+"#2 0x0 true; ")
	for range 20 {
		launch(s, 3)
	}
	if all := native.LaunchesOf(d, false)[0]; len(all) != 8 || all[0].Number != 17 || all[7].Number != 24 || all[7].Nth != 22 {
		t.Errorf("of many: %+v", all)
	}
	synchronize(t, s)
	check(t, s.Close())
	if all := native.LaunchesOf(d, true); len(all) != 0 {
		t.Errorf("of a closed stream: %v", all)
	}
}
