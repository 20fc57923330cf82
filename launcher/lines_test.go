package launcher

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		name   string
		prefix string
		writes []string
		want   string
	}{
		{"one line", "[0] ", []string{"a\n"}, "[0] a\n"},
		{"lines in one write", "[0] ", []string{"a\n\nb\n"}, "[0] a\n[0] \n[0] b\n"},
		{"a line in pieces", "[0] ", []string{"a", "b", "c\nd", "\n"}, "[0] abc\n[0] d\n"},
		{"no end of the last line", "[0] ", []string{"a\nb"}, "[0] a\n[0] b\n"},
		{"nothing", "[0] ", []string{"", ""}, ""},
		{"no prefix", "", []string{"a\n\nb"}, "a\n\nb\n"},
		{"as long as allowed", "", []string{long, "\n"}, long + "\n"},
		{"too long", "", []string{long + "y\nz\n"}, long + "\ny\nz\n"},
		{"too long in pieces", "", []string{long, "y", "\n"}, long + "\ny\n"},
		{"too long with a prefix", "[0] ", []string{long + "\n"}, "[0] " + long[4:] + "\n[0] " + long[:4] + "\n"},
	} {
		var out strings.Builder
		l := &lines{mu: new(sync.Mutex), out: &out, prefix: c.prefix}
		for _, w := range c.writes {
			if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("%s: Write = %d, %v", c.name, n, err)
			}
		}
		testerr.Check(t, l.Close())
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestLinesHoldBackLittle feeds a line without end.
func TestLinesHoldBackLittle(t *testing.T) {
	var out strings.Builder
	l := &lines{mu: new(sync.Mutex), out: &out}
	chunk := []byte(strings.Repeat("x", 1000))
	for range 10_000 {
		l.Write(chunk)
		if len(l.buf) > maxLine {
			t.Fatalf("%d bytes held back", len(l.buf))
		}
	}
	if cap(l.buf) > 4*maxLine {
		t.Errorf("the buffer grew to %d bytes", cap(l.buf))
	}
}

func TestLinesOfRanksDoNotMix(t *testing.T) {
	// Each rank writes its lines in two pieces, with time for others between.
	_, out, err := shell(t, 12, `for i in 1 2 3 4 5; do printf "begin $RANK "; sleep 0.01; echo "end $RANK"; done; printf last`,
		func(o *Options) { o.Prefix = true })
	testerr.Check(t, err)
	want, got := map[string]int{}, map[string]int{}
	for r := range 12 {
		want[fmt.Sprintf("[%2d] begin %d end %d", r, r, r)] = 5
		want[fmt.Sprintf("[%2d] last", r)] = 1
	}
	for line := range strings.Lines(out) {
		got[strings.TrimSuffix(line, "\n")]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("how often each line came (-want +got):\n%s", diff)
	}
}
