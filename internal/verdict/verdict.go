package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
)

// Rank is what is known of a rank.
type Rank struct {
	*Status               // nil if it has not reported, or cannot be heard
	Silent  time.Duration // since its last sign of life, 0 if it is unknown
	Stopped bool          // the operating system says that its process is stopped
	Runs    bool          // the operating system says that its process is there, and not stopped
	Left    bool          // it closed its communicator
}

// Limits are what a verdict holds to be long.
type Limits struct {
	Silence time.Duration // of a rank; 0 means that none is too long
	Stuck   time.Duration // a wait, or a handler with one trigger
}

// Verdict is why a group does not progress.
type Verdict struct {
	Culprit int    // the rank to look at first, or mscclgo.NoRank for several
	Text    string // what is wrong and what to do
}

// Judge returns the earliest cause that explains the waits that have ended by their
// deadline. There must be at least one such wait. Of several causes it prefers those
// that are proved: a rank that is stopped or silent, calls that differ, a handler that
// does not return, and then where the waits lead.
func Judge(ranks []Rank, l Limits) Verdict {
	if v, ok := Dead(ranks, l); ok {
		return v
	}
	if v, ok := callsDiffer(ranks); ok {
		return v
	}
	g := newGraph(ranks, l)
	if v, ok := g.handler(); ok {
		return v
	}
	// A proof comes before what is likely.
	if v, ok := g.passed(); ok {
		return v
	}
	if v, ok := g.end(); ok {
		return v
	}
	return g.cycle()
}

// Dead returns the verdict of a rank that is stopped, or silent for longer than the
// limit allows, and whether there is one.
func Dead(ranks []Rank, l Limits) (Verdict, bool) {
	worst := -1
	for i, r := range ranks {
		dead := r.Stopped || l.Silence > 0 && r.Silent >= l.Silence
		if r.Left || !dead {
			continue
		}
		if worst < 0 || r.Stopped && !ranks[worst].Stopped || r.Stopped == ranks[worst].Stopped && r.Silent > ranks[worst].Silent {
			worst = i
		}
	}
	if worst < 0 {
		return Verdict{}, false
	}
	r := ranks[worst]
	process := ""
	if r.Status != nil && r.Process != 0 {
		process = fmt.Sprintf(" (process %d)", r.Process)
	}
	if r.Stopped {
		return Verdict{worst, fmt.Sprintf("rank %d is stopped%s: a signal, a shell or a debugger stopped it", worst, process)}, true
	}
	if r.Runs {
		return Verdict{worst, fmt.Sprintf("rank %d%s has given no sign of life for %v, though it is not stopped: it gets no CPU, since the machine is too busy, or hangs; a longer heartbeat time-out (MSCCLGO_HEARTBEAT_TIMEOUT) waits for it", worst, process, round(r.Silent))}, true
	}
	return Verdict{worst, fmt.Sprintf("rank %d%s has given no sign of life for %v: it is stopped, its host hangs, or the network to it is down", worst, process, round(r.Silent))}, true
}

// Endless returns the verdict of a rank's wait that cannot end, for one that has left.
func Endless(rank int, w Wait) Verdict {
	return Verdict{w.Peer, fmt.Sprintf("rank %d has left the group, and rank %d has waited%s for %s, which cannot come any more", w.Peer, rank, since(w), place(w, w.Peer, rank))}
}

// callsDiffer finds two ranks whose calls of one number differ.
func callsDiffer(ranks []Rank) (Verdict, bool) {
	for i, r := range ranks {
		if r.Status == nil || r.Call == 0 {
			continue
		}
		for j, other := range ranks[:i] {
			if other.Status == nil || other.Call != r.Call || other.CallText == r.CallText {
				continue
			}
			// The one that fewer agree with is the odd one.
			a, b := agree(ranks, r.Status), agree(ranks, other.Status)
			odd, rest := i, j
			if a > b {
				odd, rest = j, i
			}
			v := Verdict{odd, fmt.Sprintf("rank %d makes %s; rank %d makes %s: all ranks must make the same calls in the same order", odd, call(ranks[odd].Status), rest, call(ranks[rest].Status))}
			return v, true
		}
	}
	return Verdict{}, false
}

// agree counts the ranks whose last call is that of s.
func agree(ranks []Rank, s *Status) (n int) {
	for _, r := range ranks {
		if r.Status != nil && r.Call == s.Call && r.CallText == s.CallText {
			n++
		}
	}
	return n
}

// call names a rank's last call.
func call(s *Status) string {
	if s.CallText == "" {
		return fmt.Sprintf("call %d", s.Call)
	}
	return fmt.Sprintf("call %d, %s", s.Call, s.CallText)
}

// graph has a rank's waits for other ranks as edges. Those that last, or that have
// ended by their deadline, count.
type graph struct {
	ranks   []Rank
	limits  Limits
	edges   [][]Wait // of each rank, the longest first
	own     []*Wait  // of each rank, a wait for its own host
	reached []int    // the ranks to which the waits that have ended lead, nearest first
}

