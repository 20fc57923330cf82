package watch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// OuterGroup is what is known of the group from which a group came by being split. Its ranks may
// wait there, or in other parts of it, for ranks that are not of the group.
type OuterGroup struct {
	Ranks   []Rank // nil if nothing is known
	Numbers []int  // there, of the ranks of the group
	Size    int    // of its ranks

	Failure *OuterFailure // if it failed while ranks of the group waited
}

// OuterFailure is why the outer group failed.
type OuterFailure struct {
	Culprit int // a rank, by its number there
	Text    string
}

// text says in which group a wait is, if it is another one.
func (w Where) text() string {
	switch w {
	case Outer:
		return ", in the outer group"
	case Part:
		return ", in a part of the group"
	case Elsewhere:
		return ", in another group"
	}
	return ""
}

// ofOuter is what names a rank by its number in the outer group.
const ofOuter = " of the outer group"

// peer names the rank that is waited for.
func (w Wait) peer() string {
	if w.Outside {
		return fmt.Sprint(w.Peer) + ofOuter
	}
	return fmt.Sprint(w.Peer)
}

// name names a rank of the graph.
func (g *graph) name(rank int) string {
	if rank < g.members {
		return fmt.Sprint(rank)
	}
	return fmt.Sprint(g.outside[rank-g.members]) + ofOuter
}

// extend adds the ranks of the outer group that are not of the group.
func (g *graph) extend(outer OuterGroup) {
	g.outer, g.places = make([]*Status, g.members), map[int]int{}
	for i, number := range outer.Numbers[:min(len(outer.Numbers), g.members)] {
		g.places[number] = i
		if number >= 0 && number < len(outer.Ranks) {
			g.outer[i] = outer.Ranks[number].Status
		}
	}
	for number, r := range outer.Ranks {
		if i := g.place(number); i >= g.members {
			g.ranks[i], g.outer[i] = r, r.Status
		}
	}
}

// place returns the place in the graph of a rank of the outer group, of which nothing more may be known.
func (g *graph) place(number int) int {
	if _, ok := g.places[number]; !ok {
		g.places[number] = len(g.ranks)
		g.ranks, g.outer, g.outside = append(g.ranks, Rank{}), append(g.outer, nil), append(g.outside, number)
	}
	return g.places[number]
}

// waits returns what a rank of the graph waits for, by the places there.
func (g *graph) waits(i int, outer OuterGroup) []Wait {
	if g.ranks[i].Status == nil {
		return nil
	}
	var exchange []Wait
	if i < g.members {
		exchange = ExchangeWaits(g.ranks[:g.members], i)
	} else {
		exchange = ExchangeWaits(outer.Ranks, g.outside[i-g.members])
	}
	waits := slices.Concat(g.ranks[i].Waits, exchange)
	for j := range waits {
		w := &waits[j]
		inside := !w.Outside
		if i >= g.members { // its own group is the outer one
			inside = w.Peer < 0 || w.Peer >= len(outer.Ranks)
			w.Where = map[bool]Where{true: Outer, false: Elsewhere}[w.Where == Here]
		}
		switch {
		case inside && i >= g.members, !inside && (w.Peer < 0 || w.Peer >= outer.Size):
			w.Peer = mscclgo.NoRank
		case !inside:
			w.Peer = g.place(w.Peer)
		}
	}
	return waits
}

// statusIn returns what a rank has reported in the group of a wait, or nil.
func (g *graph) statusIn(rank int, where Where) *Status {
	switch {
	case where == Here && rank < g.members:
		return g.ranks[rank].Status
	case where == Outer:
		return g.outer[rank]
	}
	return nil
}

// size returns how many ranks are known of the group of a wait.
func (g *graph) size(where Where) int {
	if where == Here {
		return g.members
	}
	return len(g.ranks)
}

// deadOutside finds a rank of the outer group that is stopped or silent, and to which waits lead.
func (g *graph) deadOutside() (Verdict, bool) {
	for _, i := range g.reached {
		if i >= g.members && g.ranks[i].dead(g.limits) {
			return Verdict{Culprit: i, Text: g.ranks[i].deadText(g.name(i))}, true
		}
	}
	return Verdict{}, false
}

// inGroup returns a verdict with the numbers of the group.
func (g *graph) inGroup(v Verdict) Verdict {
	if v.Culprit < g.members {
		return v
	}
	v.Outside, v.Outer = true, g.outside[v.Culprit-g.members]
	v.Text = Outsider(v.Text, v.Outer)
	for v.Culprit >= g.members {
		v.Culprit = g.via[v.Culprit]
	}
	if v.Culprit < 0 {
		v.Culprit = mscclgo.NoRank
	}
	return v
}

// mostText is how much Outsider leaves of a text: errors are cut at 4096 bytes when other ranks are
// told of them, with what calls have written before the text.
const mostText = 3 << 10

// Outsider returns a text, perhaps cut, with the name of a culprit outside the group: its number in
// the outer group.
func Outsider(text string, number int) string {
	if len(text) > mostText {
		text = strings.ToValidUTF8(text[:mostText], "") + "..."
	}
	return fmt.Sprintf("%s; rank %d%s is not of this one", text, number, ofOuter)
}

// outerFailed returns the verdict of a group in which waits lead to one that the outer group's
// failure has ended.
func (g *graph) outerFailed(numbers []int) Verdict {
	v := Verdict{Culprit: slices.Index(numbers, g.failure.Culprit), Text: "the outer group has failed; ranks have its numbers: " + g.failure.Text}
	if v.Culprit < 0 {
		v.Culprit, v.Outside, v.Outer = mscclgo.NoRank, true, g.failure.Culprit
		v.Text = Outsider(v.Text, v.Outer)
	}
	return v
}

// byOuter reports whether a rank's wait is one in the outer group, or one led there.
func (g *graph) byOuter(w Wait, by int) bool {
	for range g.ranks {
		if w.Where == Outer {
			return true
		}
		if g.via[by] < 0 {
			return false
		}
		by, w = g.via[by], g.led[by]
	}
	return false
}
