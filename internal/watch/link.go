package watch

import (
	"fmt"
	"time"
)

// longLink is how long a host has acknowledged nothing until that is a fact of the network: the other's
// kernel has sent the same at least twice more.
const longLink = time.Second

// longQuiet is for how long nothing has been heard of a rank of another host until a text that names it says so.
const longQuiet = 2500 * time.Millisecond

// link returns the verdict of the rank whose host acknowledges nothing for longest, and whether there is one.
func link(ranks []Rank) (Verdict, bool) {
	by, longest := -1, Wait{}
	for i, r := range ranks {
		if r.Status == nil {
			continue
		}
		for _, w := range r.Waits {
			if w.Kind == Link && !w.Outside && w.Peer >= 0 && w.Peer < len(ranks) && w.For >= max(longLink, longest.For) {
				by, longest = i, w
			}
		}
	}
	if by < 0 {
		return Verdict{}, false
	}
	why := "the link or the host is down, or large messages do not pass"
	if ranks[longest.Peer].Quiet < longest.For/2 {
		why = "large messages do not pass, though small ones do"
	}
	return Verdict{Culprit: longest.Peer, Text: fmt.Sprintf(
		"the network loses what rank %d sends to rank %d, whose host has acknowledged nothing for %v: %s, as where the MTUs of interfaces and switches between the hosts differ",
		by, longest.Peer, round(longest.For), why)}, true
}

// quiet returns the verdict on a rank of another host to which waits lead, if nothing has been heard of it for half
// the time after which it counts as silent: what is known of it is old. It reports whether there is such a rank.
func (g *graph) quiet() (Verdict, bool) {
	worst := -1
	for _, i := range g.reached {
		if r := g.ranks[i]; i < g.members && !r.Left && g.limits.Silence > 0 && r.Quiet >= g.limits.Silence/2 && (worst < 0 || r.Quiet > g.ranks[worst].Quiet) {
			worst = i
		}
	}
	if worst < 0 {
		return Verdict{}, false
	}
	return Verdict{Culprit: worst, Text: g.unheard(worst, ", for which others wait")}, true
}

// unheard says since when nothing has been heard of a rank, and why that may be.
func (g *graph) unheard(rank int, what string) string {
	return fmt.Sprintf("nothing has been heard of rank %s for %v%s: its host hangs, the network to it is down, or large messages do not pass, as where the MTUs of interfaces and switches between the hosts differ",
		g.name(rank), round(g.ranks[rank].Quiet), what)
}
