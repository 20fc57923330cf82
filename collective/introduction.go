package collective

import (
	"cmp"
	"context"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// introduction is what a rank tells the others of its runner when it joins a group: what must be alike,
// and what it has from the group before.
type introduction struct {
	details                     string `wire:"8192"`
	carried                     bool   // it comes by Reform
	number, memories, preparedV uint64
	calls                       []callKey `wire:"2048"` // sorted
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

// mostIntroduced bounds the calls that a rank tells of: the calls of plans, and calls that are kept.
const mostIntroduced = 2 * mostCalls

var introductions = wire.For[introduction]()

// introduceAll exchanges the ranks' introductions, and returns their union. Its number is the number of the
// lowest rank that comes by Reform, or the largest that is proposed. Collective.
func (r *Runner) introduceAll(ctx context.Context, mine introduction, failed error) (all introduction, err error) {
	const name = "make a runner"
	told, err := exchangeValues(ctx, r, name, introductions, mine, mostIntroduction, failed)
	if err != nil {
		return introduction{}, err
	}
	for rank, c := range told {
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

// proposal is the number that a rank proposes for an object, and whether it carries the object from the group before.
type proposal struct {
	carried bool
	number  uint64
}

var proposals = wire.For[proposal]()

// numbered returns the number that all ranks give to an object which they make together. If ranks carry the
// object from the group before, it is the lowest such rank's number, and otherwise the largest that is proposed.
// Collective in groups that ranks have joined by Reform; elsewhere all have the same.
func (r *Runner) numbered(ctx context.Context, name string, carried bool, mine uint64) (uint64, error) {
	if !r.mixed {
		return mine, nil
	}
	told, err := exchangeValues(ctx, r, name, proposals, proposal{carried, mine}, mostText, nil)
	if err != nil {
		return 0, err
	}
	largest := uint64(0)
	for _, p := range told {
		if p.carried {
			return p.number, nil
		}
		largest = max(largest, p.number)
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

// exchangeValues is exchangeMost with values.
func exchangeValues[T any](ctx context.Context, r *Runner, name string, codec *wire.Codec[T], mine T, most int, failed error) ([]T, error) {
	texts, err := r.exchangeMost(ctx, name, string(codec.Marshal(&mine)), most, failed)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if all[rank], err = codec.Unmarshal([]byte(text)); err != nil {
			return nil, r.because(rank, mscclgo.ErrRemote, "collective: "+name, "its message is malformed: %w", err)
		}
	}
	return all, nil
}
