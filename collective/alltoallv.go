package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// Part is a part of a buffer: Count elements from element At on.
type Part struct{ At, Count uint64 }

// AllToAllV is an all-to-all with a count for each pair of ranks, between any buffers:
// they need not be shared. Counts may be 0. What rank r sends to rank p is as much as
// rank p receives from rank r.
type AllToAllV struct {
	Type     Type
	In, Out  *gpu.Buffer // nil where no part is used
	Sends    []Part      // of In, what goes to each rank
	Receives []Part      // of Out, what comes from each rank; they do not overlap
	Overlap  bool        // see [Call]
}

// String describes the call on this rank.
func (c *AllToAllV) String() string {
	var out, in uint64
	for _, p := range c.Sends {
		out += p.Count
	}
	for _, p := range c.Receives {
		in += p.Count
	}
	return fmt.Sprintf("all-to-all with counts, of %d %v to send and %d to receive", out, c.Type, in)
}

const prepareV = "collective: prepare an all-to-all with counts"

// PrepareAllToAllV makes a call ready to run: the ranks compare their counts, and the
// first call loads the kernel and allocates memory. Collective.
//
// Errors: ErrInvalid for an invalid call, naming the peer whose part it is: on the
// others as ErrRemote; and where what a rank sends differs from what its peer
// receives.
func (r *Runner) PrepareAllToAllV(ctx context.Context, c AllToAllV) (*Operation, error) {
	if err := r.begin(prepareV); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	c.Sends, c.Receives = slices.Clone(c.Sends), slices.Clone(c.Receives)
	o := &Operation{runner: r}
	o.prepare = func(ctx context.Context) error { return o.prepareV(ctx, &c) }
	if err := o.prepare(ctx); err != nil {
		return nil, err
	}
	return o, nil
}

// prepareV is PrepareAllToAllV for an operation, which may be of a group before. The caller holds mu.
func (o *Operation) prepareV(ctx context.Context, c *AllToAllV) error {
	r := o.runner
	messages, sides, err := r.messagesOf(prepareV, c)
	mine := proposal{o.validity != nil, o.number}
	if !mine.carried {
		mine.number = r.preparedV + 1
	}
	var agreed proposal
	if err := r.prepareAs(ctx, "prepare an all-to-all with counts", preparation{text: c.counts(), number: mine}, err, func(told []preparation) error {
		texts := make([]string, len(told))
		for rank, theirs := range told {
			texts[rank], agreed = theirs.text, agreed.or(theirs.number)
		}
		return r.matching(texts)
	}, func(ctx context.Context) (err error) {
		if err = r.groups.load(ctx, r); err != nil {
			return wrap(r.comm, prepareV, err)
		}
		before := r.preparedV
		o.number, r.preparedV = agreed.number, max(before, agreed.number)
		r.prepared.made(func() error { r.preparedV = before; return nil })
		return nil
	}); err != nil {
		return err
	}
	// Graphs are right as long as this launch is the same, and the places of large messages, which each launch looks up.
	example := &Group{runner: r, messages: messages, ofAll: true, waits: !c.Overlap, unplaced: true}
	t, err := example.sorted()
	if err != nil {
		return err
	}
	l := r.groups.launch(r, t, r.groups.blocks, r.groups.sizes.blocks, r.groups.sizes.threads)
	r.groups.empty()
	o.exchange = &Group{runner: r, messages: messages, ofAll: true, waits: !c.Overlap}
	description := fmt.Sprintf("all-to-all with counts, number %d of those prepared", o.number)
	o.ready(l, Choice{throughSlots.name, 0, r.groups.sizes.threads}, "collective: launch "+c.String(), description, nil, sides)
	return nil
}

// exchangeParts queues the messages of an all-to-all with counts. The caller holds mu.
func (r *Runner) exchangeParts(s *gpu.Stream, call orderedCall, g *Group) error {
	defer r.groups.empty()
	t, err := g.sorted()
	if err != nil {
		return err
	}
	return r.groups.do(r, s, &call, t)
}

