package communicator

import (
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// partFailed returns the error of a call of which parts failed. parts are by rank, mine among
// them if it is not nil. The error names the rank at the end of the chain of ranks that awaited
// each other. On that rank, if its own part did not fail, it names none: an Abort with the
// error would have all ranks blame a rank that awaited this one.
func (k *call) partFailed(mine error, parts []*watch.Fact) error {
	self := k.c.Rank()
	if mine != nil {
		p := watch.FactOf(mine, self, len(parts)).Culprit()
		if p == self || parts[p] == nil || !errors.Is(mine, mscclgo.ErrTimeout) {
			return mine
		}
		culprit := watch.Origin(p, parts)
		if culprit == p || culprit == self {
			return mine
		}
		return k.errorf(mscclgo.ErrTimeout, culprit, "%w; rank %d's part failed: %s", mine, p, parts[p].Text)
	}
	for rank, part := range parts {
		if part == nil {
			continue
		}
		culprit := watch.Origin(rank, parts)
		switch culprit {
		case rank:
			return k.errorf(mscclgo.ErrRemote, rank, "its part failed: %w", &watch.FailedPart{Kind: part.Kind, Text: part.Text})
		case self:
			culprit = mscclgo.NoRank
		}
		return k.errorf(mscclgo.ErrRemote, culprit, "rank %d's part failed: %w", rank, &watch.FailedPart{Kind: part.Kind, Text: part.Text})
	}
	return nil
}
