package watch

import (
	"cmp"
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

// Culprit returns the rank that is to blame for an error of the rank self. If err says that
// self waited for a peer, lost it, or had news of it, that is the peer, and otherwise self.
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

// FailedPart is in an error of a call that fails on a rank because another's part of it has failed: what that rank told. It
// may fail the group with its own error meanwhile, and this rank with this one, so that these have one kind.
type FailedPart struct {
	Kind mscclgo.Kind // 0 if it has not failed
	Text string       `wire:"4096"`
}

func (p *FailedPart) Error() string { return p.Text }

// FailedPartOf returns what a rank whose part has failed tells, or that it has not, for nil.
func FailedPartOf(err error) (p FailedPart) {
	if err != nil {
		text := cmp.Or(err.Error(), "an error without a text")
		p = FailedPart{KindOr(err, mscclgo.ErrSystem), text[:min(len(text), maxReason)]}
	}
	return p
}

// OfFailedPart reports whether an error is of a call that failed because another's part of it has failed.
func OfFailedPart(err error) bool {
	p := (*FailedPart)(nil)
	return errors.As(err, &p)
}

// KindOr returns the kind that a failure has on all ranks: the kind of the cause's Error, or of the part of a call that
// has failed, or otherwise if the cause has none.
func KindOr(cause error, otherwise mscclgo.Kind) mscclgo.Kind {
	if p := (*FailedPart)(nil); errors.As(cause, &p) {
		return p.Kind
	}
	if e := (*mscclgo.Error)(nil); errors.As(cause, &e) {
		return e.Kind
	}
	return otherwise
}
