package collective

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestDefaultTuning finds a choice for every collective, size and number of
// ranks, on either link, also where no packets fit.
func TestDefaultTuning(t *testing.T) {
	tuning, err := DefaultTuning()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Kinds() {
		for _, link := range []string{NVLink, "other"} {
			for _, ranks := range []int{1, 2, 3, 4, 8, 72} {
				for shift := range 40 {
					for _, room := range []bool{true, false} {
						choice, ok := tuning.Choose(link, c, ranks, 1<<shift, func(choice Choice) bool {
							return room || !strings.Contains(choice.Algorithm, "LL")
						})
						if !ok || !slices.Contains(c.Algorithms(), choice.Algorithm) {
							t.Fatalf("%s, %d ranks by %s, %d bytes: %+v, %v", c, ranks, link, 1<<shift, choice, ok)
						}
						if link == "other" && strings.Contains(choice.Algorithm, "LL128") {
							t.Errorf("%s, %d bytes: LL128 needs NVLink", c, 1<<shift)
						}
					}
				}
			}
		}
	}
}

// TestTuningText writes a tuning and reads it back.
func TestTuningText(t *testing.T) {
	want := &Tuning{Rules: []Rule{
		{NVLink, AllReduce, 2, 4096, Choice{"oneShotLL8", 8, 512}},
		{"*", SendReceive, 0, math.MaxUint64, Choice{"direct", 128, 1024}},
	}}
	var text bytes.Buffer
	if err := want.Write(&text); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTuning(&text)
	if err != nil {
		t.Fatal(err)
	}
	testcmp.Equal(t, "rules that were written and read", got.Rules, want.Rules)
}

func TestBadTuning(t *testing.T) {
	for _, text := range []string{
		"nvlink all-reduce 2 4K direct 8",
		"nvlink all-reduce 2 4K direct 8 512 9",
		"nvlink all 2 4K direct 8 512",
		"nvlink all-reduce two 4K direct 8 512",
		"nvlink all-reduce 2 4X direct 8 512",
		"nvlink all-reduce 2 4K relayed 8 512",
		"nvlink all-reduce 2 4K direct 0 512",
		"nvlink all-reduce 2 4K direct 8x 512",
		"nvlink all-reduce 2 4K direct 8 *",
		"nvlink all-reduce 2 4K direct 8 99999999",
		strings.Repeat("* broadcast * * direct 8 512\n", maxRules+1),
	} {
		_, err := ReadTuning(strings.NewReader("# comment\n\n" + text))
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

// FuzzReadTuning reads anything; what it takes comes back when it is written.
func FuzzReadTuning(f *testing.F) {
	f.Add(defaultTuning)
	f.Add("* broadcast * * direct 8 512")
	f.Add("nvlink all-reduce 2 4096 oneShotLL8 8 512\n#")
	f.Fuzz(func(t *testing.T, text string) {
		tuning, err := ReadTuning(strings.NewReader(text))
		if err != nil {
			return
		}
		var written bytes.Buffer
		if err := tuning.Write(&written); err != nil {
			t.Fatal(err)
		}
		again, err := ReadTuning(&written)
		if err != nil {
			t.Fatal(err)
		}
		testcmp.Equal(t, "rules that were written and read again", again.Rules, tuning.Rules)
	})
}
