package collective

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// introduction is what a rank tells the others of its runner when it joins a group: what must be alike,
// and what it has from the group before.
type introduction struct {
	details             string `wire:"8192"`
	proposal                   // of the runner, which is carried if it comes by Reform
	links               linkMessage
	memories, preparedV uint64
	calls               []callKey `wire:"2048"` // sorted
}

// introduction returns this rank's.
func (r *Runner) introduction(details string, number proposal, links linkMessage) introduction {
	c := introduction{details: details, proposal: number, links: links, memories: r.numbers, preparedV: r.preparedV}
	for _, p := range r.plans {
		c.calls = append(c.calls, p.first)
	}
	c.calls = known(slices.AppendSeq(c.calls, maps.Keys(r.calls)))
	return c
}

// known returns calls, each once, in the same order on all ranks.
func known(calls []callKey) []callKey {
	slices.SortFunc(calls, callKey.compare)
	calls = slices.Compact(calls)
	return calls[:min(len(calls), mostIntroduced)]
}

// compare orders keys, alike on all ranks.
func (k callKey) compare(o callKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.typ, o.typ), cmp.Compare(k.op, o.op), cmp.Compare(k.count, o.count), cmp.Compare(k.root, o.root))
}

// mostIntroduced bounds the calls that a rank tells of: the calls of plans, and calls that are kept.
const mostIntroduced = 2 * mostCalls

var introductions = wire.For[introduction]()

// introduceAll exchanges the ranks' introductions, and returns their union, with the links that all have. Its number is the number of the
// lowest rank that comes by Reform, or the largest that is proposed. Collective.
func (r *Runner) introduceAll(ctx context.Context, mine introduction, failed error) (all introduction, err error) {
	const name = "make a runner"
	told, err := exchangeValues(ctx, r, name, introductions, mine, failed)
	if err != nil {
		return introduction{}, err
	}
	all.links = mine.links
	for rank, c := range told {
		if c.details != mine.details {
			return introduction{}, r.differs(rank, name, c.details, mine.details)
		}
		all.proposal, all.links = all.or(c.proposal), all.links.and(c.links)
		all.memories, all.preparedV = max(all.memories, c.memories), max(all.preparedV, c.preparedV)
		all.calls = append(all.calls, c.calls...)
	}
	all.calls = known(all.calls)
	return all, nil
}

// proposal is the number that a rank proposes for an object, and whether it carries the object from the group before.
type proposal struct {
	carried bool
	number  uint64
}

var proposals = wire.For[proposal]()

// or returns which proposal counts: p, which counts among lower ranks', or the next rank's. If ranks carry the object
// from the group before, the lowest such rank's does, and otherwise the largest number.
func (p proposal) or(next proposal) proposal {
	if p.carried || !next.carried && p.number >= next.number {
		return p
	}
	return next
}

// exchangeValues is exchange with values.
func exchangeValues[T any](ctx context.Context, r *Runner, name string, codec *wire.Codec[T], mine T, failed error) ([]T, error) {
	texts, err := r.exchange(ctx, name, string(codec.Marshal(&mine)), failed)
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
