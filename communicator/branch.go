package communicator

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// A splitTree is the groups of a rank that came of one of them, the outer group, by Split. A rank that
// is awaited in one of them may wait in another, for a rank that others do not know: so its observers
// tell each other what it waits for, and the ranks of each group hear of it.
type splitTree struct {
	mu    sync.Mutex
	waits map[*branch]branchWaits // of the branches that observe
	asked atomic.Int64            // when this rank last asked in one of the groups, in Unix nanoseconds; 0: never
	parts atomic.Bool             // there are other groups than the outer one
}

// branchWaits is what an observer tells of its rank: waits for ranks by their numbers in the outer group.
type branchWaits struct {
	waits []watch.Wait
	at    time.Time
	over  bool // the group has failed, and these were its last
}

// branch is a group's place in its tree. It is small, since it lives on while others of the tree
// do: what a communicator has that is closed does not.
type branch struct {
	tree    *splitTree
	outer   *branch // the outer group, or this one
	parent  *branch // the group that was split, nil for the outer one
	numbers []int   // in the outer group, of the ranks of this one

	observer *observer     // of the outer group, while that is open; guarded by tree.mu
	failure  *groupFailure // why the group failed, or nil; guarded by tree.mu
}

const mostBranchWaits = 4 // waits of one group

// newBranch returns the place of a group of so many that came of no other.
func newBranch(size int) *branch {
	br := &branch{tree: &splitTree{waits: map[*branch]branchWaits{}}, numbers: make([]int, size)}
	for rank := range br.numbers {
		br.numbers[rank] = rank
	}
	br.outer = br
	return br
}

// child returns the place of a group that is split from this one, with these ranks of it.
func (br *branch) child(ranks []int) *branch {
	br.tree.parts.Store(true)
	child := &branch{tree: br.tree, outer: br.outer, parent: br, numbers: make([]int, len(ranks))}
	for i, rank := range ranks {
		child.numbers[i] = br.numbers[rank]
	}
	return child
}

// observe has the tree know the observer of the outer group, which this is.
func (br *branch) observe(o *observer) {
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	br.observer = o
}

// tell has the tree know what this rank's kernels and exchange wait for. The caller holds mu.
func (o *observer) tell(own *watch.Status, now time.Time) {
	br := o.branch
	if !br.tree.parts.Load() {
		return
	}
	waits := slices.Concat(own.Waits, o.exchangeWaits(own, now))
	slices.SortStableFunc(waits, func(a, b watch.Wait) int { return cmp.Compare(b.For, a.For) })
	waits = slices.DeleteFunc(waits, func(w watch.Wait) bool { return w.Peer < 0 || w.Peer >= len(br.numbers) })
	waits = waits[:min(len(waits), mostBranchWaits)]
	for i := range waits {
		waits[i].Peer = br.numbers[waits[i].Peer]
	}
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	br.tree.waits[br] = branchWaits{waits: waits, at: now}
}

// exchangeWaits returns this rank's waits in an exchange that has lasted, or that ended by its
// deadline a moment ago: the rank may do something else since. The caller holds mu.
func (o *observer) exchangeWaits(own *watch.Status, now time.Time) []watch.Wait {
	if own.ExchangeEnded && now.Sub(o.exchanging.ended) > askedFor || !own.ExchangeEnded && own.Exchanging < o.stuck() {
		return nil
	}
	ranks := make([]watch.Rank, len(o.lives))
	for i := range ranks {
		ranks[i].Status = o.board.StatusOf(i)
	}
	ranks[o.rank].Status = own
	return watch.ExchangeWaits(ranks, o.rank)
}

// quiet has the tree hear no more of this group's waits: it has failed, which ends them. Other
// groups learn of the last for as long as they explain waits there; see explains.
func (o *observer) quiet() {
	br := o.branch
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	if t, ok := br.tree.waits[br]; ok {
		t.at, t.over = o.now(), true
		br.tree.waits[br] = t
	}
}

// leaveTree has the tree hear nothing more of this group, which is closed. The caller holds mu,
// by which no tick tells anything any more.
func (o *observer) leaveTree() {
	br := o.branch
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	delete(br.tree.waits, br)
	br.observer = nil
}

// explains reports whether what ended then, with another group's failure, may be why a wait of
// this group passes its deadline now: the rank that is awaited was held up by it while the wait
// went on, or was about to begin.
func (o *observer) explains(ended, now time.Time) bool {
	return now.Sub(ended) < o.timeout+askedFor
}

// fresh reports whether waits of another group are going on, or explain ones of this group.
func (o *observer) fresh(t branchWaits, now time.Time) bool {
	if t.over {
		return o.explains(t.at, now)
	}
	return now.Sub(t.at) <= noteFresh
}

// elsewhere returns what this rank waits for in the other groups of its tree.
func (o *observer) elsewhere(now time.Time) (waits []watch.Wait) {
	br := o.branch
	br.tree.mu.Lock()
	defer br.tree.mu.Unlock()
	var over []watch.Wait
	for other, t := range br.tree.waits {
		if other == br || !o.fresh(t, now) {
			continue
		}
		for _, w := range t.waits {
			if !w.Ended && !t.over {
				w.For += max(now.Sub(t.at), 0)
			}
			w.Where = br.where(other)
			if i := slices.Index(br.numbers, w.Peer); i >= 0 {
				w.Peer = i
			} else {
				w.Outside = true
			}
			if t.over {
				over = append(over, w)
			} else {
				waits = append(waits, w)
			}
		}
	}
	for _, of := range [][]watch.Wait{waits, over} {
		slices.SortFunc(of, func(a, b watch.Wait) int {
			return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Where, b.Where), tellingFirst(a, b))
		})
	}
	waits = append(waits, over...)
	return waits[:min(len(waits), mostBranchWaits)]
}

// where returns which group another of the tree is, as seen from this one.
func (br *branch) where(other *branch) watch.Where {
	if other == br.outer {
		return watch.Outer
	}
	for above := other.parent; above != nil; above = above.parent {
		if above == br {
			return watch.Part
		}
	}
	return watch.Elsewhere
}

// outerGroup returns what is known of the outer group, if this is not it.
func (o *observer) outerGroup() watch.OuterGroup {
	br := o.branch
	if br.outer == br {
		return watch.OuterGroup{}
	}
	g := watch.OuterGroup{Numbers: br.numbers, Size: len(br.outer.numbers)}
	br.tree.mu.Lock()
	outer, failure := br.outer.observer, br.outer.failure
	t, known := br.tree.waits[br.outer]
	br.tree.mu.Unlock()
	if failure != nil && failure.culprit != mscclgo.NoRank && o.explains(failure.at, o.now()) {
		g.Failure = &watch.OuterFailure{Culprit: failure.culprit, Text: failure.text}
	}
	if outer != nil && known && o.fresh(t, o.now()) {
		outer.mu.Lock()
		defer outer.mu.Unlock()
		if outer.board != nil {
			g.Ranks = outer.ranks(outer.now())
		}
		if t.over { // all ranks of a group that has failed are silent there
			for i := range g.Ranks {
				g.Ranks[i].Silent = 0
			}
		}
	}
	return g
}
