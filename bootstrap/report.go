package bootstrap

import (
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// lastFailed is the number of the group of this process that has failed last, or nil.
var lastFailed atomic.Pointer[[groupSize]byte]

// report tells this process's launcher why the group failed, if this rank is the one
// that noticed. The launcher could only guess: it sees which process ends first.
func (b *Bootstrap) report(f watch.Fact) {
	group := b.Group()
	lastFailed.Store(&group)
	if f.Rank == b.rank {
		watch.Send(watch.Report{Group: group, Rank: uint32(f.Culprit()), Text: f.Text})
	}
}

// report tells this process's launcher which rank kept the group from forming, which may have ended well.
func (o Options) report(v watch.Fact) {
	if culprit := v.Culprit(); v.Kind == mscclgo.ErrRemote && culprit != toRendezvous && culprit != o.Rank {
		lastFailed.Store(&o.ID.group)
		watch.Send(watch.Report{Group: o.ID.group, Rank: uint32(culprit), Text: v.Text})
	}
}

// takeBack has the launcher forget why the group failed before, now that all its ranks have met
// again. Rank 0 does so before they are connected, and so before any of them can be done and
// fail; it does nothing in a group that meets first, whose failures must not be lost.
func (b *Bootstrap) takeBack() {
	if last := lastFailed.Load(); b.rank == 0 && last != nil && *last == b.Group() {
		lastFailed.CompareAndSwap(last, nil)
		watch.Send(watch.Report{Group: b.Group(), Rank: watch.Forget})
	}
}
