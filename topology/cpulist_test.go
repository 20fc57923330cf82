package topology

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{
		"":             nil,
		"\n":           nil,
		"0\n":          {0},
		"0-3,8,10-11":  {0, 1, 2, 3, 8, 10, 11},
		"65535\n":      {65535},
		"5-5":          {5},
		"0-1,2-3,64\n": {0, 1, 2, 3, 64},
	} {
		got, err := parseList(text)
		if err != nil {
			t.Errorf("parseList(%q): %v", text, err)
		}
		testcmp.Equal(t, fmt.Sprintf("parseList(%q)", text), got, want)
	}
}

func TestParseListRefuses(t *testing.T) {
	for _, text := range []string{
		"x", "-1", "1-", "-", ",", "1,", ",1", "3-1", "1,1", "2,1", "0-3,3", "65536", "0-99999999999999999999",
		"1 2", "1\n\n", " 1", "+1", "0x1", "0-31:1/2", "1-2-3", strings.Repeat("9", 1000),
	} {
		if got, err := parseList(text); err == nil {
			t.Errorf("parseList(%.30q) = %v, want an error", text, got)
		}
	}
}

// FuzzParseList checks that every list that is accepted is ascending, bounded,
// and the same after a trip through CPUList.
func FuzzParseList(f *testing.F) {
	for _, seed := range []string{"", "\n", "0", "0-3,8,10-11\n", "0-65535", "1,1", "3-1", "0-31:1/2", "1-,2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseList(text)
		if err != nil {
			return
		}
		for i, n := range list {
			if n < 0 || n > maxID || i > 0 && n <= list[i-1] {
				t.Fatalf("parseList(%q) is not ascending or out of bounds: %v", text, list)
			}
		}
		again, err := parseList(CPUList(list))
		if err != nil {
			t.Fatalf("%q became %q: %v", text, CPUList(list), err)
		}
		testcmp.Equal(t, fmt.Sprintf("the list of %q", text), again, list)
	})
}
