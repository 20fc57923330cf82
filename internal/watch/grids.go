package watch

import (
	"fmt"
	"slices"
	"strings"
)

// Kernels may have another grid on each rank, as where ranks have roles. So grids that differ
// prove nothing by themselves. They explain a wait if the block waits for the one of its number,
// which its rank does not have, and the grids did not differ before. A block waits for the one of
// its number in a group's barriers and packets, and where blocks have channels of their own.

// gridsDiffer reports whether the grids of a launch explain a wait, and returns the verdict. The launch is
// the one in which the waiter waits, or an earlier one. far is how far the awaited rank must be in it.
func (g *graph) gridsDiffer(w Wait, waiter int, far progress) (Verdict, bool) {
	return g.gridsExplain(w, waiter, place(w, g.name(w.Peer), g.name(waiter)), far)
}

// gridsExplain is gridsDiffer of a wait for what a text says.
func (g *graph) gridsExplain(w Wait, waiter int, what string, far progress) (Verdict, bool) {
	mine := g.statusIn(waiter, w.Where)
	if w.Kind == Signal && w.Index != w.Block || w.Kind != Signal && !w.inGroup() || mine == nil {
		return Verdict{}, false
	}
	var in, here, there Launch // the wait's launch; the launch whose grids differ, on the waiter and its peer
	for _, l := range launchesUnderWay(mine) {
		if l.Group == OtherGroup || l.Blocks > 0 && int(l.Blocks) <= w.Block {
			continue // the wait is not in that
		}
		own, theirs, ok := g.without(w, waiter, l, far)
		if !ok || l.Group == UnknownGroup || g.differed(w, waiter, own) {
			return Verdict{}, false
		}
		if in.Blocks == 0 {
			in, here, there = l, own, theirs
		}
	}
	if in.Blocks == 0 {
		return Verdict{}, false
	}
	// The odd rank is the one from which all others differ, if these are most of the group. Otherwise
	// it is the peer, which is known to have sent nothing.
	odd, oddLaunch, rest, restLaunch := w.Peer, there, []int{waiter}, here
	like, unlike, more := g.launched(w.Where, here)
	most := func(ranks []int) bool { return len(ranks) > 1 && 2*len(ranks) > g.size(w.Where) }
	if !more && len(like) == 1 && most(unlike) {
		odd, oddLaunch, rest, restLaunch = waiter, here, unlike, there
	} else if !more && len(unlike) == 1 && most(like) {
		rest = like
	} else if here != in {
		return Verdict{}, false
	}
	from, to := g.name(w.Peer), g.name(waiter)
	text := fmt.Sprintf("rank %s launched %s with %s of %s, and %s with %d", g.name(odd), oddLaunch.what(), count(oddLaunch.Blocks, "block"), count(oddLaunch.Threads, "thread"), g.names(rest), restLaunch.Blocks)
	if restLaunch.Threads != oddLaunch.Threads {
		text += fmt.Sprintf(" of %d", restLaunch.Threads)
	}
	text += fmt.Sprintf(": rank %s has waited%s for %s, in launch %d", to, since(w), what, in.Nth)
	lost, need := "signal", "kernels with a channel for each block need"
	if w.inGroup() {
		lost, need = "barrier", "a group's barriers and packets need"
	}
	if here != in {
		text += fmt.Sprintf("; the %s for that was taken in launch %d%s", lost, here.Nth, here.ifOther(in))
	}
	text += fmt.Sprintf(", in which rank %s has no such block; %s the same grid on all ranks", from, need)
	return Verdict{Culprit: odd, Text: text}, true
}

// inGroup reports whether a wait is for a barrier or packets of a group.
func (w Wait) inGroup() bool { return w.Kind == Barrier || w.Kind == Host }

// groupsGrids returns the verdict of a wait in a group that gridsDiffer explains.
func (g *graph) groupsGrids(far progress) (Verdict, bool) {
	for _, by := range g.reached {
		for _, w := range g.edges[by] {
			if !w.inGroup() {
				continue
			}
			if v, ok := g.gridsDiffer(w, by, far); ok {
				g.overOuter = g.byOuter(w, by)
				return v, true
			}
		}
		own := g.own[by]
		for peer := 0; own != nil && own.inGroup() && peer < len(g.ranks); peer++ {
			w := *own
			w.Peer = peer // perhaps
			if v, ok := g.gridsExplain(w, by, g.ownText(by), far); ok && peer != by {
				return v, true
			}
		}
	}
	return Verdict{}, false
}

