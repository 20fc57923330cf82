package bootstrap

import (
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
)

// lastFailed is the number of the group of this process that has failed last, or nil.
var lastFailed atomic.Pointer[[groupSize]byte]

// report tells this process's launcher why the group failed, if this rank is the one
// that noticed. The launcher could only guess: it sees which process ends first.
func (b *Bootstrap) report(f failure) {
	group := b.Group()
	lastFailed.Store(&group)
	if f.seenBy == b.rank {
		blame.Send(blame.Report{Group: group, Rank: uint32(f.rank), Text: f.text})
	}
}

// report tells this process's launcher which rank kept the group from forming, which may have ended well.
func (j *joiner) report(v refusal) {
	if v.kind != mscclgo.ErrRemote || v.rank == mscclgo.NoRank || v.rank == j.o.Rank {
		return
	}
	group := j.o.ID.group
	lastFailed.Store(&group)
	blame.Send(blame.Report{Group: group, Rank: uint32(v.rank), Text: v.text})
}

// takeBack has the launcher forget why the group failed before, now that all its ranks have met
// again. Rank 0 does so before they are connected, and so before any of them can be done and
// fail; it does nothing in a group that meets first, whose failures must not be lost.
func (b *Bootstrap) takeBack() {
	if last := lastFailed.Load(); b.rank == 0 && last != nil && *last == b.Group() {
		lastFailed.CompareAndSwap(last, nil)
		blame.Send(blame.Report{Group: b.Group(), Rank: blame.Forget})
	}
}
