package bootstrap

import (
	"fmt"
	"strings"

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
	k.news = b.tellNeighbours(frame{kind: frameCallLeft, tag: n, payload: d.encode()}, func(peer int) bool { return peer != from })
	if k.call != nil {
		k.call.cancel()
	}
}

// err returns the error of call c on another rank than d's. The peer is the rank that is
// to blame: if d's time was up, the one for which it waited.
func (d *departure) err(c *call) error {
	kind, peer := mscclgo.ErrRemote, d.rank
	if d.kind == mscclgo.ErrTimeout {
		kind = d.kind
		if len(d.awaited) > 0 && d.awaited[0] != c.b.rank {
			peer = d.awaited[0]
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

// rankNames returns "rank 3" or "ranks 3, 5-8".
func rankNames(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return rankList(ranks)
}
