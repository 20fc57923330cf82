package watch

import (
	"fmt"
	"slices"
	"strings"
)

// launchesUnderWay returns the launches of a rank that are not known to have ended.
func launchesUnderWay(s *Status) (under []Launch) {
	for _, l := range s.Launches {
		if !l.Ended {
			under = append(under, l)
		}
	}
	return under
}

// queued returns the launches of a stream of a rank on which a kernel waits behind another
// one, the first and the last, or nil.
func (g *graph) queued(rank int) []Launch {
	r := g.ranks[rank]
	if r.Status == nil {
		return nil
	}
	under := launchesUnderWay(r.Status)
	for i, first := range under {
		for _, last := range under[i+1:] {
			if last.Stream == first.Stream && last.Number > first.Number {
				return []Launch{first, last}
			}
		}
	}
	return nil
}

// front says what a stream waits for.
func front(queued []Launch) string {
	return "the first of its stream that is not known to have ended is " + queued[0].String()
}

// unended says what of a rank's is not known to have ended: the first of each stream.
func unended(under []Launch) string {
	var names []string
	seen := map[int]bool{}
	for _, l := range under {
		if !seen[l.Stream] {
			names = append(names, l.String())
		}
		seen[l.Stream] = true
	}
	return "not known to have ended there: " + strings.Join(names, ", and on another stream ")
}

// String names a launch.
func (l Launch) String() string {
	if l.Blocks == 0 {
		return fmt.Sprintf("launch %d of %s", l.Nth, l.Kernel)
	}
	return fmt.Sprintf("launch %d of %s (%dx%d)", l.Nth, l.what(), l.Blocks, l.Threads)
}

// what says what was launched. The names of kernels have no space.
func (l Launch) what() string {
	if strings.HasPrefix(l.Kernel, "a graph") {
		return l.Kernel
	}
	return "kernel " + l.Kernel
}

// passed finds a rank that has ended the launch in which another waits for its signal. So the signal
// never came, and other waits are consequences, also waits in other groups. Without such a signal it
// looks at waits in groups, for a launch whose grids explain one of them.
func (g *graph) passed() (Verdict, bool) {
	by, missing, in := -1, Wait{}, Launch{}
	for _, i := range g.reached {
		for _, w := range g.edges[i] {
			if w.Kind != Signal || by >= 0 && w.For <= missing.For {
				continue
			}
			if l, ok := g.isPast(w, i); ok {
				by, missing, in = i, w, l
			}
		}
	}
	if by < 0 {
		return g.groupsGrids(ended)
	}
	if v, ok := g.gridsDiffer(missing, by, followed); ok {
		return v, true
	}
	rank := missing.Peer
	from, to := g.name(rank), g.name(by)
	text := fmt.Sprintf("rank %s never signalled rank %s: rank %s has waited%s for %s, in %s, which has ended on rank %s",
		from, to, to, since(missing), place(missing, from, to), in, from)
	if len(g.edges[rank]) > 0 {
		next := g.edges[rank][0]
		text += fmt.Sprintf("; rank %s itself has waited%s for %s", from, since(next), place(next, g.name(next.Peer), from))
	}
	return Verdict{Culprit: rank, Text: text}, true
}

// isPast reports whether a wait's peer has ended whatever launch the waiter may wait in, and
// returns that. Ranks that launch other kernels, or one more often, prove nothing, nor do
// launches of other groups, or which may be of one.
func (g *graph) isPast(w Wait, waiter int) (Launch, bool) {
	a, b := g.statusIn(w.Peer, w.Where), g.statusIn(waiter, w.Where)
	if a == nil || b == nil {
		return Launch{}, false
	}
	under := launchesUnderWay(b)
	in, found := Launch{}, false
	for i, l := range under {
		if i > 0 && l.Stream == under[i-1].Stream && l.Number > under[i-1].Number+1 {
			return Launch{}, false // there are more between them
		}
		if l.Group == OtherGroup {
			continue
		}
		past := func(other Launch) bool {
			return other.Ended && other.Group == l.Group && other.Kernel == l.Kernel && other.Nth >= l.Nth
		}
		if l.Group == UnknownGroup || !slices.ContainsFunc(a.Launches, past) {
			return Launch{}, false
		}
		if !found {
			in, found = l, true
		}
	}
	return in, found
}