// without returns the launch in which the awaited rank has no block of the waiter's number, on both ranks: the
// one in which the waiter waits, or the latest earlier one. A wait of that earlier launch took the signal
// that was meant for this wait.
func (g *graph) without(w Wait, waiter int, in Launch, far progress) (here, there Launch, ok bool) {
	theirs := g.launch(w.Peer, w.Where, in)
	if in.Blocks == 0 || theirs.Blocks == 0 || g.progress(w.Peer, w.Where, theirs) < far {
		return here, there, false
	}
	if int(theirs.Blocks) <= w.Block {
		return in, theirs, true
	}
	for _, l := range g.statusIn(waiter, w.Where).Launches {
		ended := l.Ended || l.Stream == in.Stream // or the waiter would not be in the later one
		if l.Group != in.Group || l.only() != in.only() || l.Number >= in.Number || l.Number < here.Number || !ended || int(l.Blocks) <= w.Block {
			continue
		}
		if theirs := g.launch(w.Peer, w.Where, l); theirs.Ended && theirs.Blocks > 0 && int(theirs.Blocks) <= w.Block {
			here, there, ok = l, theirs, true
		}
	}
	return here, there, ok
}

// progress is how far a rank is known to be in a launch.
type progress uint8

const (
	queued   progress = iota // it has made the launch
	followed                 // it has made another one in that stream, in which it may be
	ended
)

func (g *graph) progress(rank int, where Where, l Launch) progress {
	later := func(other Launch) bool { return other.Stream == l.Stream && other.Number > l.Number }
	switch {
	case l.Ended:
		return ended
	case slices.ContainsFunc(g.statusIn(rank, where).Launches, later):
		return followed
	}
	return queued
}

// only returns the kernel that was launched, by itself or as the only one of a graph.
func (l Launch) only() string { return strings.TrimPrefix(l.Kernel, "a graph of ") }

// ifOther names the kernel if another launch has a different one: " of kernel shift", or "".
func (l Launch) ifOther(than Launch) string {
	if l.Kernel == than.Kernel {
		return ""
	}
	return " of " + l.what()
}

// launch returns a rank's launch that is the same as another one's, or one without blocks if its
// grid is not known.
func (g *graph) launch(rank int, where Where, as Launch) (found Launch) {
	s := g.statusIn(rank, where)
	if s == nil || len(as.Kernel) >= MaxKernel { // others' names may begin alike
		return Launch{}
	}
	for _, l := range s.Launches {
		if l.Group == as.Group && l.Kernel == as.Kernel && l.Nth == as.Nth {
			return l
		}
	}
	return Launch{}
}

// differed reports whether an earlier launch of a kernel had another number of blocks on the rank that waits
// than on the one it waits for, and has ended on both: so the program may mean it.
func (g *graph) differed(w Wait, waiter int, l Launch) bool {
	return slices.ContainsFunc(g.statusIn(waiter, w.Where).Launches, func(before Launch) bool {
		if before.Group != l.Group || before.only() != l.only() || before.Number >= l.Number || !before.Ended {
			return false
		}
		theirs := g.launch(w.Peer, w.Where, before)
		return theirs.Ended && theirs.Blocks != before.Blocks
	})
}

// launched returns the ranks that are known to have made a launch with the same number of blocks, and the
// ranks that are known to have made it with another number. more is set if these numbers differ too.
func (g *graph) launched(where Where, l Launch) (like, unlike []int, more bool) {
	other := uint32(0)
	for i := range g.ranks {
		switch n := g.launch(i, where, l).Blocks; {
		case n == 0:
		case n == l.Blocks:
			like = append(like, i)
		default:
			more = more || other != 0 && n != other
			unlike, other = append(unlike, i), n
		}
	}
	return like, unlike, more
}

// mostNames is how many ranks a text names of many.
const mostNames = 4

// names names some ranks.
func (g *graph) names(ranks []int) string {
	var names []string
	for _, i := range ranks[:min(len(ranks), mostNames)] {
		names = append(names, g.name(i))
	}
	last := len(names) - 1
	switch {
	case len(ranks) > mostNames:
		return fmt.Sprintf("ranks %s and %d more", strings.Join(names, ", "), len(ranks)-mostNames)
	case last == 0:
		return "rank " + names[0]
	}
	return "ranks " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// count says how many there are of something.
func count(n uint32, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
