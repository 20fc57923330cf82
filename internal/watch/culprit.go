package watch

import (
	"errors"

	"github.com/mscclgo/mscclgo"
)

// By is the news of a failure, in an error of any kind: it tells which rank failed.
type By struct {
	Rank    int
	outside int // see Fact
	Err     error
}

// Outside returns the number in the outer group of a culprit in another group, or NoRank.
func (b *By) Outside() int { return b.outside - 1 }

func (b *By) Error() string { return b.Err.Error() }

// Unwrap returns what the news says.
func (b *By) Unwrap() error { return b.Err }

// Culprit returns the rank that is to blame for an error of the rank self: the peer that it
// waited for or lost, or of which it had news, if err says so, and otherwise self.
func Culprit(err error, self int) int {
	var e *mscclgo.Error
	for errors.As(err, &e) {
		waited := e.Kind == mscclgo.ErrTimeout || e.Kind == mscclgo.ErrRemote
		if waited && e.Peer != mscclgo.NoRank {
			return e.Peer
		}
		if by := (*By)(nil); errors.As(e.Err, &by) {
			return by.Rank
		}
		err, e = e.Err, nil
	}
	return self
}

// Other reports whether an error is of another rank's failure.
func Other(err error) bool {
	by := (*By)(nil)
	return errors.Is(err, mscclgo.ErrRemote) || errors.As(err, &by)
}

// KindOr returns the kind that a failure has on all ranks: the kind of the cause's Error, or otherwise if the cause has
// none.
func KindOr(cause error, otherwise mscclgo.Kind) mscclgo.Kind {
	if e := (*mscclgo.Error)(nil); errors.As(cause, &e) {
		return e.Kind
	}
	return otherwise
}
