package collective

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// introduction is what a rank tells the others of its runner when it joins a group: what must be alike,
// and what it has from the group before.
type introduction struct {
	details                     string
	carried                     bool // it comes by Reform
	number, memories, preparedV uint64
	calls                       []callKey // sorted
}

// introduction returns this rank's. number is the number that it proposes for the runner.
func (r *Runner) introduction(details string, carried bool, number uint64) introduction {
	c := introduction{details: details, carried: carried, number: number, memories: r.numbers, preparedV: r.preparedV}
	for key := range r.before.calls {
		c.calls = append(c.calls, key)
	}
	slices.SortFunc(c.calls, callKey.compare)
	c.calls = c.calls[:min(len(c.calls), mostIntroduced)]
	return c
}

// compare orders keys, alike on all ranks.
func (k callKey) compare(o callKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.typ, o.typ), cmp.Compare(k.op, o.op), cmp.Compare(k.count, o.count), cmp.Compare(k.root, o.root))
}

func (c *introduction) encode() string {
	w := wire.NewWriter(len(c.details) + 64 + len(c.calls)*callKeyBytes)
	w.String(c.details)
	w.Bool(c.carried)
	for _, v := range []uint64{c.number, c.memories, c.preparedV} {
		w.U64(v)
	}
	w.U32(uint32(len(c.calls)))
	for _, k := range c.calls {
		w.U8(uint8(k.kind))
		w.U8(uint8(k.typ))
		w.U8(uint8(k.op))
		w.U64(k.count)
		w.U32(uint32(k.root))
	}
	return string(w.Bytes())
}

const (
	callKeyBytes   = 15
	mostIntroduced = 2 * mostCalls // calls that a rank tells of: those of plans, and those that are kept
)

func decodeIntroduction(text string) (c introduction, err error) {
	r := wire.NewReader([]byte(text))
	c.details, c.carried = r.String(mostText), r.Bool()
	for _, v := range []*uint64{&c.number, &c.memories, &c.preparedV} {
		*v = r.U64()
	}
	n := r.U32()
	if n > mostIntroduced {
		return c, fmt.Errorf("it has %d calls, more than %d", n, mostIntroduced)
	}
	for range n {
		c.calls = append(c.calls, callKey{kind: Kind(r.U8()), typ: Type(r.U8()), op: Op(r.U8()), count: r.U64(), root: int(r.U32())})
	}
	return c, r.End()
}

// introduceAll exchanges the ranks' introductions, and returns their union. Its number is the number of the
// lowest rank that comes by Reform, or the largest that is proposed. Collective.
func (r *Runner) introduceAll(ctx context.Context, mine introduction, failed error) (all introduction, err error) {
	const name = "make a runner"
	texts, err := r.exchangeMost(ctx, name, mine.encode(), mostIntroduction, failed)
	if err != nil {
		return introduction{}, err
	}
	for rank, text := range texts {
		c, err := decodeIntroduction(text)
		if err != nil {
			return introduction{}, r.because(rank, mscclgo.ErrRemote, "collective: "+name, "its message is malformed: %w", err)
		}
		if c.details != mine.details {
			return introduction{}, r.because(rank, mscclgo.ErrInvalid, "collective: "+name, "it has %s, this rank %s", c.details, mine.details)
		}
		switch {
		case c.carried && !all.carried:
			all.carried, all.number = true, c.number
		case !c.carried && !all.carried:
			all.number = max(all.number, c.number)
		}
		all.memories, all.preparedV = max(all.memories, c.memories), max(all.preparedV, c.preparedV)
		all.calls = append(all.calls, c.calls...)
	}
	slices.SortFunc(all.calls, callKey.compare)
	all.calls = slices.Compact(all.calls)
	all.calls = all.calls[:min(len(all.calls), mostIntroduced)]
	return all, nil
}

// numbered returns the number that all ranks give to an object which they make together. If ranks carry the
// object from the group before, it is the lowest such rank's number, and otherwise the largest that is proposed.
// Collective in groups that ranks have joined by Reform; elsewhere all have the same.
func (r *Runner) numbered(ctx context.Context, name string, carried bool, mine uint64) (uint64, error) {
	if !r.mixed {
		return mine, nil
	}
	w := wire.NewWriter(9)
	w.Bool(carried)
	w.U64(mine)
	texts, err := r.exchange(ctx, name, string(w.Bytes()), nil)
	if err != nil {
		return 0, err
	}
	largest := uint64(0)
	for rank, text := range texts {
		read := wire.NewReader([]byte(text))
		carried, number := read.Bool(), read.U64()
		if err := read.End(); err != nil {
			return 0, r.because(rank, mscclgo.ErrRemote, "collective: "+name, "its number is malformed: %w", err)
		}
		if carried {
			return number, nil
		}
		largest = max(largest, number)
	}
	return largest, nil
}

// numberMemory gives a memory the number that all ranks know it by.
func (r *Runner) numberMemory(ctx context.Context, m *Memory, carried bool) error {
	number, err := r.numbered(ctx, "number a memory", carried, m.number)
	if err != nil {
		return err
	}
	m.number = number
	r.numbers = max(r.numbers, number+1)
	return nil
}
