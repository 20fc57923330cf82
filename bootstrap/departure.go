package bootstrap

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

const (
	maxAwaits   = 64  // ranks that a message lists; more say no more
	maxWhyBytes = 512 // of the text of a departure
)

// A departure is why a rank left a collective that the others cannot end without it.
type departure struct {
	rank    int
	kind    mscclgo.Kind
	awaited []int // the ranks for which it waited
	text    string
}

func (d departure) encode() []byte {
	var w wire.Writer
	w.U32(uint32(d.rank))
	w.U8(uint8(d.kind))
	w.String(clip(d.text, maxWhyBytes))
	w.Raw(encodeAwaits(d.awaited))
	return w.Bytes()
}

func decodeDeparture(b []byte, size int) (departure, error) {
	r := wire.NewReader(b)
	d := departure{rank: int(r.U32()), kind: mscclgo.Kind(r.U8()), text: r.String(maxWhyBytes)}
	rest := r.Raw(r.Len())
	if err := r.End(); err != nil {
		return d, fmt.Errorf("malformed news of a collective: %w", err)
	}
	if d.rank >= size {
		return d, fmt.Errorf("news of rank %d in a group of %d", d.rank, size)
	}
	var err error
	d.awaited, err = decodeAwaits(rest, size)
	return d, err
}

// encodeAwaits encodes the first ranks of a list.
func encodeAwaits(ranks []int) []byte {
	ranks = ranks[:min(len(ranks), maxAwaits)]
	w := wire.NewWriter(4 * len(ranks))
	for _, r := range ranks {
		w.U32(uint32(r))
	}
	return w.Bytes()
}

func decodeAwaits(b []byte, size int) ([]int, error) {
	if len(b)%4 != 0 || len(b) > 4*maxAwaits {
		return nil, fmt.Errorf("malformed list of ranks: %d bytes", len(b))
	}
	r := wire.NewReader(b)
	ranks := make([]int, len(b)/4)
	for i := range ranks {
		if ranks[i] = int(r.U32()); ranks[i] >= size {
			return nil, fmt.Errorf("news of rank %d in a group of %d", ranks[i], size)
		}
	}
	return ranks, nil
}

// callLeft ends call n on this rank, where it is or when it begins, because of d, of which
// a neighbour or this rank itself says, and passes d on to the other neighbours. A rank
// on which the call has ended well has sent its neighbours all that they need.
func (b *Bootstrap) callLeft(from int, n uint64, d departure) {
	s := &b.calls
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of(n)
	if k == nil || k.left != nil {
		return
	}
	k.left = &d
	s.givenUp = &givenUp{number: n, departure: d, when: time.Now()}
	k.news = b.tellNeighbours(frame{kind: frameCallLeft, tag: n, payload: d.encode()}, func(peer int) bool { return peer != from })
	if k.call != nil {
		s.givenUp.instead = k.call.awaited()
		k.call.cancel()
	}
}

// endsWithCall is how long after a departure the end of a rank is taken for its consequence.
const endsWithCall = 2 * time.Second

// A givenUp is a call that ended on this rank because of a departure.
type givenUp struct {
	number uint64
	departure
	when time.Time
	// instead is for whom this rank waited then itself.
	instead []int
}

// failureOf returns the failure of the group where a rank's connection has ended, which text
// says. Processes often end because a call of theirs has: then the failure is that of the
// rank for which the first waited, on all ranks, whether or not they heard why it left.
func (b *Bootstrap) failureOf(rank int, text string) failure {
	f := failure{rank: rank, seenBy: b.rank, kind: mscclgo.ErrRemote, text: text}
	b.calls.mu.Lock()
	why := b.calls.givenUp
	b.calls.mu.Unlock()
	if why == nil || time.Since(why.when) > endsWithCall {
		return f
	}
	if culprit := why.culprit(b.rank); culprit >= 0 && culprit != rank {
		f.rank = culprit
		f.text = fmt.Sprintf("rank %d left call %d: %s; then rank %d ended too: %s", why.rank, why.number, why.text, rank, text)
		if why.kind == mscclgo.ErrTimeout {
			f.kind = mscclgo.ErrTimeout
		}
	}
	return f
}

// culprit returns the rank because of which the call was given up, or -1 if that is this one
// or not known.
func (g *givenUp) culprit(self int) int {
	ranks := []int{g.rank}
	if g.kind == mscclgo.ErrTimeout {
		ranks = slices.Concat(g.awaited, g.instead)
	}
	for _, r := range ranks {
		if r != self {
			return r
		}
	}
	return -1
}

// err returns the error of call c on another rank than d's. The peer is the rank that is
// to blame: if d's time was up, the one for which it waited. On that rank itself, which came
// too late, it is no other: d's rank did nothing wrong, and an Abort with the error would have
// all ranks blame it.
func (d *departure) err(c *call) error {
	kind, peer := mscclgo.ErrRemote, d.rank
	if d.kind == mscclgo.ErrTimeout {
		kind = d.kind
		if len(d.awaited) > 0 {
			peer = d.awaited[0]
		}
		if peer == c.b.rank {
			peer = mscclgo.NoRank
		}
	}
	return mscclgo.Errorf(kind, c.op, "rank %d left call %d: %s", d.rank, c.number, d.text).At(c.b.rank, peer)
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
