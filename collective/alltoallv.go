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
	spans, err := r.spansOf(prepareV, c)
	var l launch
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
		if l, err = r.launchCounts(ctx, spans, c.Overlap); err != nil {
			return wrap(r.comm, prepareV, err)
		}
		before := r.preparedV
		o.number, r.preparedV = agreed.number, max(before, agreed.number)
		r.prepared.made(func() error { r.preparedV = before; return nil })
		return nil
	}); err != nil {
		return err
	}
	description := fmt.Sprintf("all-to-all with counts, number %d of those prepared", o.number)
	o.ready(l, slotsChoice, "collective: launch "+c.String(), description, nil, []side{{c.In, spans.sends.end()}, {c.Out, spans.receives.end()}})
	return nil
}

// spansOf returns a call's parts in bytes, or the error of an invalid call.
func (r *Runner) spansOf(op string, c *AllToAllV) (all spansBetween, err error) {
	ranks := r.comm.Size()
	invalid := func(peer int, format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(r.comm.Rank(), peer)
	}
	switch {
	case !c.Type.valid():
		return all, invalid(mscclgo.NoRank, "there is no element %v", c.Type)
	case len(c.Sends) != ranks || len(c.Receives) != ranks:
		return all, invalid(mscclgo.NoRank, "there are %d parts to send and %d to receive, for %d ranks", len(c.Sends), len(c.Receives), ranks)
	case c.Sends[r.comm.Rank()].Count != c.Receives[r.comm.Rank()].Count:
		return all, invalid(r.comm.Rank(), "it sends %d elements to itself and receives %d", c.Sends[r.comm.Rank()].Count, c.Receives[r.comm.Rank()].Count)
	}
	sends, receives := make(spans, ranks), make(spans, ranks)
	all = spansBetween{c.In, c.Out, sends, receives, c.Type}
	var extents []extent
	for i, side := range []struct {
		what  string
		b     *gpu.Buffer
		parts []Part
		spans spans
	}{{"to send", c.In, c.Sends, sends}, {"to receive", c.Out, c.Receives, receives}} {
		size, room := uint64(c.Type.Size()), uint64(0)
		if side.b != nil {
			room = side.b.Size() / size
		}
		for peer, p := range side.parts {
			if p.Count == 0 {
				continue
			}
			if p.Count > room || p.At > room-p.Count || p.Count > mostPart/size {
				return all, invalid(peer, "the part %s, %d elements from %d on, is not inside a buffer of %d elements", side.what, p.Count, p.At, room)
			}
			side.spans[peer].At, side.spans[peer].Bytes = p.At*size, p.Count*size
		}
		if end := side.spans.end(); end > 0 {
			if _, err := side.b.Slice(0, end); err != nil { // of a buffer that is open
				return all, invalid(mscclgo.NoRank, "%w", err)
			}
		}
		for peer, part := range side.spans {
			if part.Bytes > 0 {
				at := side.b.Ptr() + gpu.Ptr(part.At)
				inPlace := peer == r.comm.Rank() && at == c.In.Ptr()+gpu.Ptr(sends[peer].At)
				extents = append(extents, extent{at, part.Bytes, i == 1 && !inPlace, peer})
			}
		}
	}
	switch a, b := overlapping(extents); {
	case b == nil:
		return all, nil
	case a.writes && b.writes:
		return all, invalid(b.of, "the part to receive overlaps with the part of rank %d", a.of)
	case a.writes:
		return all, invalid(b.of, "the part to send overlaps with the one to receive from rank %d", a.of)
	default:
		return all, invalid(a.of, "the part to send overlaps with the one to receive from rank %d", b.of)
	}
}

// end returns where the last part ends.
func (s spans) end() (end uint64) {
	for _, part := range s {
		if part.Bytes > 0 {
			end = max(end, part.At+part.Bytes)
		}
	}
	return end
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
// receiveCounts[p] elements from it into out. Both lie in rank order, without gaps. What
// rank r sends to rank p must be as much as rank p receives from rank r, of the same type: where
// it is not, the group fails at once with an error of kind ErrInvalid that names both ranks, what
// each of them has, and the call, and nothing but what is received may be written. Such calls are
// numbered by runner, "by slots", together with the gathers and scatters of that algorithm. A buffer
// of which nothing is used may be nil. See [Runner.AllReduce].
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
	spans, err := r.spansOf(op, &c)
	if err != nil {
		return err
	}
	sides := []side{{in, spans.sends.end()}, {out, spans.receives.end()}}
	if err := r.checkSides(s, op, sides); err != nil {
		return err
	}
	description := "all-to-all with counts of " + t.String() + r.name
	first := r.planOf(planKey{kind: withCounts}) == nil
	if first {
		err = r.first(context.Background(), s, "call of Runner.AllToAllV", "", description, r.loadCounts)
	}
	var l launch
	if err == nil {
		l, err = r.launchCounts(context.Background(), spans, true)
	}
	if err != nil {
		return wrap(r.comm, op, err)
	}
	uses := r.plans[planKey{kind: withCounts}].uses
	return r.order.do(s, &orderedCall{op, description, first, uses, sides, l.queue})
}

// loadCounts makes the plan of all-to-alls with counts. The caller holds mu. Collective if there is none.
func (r *Runner) loadCounts(ctx context.Context) error {
	all := slices.Repeat(spans{{Bytes: mostPart}}, r.comm.Size())
	l, err := r.launchCounts(ctx, spansBetween{gpu.Ptr(0), gpu.Ptr(0), all, all, U8}, true)
	if err != nil {
		return err
	}
	r.keepPlan(planKey{kind: withCounts}, &plan{r: r, first: callKey{kind: withCounts}}, printOf(l, r.slotSizes, r.link, r.name))
	return nil
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
