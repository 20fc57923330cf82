package watch

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

//go:embed testdata/facts.txt
var factCases string

var kindsByName = map[string]mscclgo.Kind{"invalid": mscclgo.ErrInvalid, "timeout": mscclgo.ErrTimeout, "aborted": mscclgo.ErrAborted, "remote": mscclgo.ErrRemote, "system": mscclgo.ErrSystem}

// readRanks reads ranks, by commas.
func readRanks(t *testing.T, text string) (ranks []int) {
	for name := range strings.SplitSeq(text, ",") {
		switch n, err := strconv.Atoi(name); {
		case name == "-":
		case name == "R":
			ranks = append(ranks, Rendezvous)
		case err != nil:
			t.Fatal(err)
		default:
			ranks = append(ranks, n)
		}
	}
	return ranks
}

func readFact(t *testing.T, line string) Fact {
	about, text, _ := strings.Cut(line, ": ")
	f := strings.Fields(about)
	return Fact{Rank: readRanks(t, f[0])[0], Kind: kindsByName[f[1]], Peers: readRanks(t, f[2]), Text: text}
}

// says returns what an error says behind its operation and ranks, and whom it names.
func says(e *mscclgo.Error) string {
	peer := fmt.Sprint(e.Peer)
	if e.Peer == mscclgo.NoRank {
		peer = "-"
	}
	_, text, _ := strings.Cut(e.Error(), "): ")
	return peer + " " + text
}

// ask answers a question of a case.
func ask(t *testing.T, facts []*Fact, last Fact, question string) string {
	f := strings.Fields(question)
	rank := readRanks(t, f[1])[0]
	switch f[0] {
	case "left":
		return says(last.Left("call", rank, "call 7"))
	case "failed":
		return says(last.Failed("group", rank))
	case "origin":
		return fmt.Sprint(Origin(rank, facts))
	}
	got := Lost(rank, readRanks(t, f[2])[0], "its process has ended").After(last, readRanks(t, f[3]), 7)
	for name, kind := range kindsByName {
		if kind == got.Kind {
			return fmt.Sprintf("%d %s %s: %s", got.Rank, name, strings.Trim(fmt.Sprint(got.Peers), "[]"), got.Text)
		}
	}
	return ""
}

func TestFacts(t *testing.T) {
	for _, text := range strings.Split(factCases, "\ncase ")[1:] {
		name, text, _ := strings.Cut(text, "\n")
		t.Run(name, func(t *testing.T) {
			facts := make([]*Fact, 4)
			var last Fact
			for line := range strings.Lines(text) {
				if line = strings.TrimSpace(line); line == "" {
					continue
				}
				question, want, ok := strings.Cut(line, " = ")
				if !ok {
					if last = readFact(t, line); last.Rank < len(facts) {
						facts[last.Rank] = &Fact{}
						*facts[last.Rank] = last
					}
				} else if got := ask(t, facts, last, question); got != want {
					t.Errorf("%s:\n%s\nnot\n%s", question, got, want)
				}
			}
		})
	}
}

// TestFactOf has errors that name peers, of which only some tell because of whom the rank failed.
func TestFactOf(t *testing.T) {
	fail := func(kind mscclgo.Kind, peer int) error { return mscclgo.Errorf(kind, "connect", "no").At(1, peer) }
	for name, c := range map[string]struct {
		err  error
		want []int
	}{
		"its own fault":           {fail(mscclgo.ErrSystem, mscclgo.NoRank), nil},
		"a peer's fault":          {fail(mscclgo.ErrRemote, 2), []int{2}},
		"wrong use is its own":    {fail(mscclgo.ErrInvalid, 2), nil},
		"a rank of another group": {fail(mscclgo.ErrRemote, 9), nil},
		"news of another":         {Lost(0, 3, "it is gone").Failed("group", 1), []int{3}},
		"news of itself":          {Lost(0, 1, "it is gone").Failed("group", 1), nil},
	} {
		if f := FactOf(c.err, 1, 4); !slices.Equal(f.Peers, c.want) || f.Rank != 1 || f.Kind != mscclgo.KindOf(c.err) {
			t.Errorf("%s: %+v, want the peers %d", name, f, c.want)
		}
	}
}

func TestFactIsBounded(t *testing.T) {
	f := Fact{Rank: 1, Kind: mscclgo.ErrSystem, Peers: slices.Repeat([]int{3}, 100), Text: strings.Repeat("x", 1<<16)}
	got, err := DecodeFact(f.Encode(), 4)
	if err != nil || len(got.Peers) != 64 || len(got.Text) != maxReason {
		t.Errorf("it has %d peers and %d bytes: %v", len(got.Peers), len(got.Text), err)
	}
}

func FuzzFact(f *testing.F) {
	f.Add(Fact{Rank: 3, Kind: mscclgo.ErrTimeout, Peers: []int{1, 2}, Text: "time is up"}.Encode())
	f.Add(Lost(Rendezvous, 2, "gone").Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if fact, err := DecodeFact(b, 4); err == nil {
			if fact.Rank >= 4 && fact.Rank != Rendezvous || slices.ContainsFunc(fact.Peers, func(p int) bool { return p >= 4 }) {
				t.Errorf("it tells of other ranks: %+v", fact)
			}
			testcmp.Equal(t, "the fact encoded again", fact.Encode(), b)
		}
	})
}
