package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Rank is what is known of a rank.
type Rank struct {
	*Status               // nil if it has not reported, or cannot be heard
	Silent  time.Duration // since its last sign of life, 0 if it is unknown
	Quiet   time.Duration // likewise, of a rank of another host, where others pass that on
	Stopped bool          // the operating system says that its process is stopped
	Ended   bool          // the operating system says that its process has ended
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
	Cycle   bool   // ranks wait for each other, and none is the culprit

	// Outside is set if the culprit is not of the group. Outer is its number in the outer group,
	// and Culprit the last rank of this group on the way of the waits to it, if one is known.
	Outside bool
	Outer   int
}

// Judge returns the earliest cause that explains the waits that have ended by their
// deadline. There must be at least one such wait. Of several causes it prefers one
// with a proof, in this order: a rank that has ended; one that is stopped; a silent one; calls that differ; a
// network with losses; a handler that does not return. Without a proof it follows the waits.
func Judge(ranks []Rank, l Limits) Verdict { return JudgePart(ranks, OuterGroup{}, l) }

// JudgePart is Judge for a group that was split from another one.
func JudgePart(ranks []Rank, outer OuterGroup, l Limits) Verdict {
	if v, ok := plain(ranks, l); ok {
		return v
	}
	g := newGraph(ranks, outer, l)
	v := g.judge()
	if g.overOuter && g.failure != nil {
		return g.outerFailed(outer.Numbers)
	}
	return g.inGroup(v)
}

// plain returns the verdict of what needs no waits to be seen, and reports whether there is such a thing.
func plain(ranks []Rank, l Limits) (v Verdict, ok bool) {
	if v, ok = Dead(ranks, l); !ok {
		v, ok = callsDiffer(ranks)
	}
	if !ok {
		v, ok = link(ranks)
	}
	return v, ok
}