// messagesOf returns a call's messages, of which there is one to each other rank and one from each, so that both
// know of every part; and what it uses of the buffers. Or it returns the error of an invalid call.
func (r *Runner) messagesOf(op string, c *AllToAllV) (all []message, sides []side, err error) {
	ranks, rank := r.comm.Size(), r.comm.Rank()
	invalid := func(peer int, format string, args ...any) ([]message, []side, error) {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(rank, peer)
	}
	switch {
	case !c.Type.valid():
		return invalid(mscclgo.NoRank, "there is no element %v", c.Type)
	case len(c.Sends) != ranks || len(c.Receives) != ranks:
		return invalid(mscclgo.NoRank, "there are %d parts to send and %d to receive, for %d ranks", len(c.Sends), len(c.Receives), ranks)
	case c.Sends[rank].Count != c.Receives[rank].Count:
		return invalid(rank, "it sends %d elements to itself and receives %d", c.Sends[rank].Count, c.Receives[rank].Count)
	}
	var extents []extent
	var own gpu.Ptr // of the part for itself, in In
	size := uint64(c.Type.Size())
	for i, x := range []struct {
		what  string
		b     *gpu.Buffer
		parts []Part
	}{{"to send", c.In, c.Sends}, {"to receive", c.Out, c.Receives}} {
		room, end := uint64(0), uint64(0)
		if x.b != nil {
			room = x.b.Size() / size
		}
		for peer, p := range x.parts {
			m := message{count: p.Count, typ: c.Type, peer: peer, receives: i == 1}
			if p.Count > 0 {
				if p.Count > room || p.At > room-p.Count || p.Count >= mostMessage/size {
					return invalid(peer, "the part %s, %d elements from %d on, is not inside a buffer of %d elements", x.what, p.Count, p.At, room)
				}
				end = max(end, (p.At+p.Count)*size)
				m.address = x.b.Ptr() + gpu.Ptr(p.At*size)
			}
			inPlace := peer == rank && i == 1 && m.address == own
			if peer == rank && i == 0 {
				own = m.address
			}
			if p.Count > 0 {
				extents = append(extents, extent{m.address, m.bytes(), i == 1 && !inPlace, peer})
			}
			if peer != rank || p.Count > 0 {
				all = append(all, m)
			}
		}
		if end > 0 {
			if _, err := x.b.Slice(0, end); err != nil { // of a buffer that is open
				return invalid(mscclgo.NoRank, "%w", err)
			}
		}
		sides = append(sides, side{x.b, end})
	}
	switch a, b := overlapping(extents); {
	case b == nil:
		return all, sides, nil
	case a.writes && b.writes:
		return invalid(b.of, "the part to receive overlaps with the part of rank %d", a.of)
	case a.writes:
		return invalid(b.of, "the part to send overlaps with the one to receive from rank %d", a.of)
	default:
		return invalid(a.of, "the part to send overlaps with the one to receive from rank %d", b.of)
	}
}

// counts is what the ranks compare: the type, and the counts to and from each rank.
func (c *AllToAllV) counts() string {
	if !c.Type.valid() {
		return ""
	}
	text := []byte{byte(c.Type)}
	for _, parts := range [][]Part{c.Sends, c.Receives} {
		for _, p := range parts {
			text = binary.LittleEndian.AppendUint64(text, p.Count)
		}
	}
	return string(text)
}

// matching returns the error of counts, of all ranks, that do not match: the same on all
// ranks.
func (r *Runner) matching(texts []string) error {
	ranks := len(texts)
	for rank, text := range texts {
		if len(text) != 1+16*ranks {
			return r.because(rank, mscclgo.ErrRemote, prepareV, "its counts are malformed")
		}
		if text[0] != texts[0][0] {
			return r.because(rank, mscclgo.ErrInvalid, prepareV, "its elements are %v, rank 0's %v", Type(text[0]), Type(texts[0][0]))
		}
	}
	count := func(rank, k int) uint64 { return binary.LittleEndian.Uint64([]byte(texts[rank][1+8*k : 9+8*k])) }
	for from := range ranks {
		for to := range ranks {
			if sent, received := count(from, to), count(to, ranks+from); sent != received {
				return r.because(from, mscclgo.ErrInvalid, prepareV, "rank %d sends %d elements to rank %d, which receives %d", from, sent, to, received)
			}
		}
	}
	return nil
}

// AllToAllV sends sendCounts[p] elements of in to each rank p, and receives
// receiveCounts[p] elements from it into out. Both lie in rank order, without gaps. Rank r
// must send to rank p as many elements as rank p receives from rank r, of the same type. If it does
// not, the group fails at once with an error of kind ErrInvalid, which names both ranks, what each of
// them has, and the number of the message between them. Nothing but received parts may be written then.
// Messages of groups are numbered together with the parts. A buffer of which nothing is used may be
// nil. Parts are moved as the messages of a [Group] are. See [Runner.AllReduce].
func (r *Runner) AllToAllV(s *gpu.Stream, out, in *gpu.Buffer, sendCounts, receiveCounts []uint64, t Type) error {
	c := AllToAllV{Type: t, In: in, Out: out, Overlap: true}
	var err error
	if c.Sends, err = inARow(sendCounts); err == nil {
		c.Receives, err = inARow(receiveCounts)
	}
	op := "collective: " + c.String()
	if err := r.begin(op); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if err != nil {
		return r.invalidUse(op, "%w", err)
	}
	messages, sides, err := r.messagesOf(op, &c)
	if err != nil {
		return err
	}
	if err := r.checkSides(s, op, sides); err != nil {
		return err
	}
	call := orderedCall{op: op, description: "all-to-all with counts of " + t.String() + r.name, matched: !r.groups.loaded(), uses: []use{r}, sides: sides}
	if call.matched {
		err = r.first(context.Background(), s, "call of Runner.AllToAllV", ", or call Runner.LoadGroups", call.description, func(ctx context.Context) error {
			return r.groups.load(ctx, r)
		})
	}
	if err == nil {
		err = r.exchangeParts(s, call, &Group{runner: r, messages: messages, ofAll: true})
	}
	return wrap(r.comm, op, err)
}

// inARow returns parts of so many elements, without gaps.
func inARow(counts []uint64) (parts []Part, err error) {
	var all, carry uint64
	for _, n := range counts {
		parts = append(parts, Part{all, n})
		if all, carry = bits.Add64(all, n, 0); carry != 0 {
			return nil, errors.New("the counts are more than there can be")
		}
	}
	return parts, nil
}
