package watch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// A rank tells a Fact when it leaves a call, loses another rank, or fails its group. It says what the rank knows.
// Culprit, Origin and After say who is to blame.
type Fact struct {
	Rank  int          // that tells it, or Rendezvous
	Kind  mscclgo.Kind // of the errors that come of it
	Peers []int        `wire:"64"`   // the ranks that were lost or did not come, the likeliest culprit first. None: Rank failed itself
	Text  string       `wire:"4096"` // why
	Cause error        `wire:"-"`    // on Rank itself, what Text quotes, or nil

	outside int // 1 more than the number in the outer group of a culprit in another group; else 0
}

// Rendezvous stands for the rank of a Fact that a rendezvous tells.
const Rendezvous = math.MaxInt32

const maxReason = 4 << 10 // bytes of the text of a Fact

// Lost is the fact that a rank has lost another one. Where both are the same, it has failed itself.
func Lost(rank, peer int, text string) Fact { return About(rank, mscclgo.ErrRemote, peer, text) }

// Blamed is the fact that a rank fails its group because of a culprit, which may be itself. Its kind is the cause's.
// By a method Outside the cause tells of a culprit in another group.
func Blamed(rank, culprit int, cause error) Fact {
	kind := mscclgo.ErrRemote
	if culprit == rank {
		kind = mscclgo.ErrAborted
	}
	f := About(rank, KindOr(cause, kind), culprit, cause.Error())
	f.Cause = cause
	if o := (interface{ Outside() int })(nil); errors.As(cause, &o) {
		f.outside = o.Outside() + 1
	}
	return f
}

// FactOf is the fact of an error on a rank of a group of so many. A peer beyond these is of another group.
func FactOf(err error, rank, size int) Fact {
	f := Fact{Rank: rank, Kind: KindOr(err, mscclgo.ErrSystem), Text: err.Error(), Cause: err}
	if peer := Culprit(err, rank); peer != rank && peer >= 0 && peer < size {
		f.Peers = []int{peer}
	}
	return f
}

// About is the fact that a rank tells of another one, of itself or, where peer is NoRank, of no other.
func About(rank int, kind mscclgo.Kind, peer int, text string) Fact {
	f := Fact{Rank: rank, Kind: kind, Text: text}
	if peer != rank && peer != mscclgo.NoRank {
		f.Peers = []int{peer}
	}
	return f
}

// Culprit returns the rank that is to blame, as far as the one knows that tells the fact.
func (f Fact) Culprit() int {
	if len(f.Peers) > 0 {
		return f.Peers[0]
	}
	return f.Rank
}

// Peer returns the other rank that is to blame, as far as the one knows that tells the fact, or NoRank.
func (f Fact) Peer() int { return other(f.Culprit(), f.Rank) }

// Origin follows ranks that failed because of each other, from rank to the last, and returns the last. facts has a fact of
// each rank that failed, or nil. A circle ends where it began.
func Origin(rank int, facts []*Fact) int {
	at := rank
	for range facts {
		if facts[at] == nil {
			break
		}
		if at = facts[at].Culprit(); at == rank {
			break
		}
	}
	return at
}

// Left returns the error of a call on rank self. Another rank has left the call, as the fact tells. The error names the
// culprit. On the culprit itself, which came too late, it names nobody: the other rank did nothing wrong, and after an
// Abort with the error all ranks would blame it.
func (f Fact) Left(op string, self int, call string) *mscclgo.Error {
	kind := mscclgo.ErrRemote
	if f.Kind == mscclgo.ErrTimeout {
		kind = f.Kind
	}
	return mscclgo.Errorf(kind, op, "rank %d left %s: %s", f.Rank, call, f.Text).At(self, other(f.Culprit(), self))
}

// After judges the end of a process, of which lost tells. A moment before, a rank had left a call, as left tells.
// Processes often end because a call of theirs has: then all ranks blame the rank for which the first one waited,
// whether or not they heard why it left. awaited are the ranks for which the teller of lost waited in the call.
func (lost Fact) After(left Fact, awaited []int, call uint64) Fact {
	peers := []int{left.Rank}
	if left.Kind == mscclgo.ErrTimeout {
		peers = slices.Concat(left.Peers, awaited)
	}
	at := slices.IndexFunc(peers, func(p int) bool { return p != lost.Rank })
	if at < 0 || peers[at] == lost.Culprit() {
		return lost
	}
	f := Lost(lost.Rank, peers[at], fmt.Sprintf("rank %d left call %d: %s; then rank %d ended too: %s", left.Rank, call, left.Text, lost.Culprit(), lost.Text))
	if left.Kind == mscclgo.ErrTimeout {
		f.Kind = left.Kind
	}
	return f
}

// Failed returns the error of a group on rank self. The group has failed, as the fact tells. The error names the culprit, but
// on the culprit itself nobody.
func (f Fact) Failed(op string, self int) *mscclgo.Error {
	culprit, why := f.Culprit(), f.Cause
	if why == nil {
		why = errors.New(f.Text)
	}
	switch {
	case culprit != self:
		why = fmt.Errorf("rank %d failed: %w", culprit, why)
	case f.Cause != nil:
		why = fmt.Errorf("this rank aborted the group: %w", why)
	case f.Rank == Rendezvous:
		why = fmt.Errorf("the rendezvous considers this rank failed: %w", why)
	default:
		why = fmt.Errorf("rank %d considers this rank failed: %w", f.Rank, why)
	}
	return mscclgo.Errorf(f.Kind, op, "%w", &By{culprit, f.outside, why}).At(self, other(culprit, self))
}

// other returns the peer that an error of rank self names where a rank is to blame.
func other(culprit, self int) int {
	if culprit == self {
		return mscclgo.NoRank
	}
	return culprit
}

var facts = wire.For[Fact]()

// Encode returns the fact without its cause.
func (f Fact) Encode() []byte {
	if len(f.Text) > maxReason {
		f.Text = f.Text[:maxReason-3] + "..."
	}
	return facts.Marshal(&f)
}

// DecodeFact decodes a fact of a group of so many ranks.
func DecodeFact(b []byte, size int) (Fact, error) {
	f, err := facts.Unmarshal(b)
	switch outside := func(rank int) bool { return rank >= size }; {
	case err != nil:
	case f.Kind < mscclgo.ErrInvalid || f.Kind > mscclgo.ErrSystem:
		err = fmt.Errorf("it is of kind %d", f.Kind)
	case f.Rank != Rendezvous && outside(f.Rank) || slices.ContainsFunc(f.Peers, outside):
		err = fmt.Errorf("it names a rank outside a group of %d", size)
	}
	if err != nil {
		return f, fmt.Errorf("malformed news of a failure: %w", err)
	}
	return f, nil
}
