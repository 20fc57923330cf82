package collective

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// tie is what graphs hold on to that a call was captured in: they are right as long as it is of the
// runner's group. Reform makes it one of the next group if the call is launched as before there.
type tie struct {
	r          *Runner
	print      fingerprint
	generation atomic.Uint64 // Runner.generation when it was right
}

// left reports whether the tie is of a group that the runner has left.
func (t *tie) left() bool { return t.generation.Load() != t.r.generation.Load() }

// wrong implements use.
func (t *tie) wrong() string {
	if t.left() {
		return "it was captured in a group before, and its calls were not carried to this one, or are done otherwise here: capture it again"
	}
	return ""
}

// tied returns the tie of what has this print in the runner's group: the one of the group before, if
// there is one and nothing has changed.
func (r *Runner) tied(before *tie, print fingerprint) *tie {
	t := before
	if t == nil || t.print != print {
		t = &tie{r: r, print: print}
	}
	t.generation.Store(r.generation.Load())
	return t
}

// fingerprint tells launches apart.
type fingerprint [sha256.Size]byte

// printOf returns the fingerprint of launches, and of other values.
func printOf(of ...any) (f fingerprint) {
	h := sha256.New()
	var add func(any)
	add = func(v any) {
		switch v := v.(type) {
		case launch:
			for _, l := range v.before {
				add(l)
			}
			fmt.Fprintf(h, "kernel %p %+v\n", v.kernel, v.shape)
			for _, arg := range v.args {
				add(arg)
			}
		case *gpu.Buffer:
			fmt.Fprintf(h, "%#x and %d bytes\n", uint64(v.Ptr()), v.Size())
		default: // has no pointers but to kernels
			fmt.Fprintf(h, "%T %+v\n", v, v)
		}
	}
	for _, v := range of {
		add(v)
	}
	h.Sum(f[:0])
	return f
}

// bindTo sets the plan's tie, to that of the same call's plan in the group before if that has one. The
// plan is loaded.
func (p *plan) bindTo(ctx context.Context, before *plan) error {
	r, c := p.r, p.call
	of := []any{p.description, c.Choice, p.algorithm.name, p.reach, p.piece, p.fit}
	for _, l := range p.staged {
		if l != nil {
			of = append(of, *l)
		}
	}
	switch {
	case c.Count == 0:
	case p.algorithm.through == bySlots:
		l, err := r.rootedSlots(ctx, &c, nil, nil)
		if err != nil {
			return err
		}
		of = append(of, l)
	case p.kernel != nil:
		// Others' stagings are no part of it: which there are by now depends on the order of calls.
		var in, out devicecode.PeerMemory
		if p.reach == reachInputs || p.reach == reachBoth {
			in = r.staging.in.peers()
		}
		if p.reach == reachOutputs || p.reach == reachBoth {
			out = r.staging.out.peers()
		}
		c.stride, c.Count = c.part(), min(p.piece, c.part())/uint64(c.Type.Size())
		of = append(of, r.launchOf(&c, p.algorithm, p.kernel, p.fit, in, out))
	}
	var old *tie
	if before != nil {
		old = before.tie
	}
	p.tie = r.tied(old, printOf(of...))
	p.uses = []use{r, p.tie}
	return nil
}