// judge follows the waits.
func (g *graph) judge() Verdict {
	if v, ok := g.deadOutside(); ok {
		return v
	}
	if v, ok := g.quiet(); ok {
		return v
	}
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

// mostDead is how many dead ranks a verdict tells of.
const mostDead = 4

// Dead returns the verdict of a rank that has ended, is stopped, or is silent for longer than the
// limit allows, and whether there is one. Its text tells of others that have ended or are stopped, too.
func Dead(ranks []Rank, l Limits) (Verdict, bool) {
	var dead []int
	for i, r := range ranks {
		if r.dead(l) {
			dead = append(dead, i)
		}
	}
	if len(dead) == 0 {
		return Verdict{}, false
	}
	slices.SortStableFunc(dead, func(a, b int) int {
		return cmp.Or(ranks[b].proved()-ranks[a].proved(), cmp.Compare(ranks[b].Silent, ranks[a].Silent))
	})
	v := Verdict{Culprit: dead[0]}
	var texts []string
	for _, i := range dead[:min(len(dead), mostDead)] {
		if len(texts) == 0 || ranks[i].proved() > 0 {
			texts = append(texts, ranks[i].deadText(fmt.Sprint(i)))
		}
	}
	if ranks[v.Culprit].proved() == 0 {
		if l, ok := link(ranks); ok {
			texts = append(texts, l.Text)
		}
	}
	v.Text = strings.Join(texts, "; ")
	return v, true
}

// dead reports whether a rank has ended, is stopped, or is silent for longer than the limit allows.
func (r Rank) dead(l Limits) bool {
	return !r.Left && (r.proved() > 0 || l.Silence > 0 && r.Silent >= l.Silence)
}

// proved returns how much the operating system says of why a rank is dead.
func (r Rank) proved() int {
	switch {
	case r.Ended:
		return 2
	case r.Stopped:
		return 1
	}
	return 0
}

// deadText says why a rank of a name is dead.
func (r Rank) deadText(name string) string {
	process := ""
	if r.Status != nil && r.Process != 0 {
		process = fmt.Sprintf(" (process %d)", r.Process)
	}
	if r.Ended {
		return fmt.Sprintf("rank %s%s has ended without leaving the group", name, process)
	}
	if r.Stopped {
		return fmt.Sprintf("rank %s is stopped%s: a signal, a shell or a debugger stopped it", name, process)
	}
	if r.Runs {
		return fmt.Sprintf("rank %s%s has given no sign of life for %v, though it is not stopped: it gets no CPU, since the machine is too busy, or hangs; a longer heartbeat time-out (MSCCLGO_HEARTBEAT_TIMEOUT) waits for it", name, process, round(r.Silent))
	}
	return fmt.Sprintf("rank %s%s has given no sign of life for %v: it is stopped, its host hangs, or the network to it is down", name, process, round(r.Silent))
}

// Endless returns the verdict of a rank's wait that cannot end, for one that has left.
func Endless(rank int, w Wait) Verdict {
	return Verdict{Culprit: w.Peer, Text: fmt.Sprintf("rank %d has left the group, and rank %d has waited%s for %s, which cannot come any more", w.Peer, rank, since(w), place(w, w.Peer, rank))}
}

// graph has ranks' waits for other ranks as edges. A wait counts if it lasts, or has
// ended by its deadline.
type graph struct {
	ranks   []Rank      // the group's ranks, and behind them ranks of the outer group
	members int         // the ranks of the group
	outside []int       // the numbers of the others in the outer group
	places  map[int]int // of ranks of the outer group, by their numbers there
	outer   []*Status   // of each rank in the outer group, or nil
	limits  Limits
	edges   [][]Wait // of each rank, the longest first
	own     []*Wait  // of each rank, a wait for its own host
	reached []int    // the ranks to which the group's own waits that have ended lead, nearest first
	via     []int    // of each rank that is reached by a wait, whose
	led     []Wait   // that wait

	failure   *OuterFailure
	overOuter bool // the verdict comes of a wait in the outer group, by where the waits lead
}

func newGraph(ranks []Rank, outer OuterGroup, l Limits) *graph {
	g := &graph{ranks: slices.Clone(ranks), members: len(ranks), limits: l, failure: outer.Failure}
	g.extend(outer)
	var waits [][]Wait
	for i := 0; i < len(g.ranks); i++ { // which waits make more
		waits = append(waits, g.waits(i, outer))
	}
	n := len(g.ranks)
	g.edges, g.own, g.via, g.led = make([][]Wait, n), make([]*Wait, n), slices.Repeat([]int{-1}, n), make([]Wait, n)
	for i := range waits {
		ended := false
		for _, w := range waits[i] {
			if !w.Ended && w.For < l.Stuck || w.Kind == Link {
				continue
			}
			if w.Kind == Ring || w.Peer == i {
				g.own[i] = &w
			} else if w.Peer >= 0 && w.Peer < n {
				g.edges[i] = append(g.edges[i], w)
			} else {
				continue
			}
			ended = ended || w.Ended && w.Where == Here // waits of ranks outside are not
		}
		slices.SortStableFunc(g.edges[i], func(a, b Wait) int { return cmp.Compare(b.For, a.For) })
		if ended {
			g.reached = append(g.reached, i)
		}
	}
	for i := 0; i < len(g.reached); i++ {
		for _, w := range g.edges[g.reached[i]] {
			if !slices.Contains(g.reached, w.Peer) {
				g.reached, g.via[w.Peer], g.led[w.Peer] = append(g.reached, w.Peer), g.reached[i], w
			}
		}
	}
	return g
}

// ExchangeWaits returns the waits of a rank in its exchange, for the ranks that have not begun it.
func ExchangeWaits(ranks []Rank, rank int) []Wait {
	s := ranks[rank].Status
	if s.Exchanging <= 0 || s.Closes { // a rank that closes does nothing more for the ranks that it waits for
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
	return Verdict{Culprit: worst, Text: fmt.Sprintf("rank %s's %s has served one trigger of kind %d for %v: nothing behind it in the ring is served", g.name(worst), who, s.Trigger, round(s.Serving))}, true
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
			c := &candidate{w.Peer, by, w, g.behind(w, by)}
			if better(c, best) {
				best = c
			}
		}
	}
	if best == nil {
		return Verdict{}, false
	}
	g.overOuter = g.byOuter(best.wait, best.by)
	v := Verdict{Culprit: best.rank}
	rank, by := g.name(best.rank), g.name(best.by)
	waits := fmt.Sprintf("rank %s has waited%s for %s", by, since(best.wait), place(best.wait, rank, by))
	switch {
	case best.wait.Where == Here && g.ranks[best.rank].Status != nil && g.ranks[best.rank].Closes:
		v.Text = fmt.Sprintf("rank %s closes the group, and rank %s needs it: %s", rank, by, waits)
	case best.behind:
		late, other := g.statusIn(best.rank, best.wait.Where), g.statusIn(best.by, best.wait.Where)
		last := "it has made none"
		if late.Call > 0 {
			last = "its last is " + call(late)
		}
		next := fmt.Sprintf("call %d", late.Call+1)
		if late.Call+1 == other.Call {
			next = call(other)
		} else {
			waits += ", and has made " + call(other)
		}
		if busy := g.busy(best.rank); busy != "" {
			last += "; " + busy
		} else if under := launchesUnderWay(late); len(under) > 0 {
			last += "; " + unended(under)
		}
		v.Text = fmt.Sprintf("rank %s has not made %s: %s; %s", rank, next, last, waits)
	case best.wait.Kind == Room:
		v.Text = fmt.Sprintf("rank %s takes nothing that rank %s sends: %s; %s", rank, by, waits, g.doing(best.rank))
	case best.wait.Kind != Signal && g.queued(best.rank) != nil && calls(g.statusIn(best.rank, best.wait.Where)):
		s := g.statusIn(best.rank, best.wait.Where)
		v.Text = fmt.Sprintf("rank %s has queued %s, and its stream has not come to it: %s; %s", rank, call(s), front(g.queued(best.rank)), waits)
	case best.wait.Kind == Signal:
		v.Text = fmt.Sprintf("rank %s never signalled rank %s: %s; %s", rank, by, waits, g.doing(best.rank))
	default:
		if best.wait.inGroup() {
			if v, ok := g.gridsDiffer(best.wait, best.by, queued); ok {
				return v, true
			}
		}
		v.Text = fmt.Sprintf("rank %s did not come: %s; %s", rank, waits, g.doing(best.rank))
	}
	return v, true
}

