package collective

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestDefaultTuning finds a choice for every collective, size and number of
// ranks, on either link, also where no packets fit.
func TestDefaultTuning(t *testing.T) {
	tuning := testerr.Must(DefaultTuning())(t)
	for _, c := range Kinds() {
		for _, link := range []string{NVLink, emulatedLink, otherLink} {
			for _, ranks := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 72} {
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
		{NVLink, AllReduce, 2, 0, 4096, Choice{"oneShotLL8", 8, 512}, 0},
		{"*", SendReceive, 0, 0, math.MaxUint64, Choice{"direct", 128, 1024}, 16},
		{NVLink, Broadcast, 5, 8, 1 << 20, Choice{"relayed", 64, 1024}, 0},
		{NVLink, Broadcast, 3, 3, 1 << 20, Choice{"relayed", 64, 1024}, 0},
		{"*", AllReduce, 0, 0, math.MaxUint64, Choice{"model", 32, 256}, 0},
	}}
	var text bytes.Buffer
	testerr.Check(t, want.Write(&text))
	got := testerr.Must(ReadTuning(&text))(t)
	testcmp.Equal(t, "rules that were written and read", got.Rules, want.Rules)
}

func TestBadTuning(t *testing.T) {
	for _, text := range []string{
		"nvlink all-reduce 2 4K direct 8",
		"nvlink all-reduce 2 4K direct 8 512 9 9",
		"nvlink all-reduce 2 4K direct 8 512 0",
		"nvlinks all-reduce 2 4K direct 8 512",
		"NVLink all-reduce 2 4K direct 8 512",
		"pcie all-reduce 2 4K direct 8 512",
		"nvlink all 2 4K direct 8 512",
		"nvlink all-reduce two 4K direct 8 512",
		"nvlink all-reduce 8-5 4K direct 8 512",
		"nvlink all-reduce 5- 4K direct 8 512",
		"nvlink all-reduce -5 4K direct 8 512",
		"nvlink all-reduce 5-* 4K direct 8 512",
		"nvlink all-reduce 5-8-9 4K direct 8 512",
		"nvlink all-reduce 2 4X direct 8 512",
		"nvlink all-reduce 2 4K relayed 8 512",
		"nvlink all-reduce 2 4K direct 0 512",
		"nvlink all-reduce 2 4K direct 8x 512",
		"nvlink all-reduce 2 4K direct 8 *",
		"nvlink all-reduce 2 4K direct 8 99999999",
		strings.Repeat("* broadcast * * direct 8 512\n", maxRules+1),
		"* broadcast * * direct 8 512" + strings.Repeat(" ", 1<<16),
	} {
		_, err := ReadTuning(strings.NewReader("# comment\n\n" + text))
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	if _, err := ReadTuning(iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// TestLinksOfTuning reads rules for each link that there is, and is told of these where there is none.
func TestLinksOfTuning(t *testing.T) {
	tuning, err := ReadTuning(strings.NewReader("nvlink reduce * * direct 8 512\nemulated reduce * * direct 6 64\nother reduce * * direct 4 512\n* reduce * * direct 2 512"))
	testerr.Check(t, err)
	for link, blocks := range map[string]int{NVLink: 8, emulatedLink: 6, otherLink: 4} {
		if got, ok := tuning.Choose(link, Reduce, 2, 1, func(Choice) bool { return true }); !ok || got.Blocks != blocks {
			t.Errorf("%s: %+v, %v", link, got, ok)
		}
	}
	_, err = ReadTuning(strings.NewReader("\nnvl reduce * * direct 8 512"))
	testerr.Expect(t, err, mscclgo.ErrInvalid, `line 2: link "nvl" is none of nvlink, emulated, other, *`)
}

// FuzzReadTuning reads anything; what it takes comes back when it is written.
func FuzzReadTuning(f *testing.F) {
	f.Add(defaultTuning)
	f.Add("* broadcast * * direct 8 512")
	f.Add("* reduce 3 4K model 8 512")
	f.Add("* reduce 5-8 4K direct 8 512")
	f.Add("nvlink all-reduce 2 4096 oneShotLL8 8 512\n#")
	f.Fuzz(func(t *testing.T, text string) {
		tuning, err := ReadTuning(strings.NewReader(text))
		if err != nil {
			return
		}
		var written bytes.Buffer
		testerr.Check(t, tuning.Write(&written))
		again := testerr.Must(ReadTuning(&written))(t)
		testcmp.Equal(t, "rules that were written and read again", again.Rules, tuning.Rules)
	})
}

// TestModelChooses finds that what was measured stands, that the model chooses elsewhere, and
// that rules do where it does not know the links.
func TestModelChooses(t *testing.T) {
	tuning := testerr.Must(DefaultTuning())(t)
	all := func(Choice) bool { return true }
	one, pcie, two := fabricOf(t, "switches", 4, 1), fabricOf(t, "sockets", 0, 1), fabricOf(t, "sockets", 0, 2)
	across := func(kind Kind) func(Choice) bool {
		return func(c Choice) bool {
			a, err := kind.algorithm(c.Algorithm)
			return err == nil && a.about().hosts
		}
	}
	for _, kind := range Kinds() {
		for shift := range 40 {
			bytes := uint64(1) << shift
			for _, ranks := range []int{2, 4, 5, 8} {
				rule, _ := tuning.Choose(NVLink, kind, ranks, bytes, all)
				if got, ok := tuning.choose(NVLink, rulesFor(&one), kind, ranks, bytes, 0, all); !ok || got != rule {
					t.Errorf("%v of %d bytes on %d ranks: %v, where the rule says %v", kind, bytes, ranks, got, rule)
				}
			}
			got, ok := tuning.choose("other", rulesFor(&pcie), kind, 8, bytes, 0, all)
			want := rulesFor(&pcie).choices(kind, bytes, Choice{byModel, 32, 256})[0]
			if !ok || got != want || strings.Contains(got.Algorithm, "LL128") {
				t.Errorf("%v of %d bytes over PCIe: %v, where the model says %v", kind, bytes, got, want)
			}
			if got, ok := tuning.choose("other", nil, kind, 8, bytes, 0, all); !ok || got.Algorithm == byModel {
				t.Errorf("%v of %d bytes without a model: %v, %v", kind, bytes, got, ok)
			}
			rule, can := tuning.Choose("other", kind, 16, bytes, across(kind))
			got, ok = tuning.choose("other", rulesFor(&two), kind, 16, bytes, 0, across(kind))
			a, _ := kind.algorithm(got.Algorithm)
			few := true
			switch a.(type) {
			case *rails, *routes:
				few = false
			}
			if ok != can || ok && got.Blocks > 4 && few {
				t.Errorf("%v of %d bytes on two hosts: %v, %v; the rule says %v, %v", kind, bytes, got, ok, rule, can)
			}
		}
	}
	// What does not fit is passed over.
	got, ok := tuning.choose("other", rulesFor(&pcie), AllReduce, 8, 1024, 0, func(c Choice) bool { return !strings.Contains(c.Algorithm, "LL") })
	if !ok || strings.Contains(got.Algorithm, "LL") {
		t.Errorf("%v, %v", got, ok)
	}
}

// TestFabricIsAgreed has the ranks combine what each knows.
func TestFabricIsAgreed(t *testing.T) {
	a, b := fabricOf(t, "switches", 0, 2), fabricOf(t, "sockets", 0, 2)
	knows := func(f fabric) linkMessage { return linkMessage{emulatedLink, true, true, f} }
	both := knows(a).and(knows(b))
	testcmp.Equal(t, "what the two agree on", both, knows(b).and(knows(a)))
	if one := both.fabric; one.Path != b.Path || one.All != min(a.All, b.All) || one.Net != min(a.Net, b.Net) || one.Ranks != a.Ranks {
		t.Errorf("%+v of %+v and %+v", one, a, b)
	}
	if none := (linkMessage{link: otherLink}); none.and(knows(a)).rules() != nil || knows(a).and(none).rules() != nil {
		t.Error("a fabric that one rank does not know is known to all")
	} else if got := knows(a).and(none); got.link != otherLink || got.lines {
		t.Errorf("%q and lines %v of ranks of which one has no such links", got.link, got.lines)
	}
}

// TestBoundedTuning finds rules for few blocks where blocks are bounded, and others with fewer
// blocks.
func TestBoundedTuning(t *testing.T) {
	tuning := testerr.Must(ReadTuning(strings.NewReader(`
		* all-gather * 1K LL8    16 256
		* all-gather * 1M bulk   16 128 32
		* all-gather * 1M direct 64 512 64
		* all-gather * *  direct 132 512`)))(t)
	for _, c := range []struct {
		bytes uint64
		most  int
		want  Choice
	}{
		{1 << 10, 0, Choice{"LL8", 16, 256}},
		{1 << 10, 4, Choice{"LL8", 4, 256}},
		{1 << 20, 0, Choice{"direct", 132, 512}},
		{1 << 20, 65, Choice{"direct", 65, 512}},
		{1 << 20, 64, Choice{"direct", 64, 512}},
		{1 << 20, 32, Choice{"bulk", 16, 128}},
		{1 << 20, 1, Choice{"bulk", 1, 128}},
		{2 << 20, 1, Choice{"direct", 1, 512}},
	} {
		got, ok := tuning.choose("other", nil, AllGather, 2, c.bytes, c.most, func(Choice) bool { return true })
		if !ok || got != c.want {
			t.Errorf("%d bytes, at most %d blocks: %+v, %v; want %+v", c.bytes, c.most, got, ok, c.want)
		}
	}
}

// TestMisnamedAlgorithm makes calls by a tuning whose rules name an algorithm that there is not.
func TestMisnamedAlgorithm(t *testing.T) {
	testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		rule := Rule{Link: "*", Kind: AllReduce, UpTo: math.MaxUint64, Choice: Choice{"tree", 1, 32}}
		runner := testerr.Must(New(ctx, comm, Options{Tuning: &Tuning{Rules: []Rule{rule}}}))(t)
		for _, kind := range []Kind{AllReduce, AllGather} {
			want := map[Kind]string{AllReduce: `algorithm "tree" of all-reduce is none of`, AllGather: "no rule for all-gather"}[kind]
			_, err := runner.Choose(Call{Kind: kind, Count: 1})
			testerr.Expect(t, err, mscclgo.ErrUnsupported, want)
		}
		return runner.Close(ctx)
	})
}

// TestOnlyTheModel makes a call by a tuning that leaves it to the model, on a device whose links are unknown.
func TestOnlyTheModel(t *testing.T) {
	testgroup.Run(t, 1, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		tuning := testerr.Must(ReadTuning(strings.NewReader("* all-reduce * 4K model 1 32")))(t)
		runner := testerr.Must(New(ctx, comm, Options{Tuning: tuning}))(t)
		runner.links = nil // as of emulated devices
		for count, want := range map[uint64]string{256: "to the model of time, which does not know the links", 8192: "no rule for all-reduce"} {
			_, err := runner.Choose(Call{Kind: AllReduce, Count: count})
			testerr.Expect(t, err, mscclgo.ErrUnsupported, want)
		}
		return runner.Close(ctx)
	})
}

// TestRangeOfRanks finds a rule for each number of a range, and others beside it.
func TestRangeOfRanks(t *testing.T) {
	tuning := testerr.Must(ReadTuning(strings.NewReader(`
		* all-gather 2   * LL8    2 32
		* all-gather 5-8 * LL128  5 32
		* all-gather *   * direct 9 32`)))(t)
	for ranks, blocks := range []int{1: 9, 2, 9, 9, 5, 5, 5, 5, 9} {
		got, ok := tuning.Choose("other", AllGather, ranks, 1, func(Choice) bool { return true })
		if ranks > 0 && (!ok || got.Blocks != blocks) {
			t.Errorf("%d ranks: %+v, %v; want %d blocks", ranks, got, ok, blocks)
		}
	}
}
