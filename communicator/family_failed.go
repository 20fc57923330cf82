package communicator

import (
	"errors"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
	"github.com/mscclgo/mscclgo/internal/verdict"
)

// failing is an error of a group, by which it failed or with which a call ended.
type failing struct {
	of      *observer
	err     error
	culprit int // its number in the outer group, or NoRank
	at      time.Time
}

const mostFails = 16

// failed has the family know an error of this group, in which numbers of ranks are the group's.
func (o *observer) failed(err error) {
	k := o.kin.Load()
	if k == nil {
		return
	}
	culprit, ok := verdict.OuterCulprit(err.Error())
	if !ok || culprit >= k.outer.c.Size() {
		culprit = mscclgo.NoRank
		if i := blame.Culprit(err, o.c.Rank()); i >= 0 && i < len(k.numbers) {
			culprit = k.numbers[i]
		}
	}
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	k.family.fails = append(k.family.fails, failing{o, err, culprit, o.now()})
	k.family.fails = k.family.fails[max(0, len(k.family.fails)-mostFails):]
}

// culprit returns the rank, as this group numbers it, that an error of another group of the family
// names, and reports whether it is such an error. A rank that is not of this group is NoRank.
func (o *observer) culprit(err error) (rank int, ok bool) {
	k := o.kin.Load()
	if k == nil {
		return mscclgo.NoRank, false
	}
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	for _, f := range k.family.fails {
		if errors.Is(err, f.err) {
			if f.of == o {
				return mscclgo.NoRank, false
			}
			return slices.Index(k.numbers, f.culprit), true // which is NoRank where there is none
		}
	}
	return mscclgo.NoRank, false
}

// outerFailed returns why the outer group failed, if that was a moment ago: a rank that waited
// there, and so did not come here, waits no more.
func (o *observer) outerFailed() (verdict.Verdict, bool) {
	k := o.kin.Load()
	if k == nil || k.outer == o {
		return verdict.Verdict{}, false
	}
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	for _, f := range k.family.fails {
		if f.of == k.outer && f.of.c.failure.failed.Load() && f.culprit != mscclgo.NoRank && o.now().Sub(f.at) < askedFor {
			return verdict.OuterFailed(k.numbers, f.culprit, f.err), true
		}
	}
	return verdict.Verdict{}, false
}

// ofOther returns an error of another group of this rank, which names ranks by their numbers there,
// as one of a kind and an operation here, and its culprit, a rank of this group or NoRank. The error is nil if
// err is no such error.
func (c *Communicator) ofOther(kind mscclgo.Kind, op string, err error) (culprit int, ours error) {
	if c.failure == nil || err == nil {
		return mscclgo.NoRank, nil
	}
	culprit, ok := c.failure.observer.culprit(err)
	if !ok {
		return mscclgo.NoRank, nil
	}
	peer := culprit
	if peer == c.Rank() {
		peer = mscclgo.NoRank
	}
	return culprit, mscclgo.Errorf(kind, op, "another group of this rank has failed, by whose numbers ranks are named: %w", err).At(c.Rank(), peer)
}