// behind reports whether a rank has made fewer calls of a wait's group than the rank whose wait this is.
func (g *graph) behind(w Wait, by int) bool {
	a, b := g.statusIn(w.Peer, w.Where), g.statusIn(by, w.Where)
	return a != nil && b != nil && a.Call < b.Call
}

// calls reports whether a rank is known to have made a call.
func calls(s *Status) bool { return s != nil && s.Call > 0 }

// doing says what a rank does that waits for no other.
func (g *graph) doing(rank int) string {
	r := g.ranks[rank]
	switch {
	case r.Left:
		return fmt.Sprintf("rank %s has left the group", g.name(rank))
	case r.Quiet >= longQuiet:
		return g.unheard(rank, "")
	case r.Status == nil:
		return fmt.Sprintf("nothing is known of rank %s", g.name(rank))
	case g.own[rank] != nil:
		return "its kernel has waited" + since(*g.own[rank]) + " for " + g.ownText(rank)
	}
	text := "no kernel there waits for another rank: it did not run, has ended, or does something else"
	if under := launchesUnderWay(r.Status); len(under) > 0 {
		text = "no kernel there waits for another rank; " + unended(under)
	}
	if busy := g.busy(rank); busy != "" {
		text = "no kernel there waits for another rank; " + busy
	}
	if r.Call > 0 {
		text += "; its last call is " + call(r.Status)
	}
	return text
}

// cycle returns the verdict of ranks that wait for each other.
func (g *graph) cycle() Verdict {
	if len(g.reached) == 0 {
		return Verdict{Culprit: mscclgo.NoRank, Text: "a wait passed its deadline, and nothing more is known"}
	}
	if v, ok := g.groupsGrids(followed); ok {
		return v
	}
	if w := g.own[g.reached[0]]; w != nil && len(g.edges[g.reached[0]]) == 0 {
		rank, culprit := g.reached[0], mscclgo.NoRank
		if w.Kind == Ring {
			culprit = rank
		}
		return Verdict{Culprit: culprit, Text: fmt.Sprintf("rank %s's kernel has waited%s for %s", g.name(rank), since(*w), g.ownText(rank))}
	}
	// A channel's signal that never came explains the barriers. The rank that should have sent
	// it went on to a barrier, and the rank that awaits it never gets there.
	by, missing := g.missing(Signal, g.onlyBarriers)
	if by >= 0 {
		g.overOuter = g.byOuter(missing, by)
		if v, ok := g.gridsDiffer(missing, by, followed); ok {
			return v
		}
		return g.wentOn(fmt.Sprintf("rank %s never signalled rank %s", g.name(missing.Peer), g.name(by)), by, missing)
	}
	// So does a send or receive whose other half never came, of a rank that waits on the host.
	if by, missing = g.missing(Message, g.onlyOnHost); by >= 0 {
		g.overOuter = g.byOuter(missing, by)
		return g.wentOn(fmt.Sprintf("rank %s did not come", g.name(missing.Peer)), by, missing)
	}
	if v, ok := g.groupsGrids(queued); ok {
		return v
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
		g.overOuter = g.overOuter || g.byOuter(w, i)
		names = append(names, g.name(i))
		waits = append(waits, place(w, g.name(w.Peer), g.name(i)))
	}
	last := len(names) - 1
	who := strings.Join(names[:last], ", ") + " and " + names[last]
	return Verdict{Culprit: mscclgo.NoRank, Cycle: true, Text: fmt.Sprintf("ranks %s wait for each other: %s", who, strings.Join(waits, ", and "))}
}

