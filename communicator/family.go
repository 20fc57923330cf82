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

// A family is the groups of a rank that came of one of them, the outer group, by Split. A rank that
// is awaited in one of them may wait in another, for a rank that others do not know: so its observers
// tell each other what it waits for, and the ranks of each group hear of it.
type family struct {
	mu    sync.Mutex
	told  map[*kin]told // of those that observe
	asked time.Time     // when this rank last asked in one of the groups
	parts atomic.Bool   // there are other groups than the outer one
}

// told is what an observer tells of its rank: waits for ranks by their numbers in the outer group.
type told struct {
	waits []watch.Wait
	at    time.Time
	over  bool // the group has failed, and these were its last
}

// kin is a group's place in its family. It is small, since it lives on while others of the family
// do: what a communicator has that is closed does not.
type kin struct {
	family  *family
	outer   *kin  // the outer group, or this one
	parent  *kin  // the group that was split, nil for the outer one
	numbers []int // in the outer group, of the ranks of this one

	observer *observer     // of the outer group, while that is open; guarded by family.mu
	failure  *groupFailure // why the group failed, or nil; guarded by family.mu
}

const mostTold = 4 // waits of one group

// newKin returns the place of a group of so many that came of no other.
func newKin(size int) *kin {
	k := &kin{family: &family{told: map[*kin]told{}}, numbers: make([]int, size)}
	for rank := range k.numbers {
		k.numbers[rank] = rank
	}
	k.outer = k
	return k
}

// child returns the place of a group that is split from this one, with these ranks of it.
func (k *kin) child(ranks []int) *kin {
	k.family.parts.Store(true)
	child := &kin{family: k.family, outer: k.outer, parent: k, numbers: make([]int, len(ranks))}
	for i, rank := range ranks {
		child.numbers[i] = k.numbers[rank]
	}
	return child
}

// observe has the family know the observer of the outer group, which this is.
func (k *kin) observe(o *observer) {
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	k.observer = o
}

// tell has the family know what this rank's kernels and exchange wait for. The caller holds mu.
func (o *observer) tell(own *watch.Status, now time.Time) {
	k := o.kin
	if !k.family.parts.Load() {
		return
	}
	waits := slices.Concat(own.Waits, o.exchangeWaits(own, now))
	slices.SortStableFunc(waits, func(a, b watch.Wait) int { return cmp.Compare(b.For, a.For) })
	waits = slices.DeleteFunc(waits, func(w watch.Wait) bool { return w.Peer < 0 || w.Peer >= len(k.numbers) })
	waits = waits[:min(len(waits), mostTold)]
	for i := range waits {
		waits[i].Peer = k.numbers[waits[i].Peer]
	}
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	k.family.told[k] = told{waits: waits, at: now}
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
	ranks[o.c.Rank()].Status = own
	return watch.ExchangeWaits(ranks, o.c.Rank())
}

// quiet has the family hear no more of this group's waits: it has failed, which ends them. Other
// groups learn of the last for as long as they explain waits there; see explains.
func (o *observer) quiet() {
	k := o.kin
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	if t, ok := k.family.told[k]; ok {
		t.at, t.over = o.now(), true
		k.family.told[k] = t
	}
}

// leaveFamily has the family hear nothing more of this group, which is closed. The caller holds mu,
// by which no tick tells anything any more.
func (o *observer) leaveFamily() {
	k := o.kin
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	delete(k.family.told, k)
	k.observer = nil
}

// explains reports whether what ended then, with another group's failure, may be why a wait of
// this group passes its deadline now: the rank that is awaited was held up by it while the wait
// went on, or was about to begin.
func (o *observer) explains(ended, now time.Time) bool {
	return now.Sub(ended) < o.c.options.Timeout+askedFor
}

// fresh reports whether waits of another group are going on, or explain ones of this group.
func (o *observer) fresh(t told, now time.Time) bool {
	if t.over {
		return o.explains(t.at, now)
	}
	return now.Sub(t.at) <= noteFresh
}

// elsewhere returns what this rank waits for in the other groups of its family.
func (o *observer) elsewhere(now time.Time) (waits []watch.Wait) {
	k := o.kin
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	var over []watch.Wait
	for other, t := range k.family.told {
		if other == k || !o.fresh(t, now) {
			continue
		}
		for _, w := range t.waits {
			if !w.Ended && !t.over {
				w.For += max(now.Sub(t.at), 0)
			}
			w.Where = k.where(other)
			if i := slices.Index(k.numbers, w.Peer); i >= 0 {
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
	return waits[:min(len(waits), mostTold)]
}

// where returns which group another of the family is, as seen from this one.
func (k *kin) where(other *kin) watch.Where {
	if other == k.outer {
		return watch.Outer
	}
	for above := other.parent; above != nil; above = above.parent {
		if above == k {
			return watch.Part
		}
	}
	return watch.Elsewhere
}

// outerGroup returns what is known of the outer group, if this is not it.
func (o *observer) outerGroup() watch.OuterGroup {
	k := o.kin
	if k.outer == k {
		return watch.OuterGroup{}
	}
	g := watch.OuterGroup{Numbers: k.numbers, Size: len(k.outer.numbers)}
	k.family.mu.Lock()
	outer, failure := k.outer.observer, k.outer.failure
	t, known := k.family.told[k.outer]
	k.family.mu.Unlock()
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

// askFamily notes that this rank has asked, so that it soon asks in its other groups too.
func (o *observer) askFamily(now time.Time) {
	k := o.kin
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	k.family.asked = now
}

// familyAsked returns when this rank last asked in one of its groups.
func (o *observer) familyAsked() time.Time {
	k := o.kin
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	return k.family.asked
}