func newGraph(ranks []Rank, l Limits) *graph {
	g := &graph{ranks: ranks, limits: l, edges: make([][]Wait, len(ranks)), own: make([]*Wait, len(ranks))}
	for i, r := range ranks {
		if r.Status == nil {
			continue
		}
		ended := false
		for _, w := range slices.Concat(r.Waits, exchangeWaits(ranks, i)) {
			if !w.Ended && w.For < l.Stuck {
				continue
			}
			if w.Kind == Ring || w.Peer == i {
				g.own[i] = &w
				ended = ended || w.Ended
			} else if w.Peer >= 0 && w.Peer < len(ranks) {
				g.edges[i] = append(g.edges[i], w)
				ended = ended || w.Ended
			}
		}
		slices.SortStableFunc(g.edges[i], func(a, b Wait) int { return cmp.Compare(b.For, a.For) })
		if ended {
			g.reached = append(g.reached, i)
		}
	}
	for i := 0; i < len(g.reached); i++ {
		for _, w := range g.edges[g.reached[i]] {
			if !slices.Contains(g.reached, w.Peer) {
				g.reached = append(g.reached, w.Peer)
			}
		}
	}
	return g
}

// exchangeWaits returns a rank's waits, in its exchange, for those that have not begun it.
func exchangeWaits(ranks []Rank, rank int) []Wait {
	s := ranks[rank].Status
	if s.Exchanging <= 0 {
		return nil
	}
	var waits []Wait
	for i, r := range ranks {
		if i != rank && r.Status != nil && r.Exchange < s.Exchange {
			waits = append(waits, Wait{Kind: Exchange, Peer: i, For: s.Exchanging, Ended: s.ExchangeEnded})
		}
	}
	return waits
}

// handler finds a proxy that does not return from one trigger.
func (g *graph) handler() (Verdict, bool) {
	worst := -1
	for _, i := range g.reached {
		r := g.ranks[i]
		if r.Status != nil && r.Serving > 0 && r.Serving >= g.limits.Stuck && (worst < 0 || r.Serving > g.ranks[worst].Serving) {
			worst = i
		}
	}
	if worst < 0 {
		return Verdict{}, false
	}
	s := g.ranks[worst].Status
	who := "handler"
	if s.Trigger < firstUserKind {
		who = "transport"
	}
	return Verdict{worst, fmt.Sprintf("rank %d's %s has served one trigger of kind %d for %v: nothing behind it in the ring is served", worst, who, s.Trigger, round(s.Serving))}, true
}

// firstUserKind is fifo.FirstUserKind.
const firstUserKind = 128

// end finds a rank that others wait for and that waits for no other.
func (g *graph) end() (Verdict, bool) {
	type candidate struct {
		rank, by int
		wait     Wait
		behind   bool
	}
	var best *candidate
	better := func(a, b *candidate) bool {
		switch {
		case b == nil:
			return true
		case a.behind != b.behind:
			return a.behind
		case (a.wait.Kind == Signal) != (b.wait.Kind == Signal):
			return a.wait.Kind == Signal
		}
		return a.wait.For > b.wait.For
	}
	for _, by := range g.reached {
		for _, w := range g.edges[by] {
			if len(g.edges[w.Peer]) > 0 {
				continue
			}
			c := &candidate{w.Peer, by, w, g.behind(w.Peer, by)}
			if better(c, best) {
				best = c
			}
		}
	}
	if best == nil {
		return Verdict{}, false
	}
	v := Verdict{Culprit: best.rank}
	waits := fmt.Sprintf("rank %d has waited%s for %s", best.by, since(best.wait), place(best.wait, best.rank, best.by))
	switch {
	case best.behind:
		late, by := g.ranks[best.rank].Status, g.ranks[best.by].Status
		last := "it has made none"
		if late.Call > 0 {
			last = "its last is " + call(late)
		}
		next := fmt.Sprintf("call %d", late.Call+1)
		if late.Call+1 == by.Call {
			next = call(by)
		} else {
			waits += ", and has made " + call(by)
		}
		if under := launchesUnderWay(late); len(under) > 0 {
			last += "; " + unended(under)
		}
		v.Text = fmt.Sprintf("rank %d has not made %s: %s; %s", best.rank, next, last, waits)
	case best.wait.Kind == Room:
		v.Text = fmt.Sprintf("rank %d takes nothing that rank %d sends: %s; %s", best.rank, best.by, waits, g.doing(best.rank))
	case best.wait.Kind != Signal && g.queued(best.rank) != nil && g.ranks[best.rank].Call > 0:
		s := g.ranks[best.rank].Status
		v.Text = fmt.Sprintf("rank %d has queued %s, and its stream has not come to it: %s; %s", best.rank, call(s), front(g.queued(best.rank)), waits)
	case best.wait.Kind == Signal:
		v.Text = fmt.Sprintf("rank %d never signalled rank %d: %s; %s", best.rank, best.by, waits, g.doing(best.rank))
	default:
		v.Text = fmt.Sprintf("rank %d did not come: %s; %s", best.rank, waits, g.doing(best.rank))
	}
	return v, true
}

