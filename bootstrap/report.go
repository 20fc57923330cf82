package bootstrap

import (
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
)

// report tells this process's launcher why the group failed, if this rank is the one
// that noticed. The launcher could only guess: it sees which process ends first.
func (b *Bootstrap) report(f failure) {
	if f.seenBy == b.rank {
		blame.Send(blame.Report{Group: b.Group(), Rank: uint32(f.culprit()), Text: f.text})
	}
}

// culprit returns the rank that made the group fail: the peer that a rank which
// called Abort waited for or lost, if its cause names one.
func (f failure) culprit() int {
	var cause *mscclgo.Error
	if errors.As(f.cause, &cause) && cause.Peer != mscclgo.NoRank &&
		(errors.Is(cause, mscclgo.ErrTimeout) || errors.Is(cause, mscclgo.ErrRemote)) {
		return cause.Peer
	}
	return f.rank
}
