package communicator

import (
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/blame"
)

// partFailure is why a rank's part of a collective call failed.
type partFailure struct {
	text string
	peer int // the rank because of which it failed or that it awaited in vain, or NoRank
}

// newPartFailure returns what an error tells the ranks of a group of so many. A peer that is
// none of them is of another group.
func newPartFailure(err error, ranks int) *partFailure {
	f := &partFailure{err.Error(), mscclgo.NoRank}
	if e := (*mscclgo.Error)(nil); errors.As(err, &e) && e.Peer >= 0 && e.Peer < ranks &&
		(blame.Other(err) || errors.Is(err, mscclgo.ErrTimeout)) {
		f.peer = e.Peer
	}
	return f
}

// partFailed returns the error of a call of which parts failed, by rank, mine among them if
// that is not nil: it names the rank where the chain of ranks that awaited each other ends. On
// that rank itself, whose own part did not fail, it names none: an Abort with the error would
// have all ranks blame one that awaited this.
func (k *call) partFailed(mine error, parts []*partFailure) error {
	if mine != nil {
		p := newPartFailure(mine, len(parts)).peer
		if p == mscclgo.NoRank || parts[p] == nil || !errors.Is(mine, mscclgo.ErrTimeout) {
			return mine
		}
		culprit := origin(p, parts)
		if culprit == p || culprit == k.c.Rank() {
			return mine
		}
		return k.errorf(mscclgo.ErrTimeout, culprit, "%w; rank %d's part failed: %s", mine, p, parts[p].text)
	}
	for rank, part := range parts {
		if part == nil {
			continue
		}
		culprit := origin(rank, parts)
		switch culprit {
		case rank:
			return k.errorf(mscclgo.ErrRemote, rank, "its part failed: %s", part.text)
		case k.c.Rank():
			culprit = mscclgo.NoRank
		}
		return k.errorf(mscclgo.ErrRemote, culprit, "rank %d's part failed: %s", rank, part.text)
	}
	return nil
}

// origin follows the ranks that failed because of another from one to the last.
func origin(rank int, parts []*partFailure) int {
	for range parts {
		if parts[rank] == nil || parts[rank].peer == mscclgo.NoRank || parts[rank].peer == rank {
			return rank
		}
		rank = parts[rank].peer
	}
	return rank // a circle
}