// behind reports whether a rank has made fewer calls than one that waits for it.
func (g *graph) behind(rank, by int) bool {
	a, b := g.ranks[rank].Status, g.ranks[by].Status
	return a != nil && b != nil && a.Call < b.Call
}

// doing says what a rank does that waits for no other.
func (g *graph) doing(rank int) string {
	r := g.ranks[rank]
	switch {
	case r.Left:
		return fmt.Sprintf("rank %d has left the group", rank)
	case r.Status == nil:
		return fmt.Sprintf("nothing is known of rank %d", rank)
	case g.own[rank] != nil:
		return "its kernel has waited" + since(*g.own[rank]) + ownHost
	}
	text := "no kernel there waits for another rank: it did not run, has ended, or does something else"
	if under := launchesUnderWay(r.Status); len(under) > 0 {
		text = "no kernel there waits for another rank; " + unended(under)
	}
	if r.Call > 0 {
		text += "; its last call is " + call(r.Status)
	}
	return text
}

// cycle returns the verdict of ranks that wait for each other.
func (g *graph) cycle() Verdict {
	if len(g.reached) == 0 {
		return Verdict{mscclgo.NoRank, "a wait passed its deadline, and nothing more is known"}
	}
	if w := g.own[g.reached[0]]; w != nil && len(g.edges[g.reached[0]]) == 0 {
		rank := g.reached[0]
		return Verdict{rank, fmt.Sprintf("rank %d's kernel has waited%s%s", rank, since(*w), ownHost)}
	}
	// A channel's signal that never came explains the barriers: the rank that should have
	// sent it went on to a barrier, and the one that awaits it never gets there.
	by, missing := -1, Wait{}
	for _, i := range g.reached {
		for _, w := range g.edges[i] {
			if w.Kind == Signal && g.onlyBarriers(w.Peer) && (by < 0 || w.For > missing.For) {
				by, missing = i, w
			}
		}
	}
	if by >= 0 {
		rank := missing.Peer
		next := g.edges[rank][0]
		return Verdict{rank, fmt.Sprintf("rank %d never signalled rank %d: rank %d has waited%s for %s; rank %d itself has waited%s for %s",
			rank, by, by, since(missing), place(missing, rank, by), rank, since(next), place(next, next.Peer, rank))}
	}
	// Follow the longest waits until a rank comes again.
	var path []int
	at := g.reached[0]
	for !slices.Contains(path, at) {
		path = append(path, at)
		at = g.edges[at][0].Peer
	}
	path = path[slices.Index(path, at):]
	var names, waits []string
	for _, i := range path {
		w := g.edges[i][0]
		names = append(names, fmt.Sprint(i))
		waits = append(waits, place(w, w.Peer, i))
	}
	last := len(names) - 1
	who := strings.Join(names[:last], ", ") + " and " + names[last]
	return Verdict{mscclgo.NoRank, fmt.Sprintf("ranks %s wait for each other: %s", who, strings.Join(waits, ", and "))}
}

// onlyBarriers reports whether a rank waits, and only in barriers.
func (g *graph) onlyBarriers(rank int) bool {
	return !slices.ContainsFunc(g.edges[rank], func(w Wait) bool { return w.Kind == Signal })
}

// place says what a wait is for: rank `by` waits for rank `from`.
func place(w Wait, from, by int) string {
	switch w.Kind {
	case Signal:
		name := fmt.Sprint(w.Channel)
		if w.Name != "" {
			name = "'" + w.Name + "'"
		}
		if w.Number > 0 {
			return fmt.Sprintf("signal %d of channel %s from %d to %d, block %d", w.Number, name, from, by, w.Block)
		}
		return fmt.Sprintf("channel %s from %d to %d, block %d", name, from, by, w.Block)
	case Room:
		return fmt.Sprintf("room in the queue to rank %d, block %d", from, w.Block)
	case Exchange:
		return fmt.Sprintf("rank %d to come to a call that all ranks make on the host", from)
	case Message:
		return fmt.Sprintf("a send or receive between %d and %d, block %d", from, by, w.Block)
	case Host:
		return fmt.Sprintf("a barrier or packet of the host's ranks from %d to %d, block %d", from, by, w.Block)
	default:
		return fmt.Sprintf("a barrier or packet of the group from %d to %d, block %d", from, by, w.Block)
	}
}

// ownHost is what a kernel waits for that pushed triggers.
const ownHost = " for its own host to serve the ring of triggers or end a flush"

// since says how long a wait has lasted.
func since(w Wait) string {
	if w.For <= 0 {
		return ""
	}
	return fmt.Sprintf(" %v", round(w.For))
}

// round leaves two or three digits.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
