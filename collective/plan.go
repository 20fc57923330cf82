package collective

import (
	"context"
)

// plan is how calls on any buffers of a kind, type, operation and choice are done. Counts and roots are its arguments. A
// tuning has few choices, so all plans are kept. Groups have one plan, which is for all-to-alls with counts too.
type plan struct {
	r         *Runner
	algorithm algorithm // nil of calls of 0 elements
	reach     reach
	call      Call       // on the stagings, if peers reach inputs and outputs there
	kernel    launchable // of an algorithm that has one
	room      uint64     // bytes of a staging
	first     callKey    // the call that made it
	validity  *validity
	uses      []use // of all its calls
}

// planKey is what a plan is for.
type planKey struct {
	kind Kind
	typ  Type
	op   Op
	Choice
}

// inGroups is the kind of the plan of groups.
const inGroups Kind = 255

func (c *anyCall) planKey() planKey {
	return planKey{c.call.Kind, c.call.Type, c.call.Op, c.call.Choice}
}

// planOf returns the plan of a key that the runner has in its group, or nil.
func (r *Runner) planOf(key planKey) *plan {
	if p := r.plans[key]; p != nil && !p.validity.left() {
		return p
	}
	return nil
}

// newPlan makes and keeps the plan of a call. The caller holds mu. Collective.
func (r *Runner) newPlan(ctx context.Context, c *anyCall) (*plan, error) {
	key := c.planKey()
	p := &plan{r: r, algorithm: c.algorithm, first: c.call.key()}
	// The launches of the plan's calls differ from this call's, of a line, in counts and roots alone.
	p.call = Call{Kind: key.kind, Type: key.typ, Op: key.op, Count: line / uint64(key.typ.Size()), Choice: key.Choice}
	var example launch
	if p.algorithm != nil {
		var err error
		if example, err = p.load(ctx); err != nil {
			return nil, err
		}
	}
	r.keepPlan(key, p, p.print(example))
	return p, nil
}

// keepPlan keeps a plan. print is of all that its calls have in common. The caller holds mu.
func (r *Runner) keepPlan(key planKey, p *plan, print fingerprint) {
	var old *validity
	if before := r.plans[key]; before != nil {
		old = before.validity
	}
	p.validity = r.validity(old, print)
	p.uses = []use{r, p.validity}
	r.plans[key] = p
	r.prepared.made(func() error {
		delete(r.plans, key)
		clear(r.calls) // which this rank makes again
		return nil
	})
}

// load gets what calls of the plan share, and returns the launch of one. Collective.
func (p *plan) load(ctx context.Context) (example launch, err error) {
	r, c := p.r, &p.call
	m, here := p.algorithm.(mapped)
	if here {
		if p.kernel, err = m.load(ctx, r, c); err == nil && p.kernel.fit < m.about().blocks {
			if p.algorithm, err = c.Kind.algorithm(m.about().fallback); err != nil {
				return launch{}, err
			}
			m = p.algorithm.(mapped)
			p.kernel, err = m.load(ctx, r, c)
		}
		if err != nil {
			return launch{}, err
		}
	}
	p.reach, p.room = r.reach(c.Kind, p.algorithm), r.staging.room
	if p.reach == reachBoth {
		if p.room, err = r.sides(ctx, c); err != nil {
			return launch{}, err
		}
		return r.prepare(ctx, c, p.algorithm)
	}
	// Stagings that only other calls need are no part of the example: the order of calls decides which there are.
	var in, out *Memory
	if p.reach.inputs() {
		in, err = r.side(ctx, forIn)
	}
	if p.reach.outputs() && err == nil {
		out, err = r.side(ctx, forOut)
	}
	if err != nil {
		return launch{}, err
	}
	return m.launch(r, c, p.kernel, in.peers(), out.peers()), nil
}

// print returns the fingerprint of what the launches of the plan's calls have in common, and of what decides on the
// choice and the pieces of a call.
func (p *plan) print(example launch) fingerprint {
	r := p.r
	of := []any{r.name, p.first.kind, p.first.typ, p.first.op, p.call.Choice, p.reach, p.kernel.fit, p.room, example}
	if p.algorithm != nil {
		of = append(of, p.algorithm.about().name)
	}
	of = append(of, r.link, r.lines, r.group.ScratchSize, r.comm.Hosts())
	if r.links != nil {
		of = append(of, r.links.fabric)
	}
	return printOf(of...)
}

// take has a call be done by the plan.
func (p *plan) take(c *anyCall) error {
	r, part := p.r, c.call.part()
	c.plan, c.uses = p, p.uses
	if p.algorithm == nil {
		return nil
	}
	// Other steps do not lie between two kernels.
	c.call.Overlap = p.reach == reachNothing
	if p.reach == reachNothing {
		c.piece = p.algorithm.(mapped).piece(r, &c.call)
		return nil
	}
	c.piece = piecesOf(part, p.room/uint64(c.call.Kind.Parts(r.comm.Size())))
	if p.reach != reachBoth {
		return nil
	}
	c.call.In, c.call.Out, c.call.InPlace = p.call.In, p.call.Out, p.call.InPlace
	for i, bytes := range []uint64{min(c.piece, part), part % c.piece} {
		if bytes == 0 {
			continue
		}
		piece := c.call
		piece.Count = bytes / uint64(piece.Type.Size())
		l, err := r.prepare(context.Background(), &piece, p.algorithm)
		if err != nil {
			return err
		}
		c.staged[i] = &l
	}
	return nil
}