// missing returns the longest wait of a kind for a rank that explains it, and whose it is, or -1.
func (g *graph) missing(kind Kind, explains func(rank int) bool) (by int, missing Wait) {
	by = -1
	for _, i := range g.reached {
		for _, w := range g.edges[i] {
			if w.Kind == kind && explains(w.Peer) && (by < 0 || w.For > missing.For) {
				by, missing = i, w
			}
		}
	}
	return by, missing
}

// wentOn returns the verdict of a rank that left out what another waits for, as what says, and waits itself.
func (g *graph) wentOn(what string, by int, missing Wait) Verdict {
	rank := missing.Peer
	next := g.edges[rank][0]
	from, to := g.name(rank), g.name(by)
	return Verdict{Culprit: rank, Text: fmt.Sprintf("%s: rank %s has waited%s for %s; rank %s itself has waited%s for %s",
		what, to, since(missing), place(missing, from, to), from, since(next), place(next, g.name(next.Peer), from))}
}

// onlyBarriers reports whether a rank waits, and only in barriers. A send or receive is none: the rank that
// awaits the signal may have left out the other half.
func (g *graph) onlyBarriers(rank int) bool {
	return !slices.ContainsFunc(g.edges[rank], func(w Wait) bool { return w.Kind == Signal || w.Kind == Message })
}

// onlyOnHost reports whether a rank waits, and not in kernels.
func (g *graph) onlyOnHost(rank int) bool {
	return !slices.ContainsFunc(g.edges[rank], func(w Wait) bool { return w.Kind != Exchange && w.Kind != Pair })
}

// Channel returns how errors name a channel: by its number, or by the name that it has been given.
func Channel(number uint32, name string) string {
	if name == "" {
		return fmt.Sprint(number)
	}
	return "'" + clip(wire.Printable(name), MaxName) + "'"
}

// place says what a wait is for: rank `by` waits for rank `from`. Both are numbers or names.
func place(w Wait, from, by any) string { return whatOf(w, from, by) + w.Where.text() }

func whatOf(w Wait, from, by any) string {
	if w.inGroup() && fmt.Sprint(from) == fmt.Sprint(by) {
		return fmt.Sprintf("a flag or packet of the group, block %d, of a rank that its Watch does not name", w.Block)
	}
	switch w.Kind {
	case Ring:
		return "its own host to serve the ring of triggers or end a flush"
	case Signal:
		name := Channel(w.Channel, w.Name)
		if w.Number > 0 {
			return fmt.Sprintf("signal %d of channel %s from %v to %v, block %d", w.Number, name, from, by, w.Block)
		}
		return fmt.Sprintf("channel %s from %v to %v, block %d", name, from, by, w.Block)
	case Room:
		return fmt.Sprintf("room in the queue to rank %v, block %d", from, w.Block)
	case Exchange:
		return fmt.Sprintf("rank %v to come to a call that all ranks make on the host", from)
	case Pair:
		return fmt.Sprintf("rank %v to come to %s, a call that the two make on the host", from, w.Name)
	case Link:
		return fmt.Sprintf("the host of rank %v to acknowledge what it was sent", from)
	case Message:
		return fmt.Sprintf("a send or receive between %v and %v, block %d", from, by, w.Block)
	case Host:
		return fmt.Sprintf("a barrier or packet of the host's ranks from %v to %v, block %d", from, by, w.Block)
	default:
		return fmt.Sprintf("a barrier or packet of the group from %v to %v, block %d", from, by, w.Block)
	}
}

// ownText says what a rank's kernel waits for that names no other rank.
func (g *graph) ownText(rank int) string {
	return place(*g.own[rank], g.name(rank), g.name(rank))
}

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
