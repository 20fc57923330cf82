package verdict

import (
	"fmt"
	"slices"
	"strings"
)

// Kernels may have another grid on each rank, as where ranks have roles. So grids that differ
// prove nothing by themselves. They explain a wait if blocks have channels of their own, the
// block that should signal is none of its rank's, and the grids did not differ before.

// gridsDiffer returns the verdict of a wait for a block that is none of its rank's in the launch
// in which the waiter waits, or was none in an earlier one, and reports whether that is so. The
// launch has ended on that rank, or that waits in a barrier, and has another launch behind it.
func (g *graph) gridsDiffer(w Wait, waiter int) (Verdict, bool) {
	mine := g.statusIn(waiter, w.Where)
	if w.Kind != Signal || w.Index != w.Block || mine == nil {
		return Verdict{}, false
	}
	var in, here, there Launch // the launch of the wait, and that whose grids differ, on both ranks
	for _, l := range launchesUnderWay(mine) {
		if l.Group == OtherGroup || l.Blocks > 0 && int(l.Blocks) <= w.Block {
			continue // the wait is not in that
		}
		own, theirs, ok := g.without(w, waiter, l)
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
	// The odd one is that from which all others differ, if these are most of the group. Where
	// there is none, it is the peer, which is known to have sent nothing.
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
	text += fmt.Sprintf(": rank %s has waited%s for %s, in launch %d, ", to, since(w), place(w, from, to), in.Nth)
	if here != in {
		text += fmt.Sprintf("and the signal of that came to launch %d%s, ", here.Nth, here.ifOther(in))
	}
	text += fmt.Sprintf("in which rank %s has no such block; blocks that wait for those of their number need the same grid on all ranks", from)
	return Verdict{Culprit: odd, Text: text}, true
}

// without returns the launch in which a wait's block is none of the rank's that is awaited, on the
// waiter and there: the one in which the waiter waits, or the latest earlier one, to which the
// signal for this one has come if the block has been in both grids since. The rank is past it there.
func (g *graph) without(w Wait, waiter int, in Launch) (here, there Launch, ok bool) {
	theirs := g.launch(w.Peer, w.Where, in)
	if in.Blocks == 0 || theirs.Blocks == 0 || !g.leftBehind(w.Peer, w.Where, theirs) {
		return here, there, false
	}
	if int(theirs.Blocks) <= w.Block {
		return in, theirs, true
	}
	for _, l := range g.statusIn(waiter, w.Where).Launches {
		if l.Group != in.Group || l.only() != in.only() || l.Number >= in.Number || l.Number < here.Number || !l.Ended || int(l.Blocks) <= w.Block {
			continue
		}
		if theirs := g.launch(w.Peer, w.Where, l); theirs.Ended && theirs.Blocks > 0 && int(theirs.Blocks) <= w.Block {
			here, there, ok = l, theirs, true
		}
	}
	return here, there, ok
}

// leftBehind reports whether a launch has ended on a rank, or another one of its stream is behind it,
// in which the rank may wait.
func (g *graph) leftBehind(rank int, where Where, l Launch) bool {
	return l.Ended || slices.ContainsFunc(g.statusIn(rank, where).Launches, func(later Launch) bool {
		return later.Stream == l.Stream && later.Number > l.Number
	})
}

// only returns the kernel that was launched, by itself or as the only one of a graph.
func (l Launch) only() string { return strings.TrimPrefix(l.Kernel, "a graph of ") }

// ifOther says what was launched if that is not what another launch is of.
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

// launched returns the ranks of which it is known that a launch has as many blocks there as given,
// and those of which it is known that it has another number. more is set if these differ too.
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
