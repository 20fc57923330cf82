package explore_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/internal/explore"
)

// TestLines tells of switches as they are printed: old values first, and repeats once.
func TestLines(t *testing.T) {
	const host, block = explore.Who(1 << 60), explore.Who(3 << 60)
	startUp := explore.Switch{From: host, To: host, Text: "the goroutine of rank 0 goes on"}
	thread := func(n int) explore.Switch {
		return explore.Switch{From: block, To: block, Text: fmt.Sprintf("thread %d of block 0 of k goes on instead of thread 1 of block %d of k", n, n)}
	}
	old := func(n int) explore.Switch {
		return explore.Switch{From: block, Age: 1, Text: fmt.Sprintf("thread (%d,0,1) of block 0 of k gets an old value", n)}
	}
	for _, c := range []struct {
		switches []explore.Switch
		want     []string
	}{
		{nil, nil},
		{[]explore.Switch{startUp, startUp}, []string{startUp.Text + " (and 1 more like it)"}},
		{[]explore.Switch{startUp, old(3), startUp, thread(4), old(5), startUp, thread(6), {From: block, To: block}}, []string{
			old(3).Text + " (and 1 more like it)",
			thread(4).Text + " (and 1 more like it)",
			startUp.Text, "1 more", "2 of the start-up, before a kernel's thread took part",
		}},
	} {
		if got := explore.Lines(c.switches); !slices.Equal(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestShrinkOld leaves out all other switches at once where old values alone fail.
func TestShrinkOld(t *testing.T) {
	var all []explore.Switch
	for i := range uint64(100) {
		all = append(all, explore.Switch{Count: i, To: 1}, explore.Switch{Count: i, Age: 1})
	}
	runs := 0
	few := explore.Shrink(all, 40, func(some []explore.Switch) ([]explore.Switch, bool) {
		runs++
		return some, slices.ContainsFunc(some, func(s explore.Switch) bool { return s.Age == 1 && s.Count == 42 })
	})
	if len(few) != 1 || few[0].Count != 42 || runs > 30 {
		t.Errorf("%v, by %d runs", few, runs)
	}
}
