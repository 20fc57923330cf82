package bootstrap

import (
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// callLeft ends call n on this rank, where it is or when it begins, because a rank left it,
// as the fact of a neighbour or this rank itself tells, and passes that on to the other neighbours. A rank
// on which the call has ended well has sent its neighbours all that they need.
func (b *Bootstrap) callLeft(from int, n uint64, left watch.Fact) {
	s := &b.calls
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(n)
	if k == nil || k.left != nil {
		return
	}
	k.left = &left
	s.givenUp = &givenUp{number: n, left: left, when: time.Now()}
	k.news = b.tellNeighbours(frame{kind: frameCallLeft, tag: n, payload: left.Encode()}, func(peer int) bool { return peer != from })
	if k.call != nil {
		s.givenUp.instead = k.call.awaited()
		k.call.cancel()
	}
}

// endsWithCall is how long after a departure the end of a rank is taken for its consequence.
const endsWithCall = 2 * time.Second

// A givenUp is a call that ended on this rank because another left it.
type givenUp struct {
	number uint64
	left   watch.Fact
	when   time.Time
	// instead is for whom this rank waited then itself.
	instead []int
}

// failureOf returns the failure of the group where a rank's connection has ended, which text
// says.
func (b *Bootstrap) failureOf(rank int, text string) watch.Fact {
	b.calls.mu.Lock()
	why := b.calls.givenUp
	b.calls.mu.Unlock()
	if why == nil || time.Since(why.when) > endsWithCall {
		return watch.Lost(b.rank, rank, text)
	}
	return watch.Lost(b.rank, rank, text).After(why.left, why.instead, why.number)
}

// ownText returns what e says besides its operation and ranks.
func ownText(e *mscclgo.Error) string {
	parts := []string{e.Kind.Error()}
	if e.Text != "" {
		parts = append(parts, e.Text)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}
