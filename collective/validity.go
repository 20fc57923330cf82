package collective

import (
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// validity says whether graphs in which a call was captured are right: they are as long as it is of the
// runner's group. Reform carries it to the next group if the call is launched as before there.
type validity struct {
	r          *Runner
	print      fingerprint
	generation atomic.Uint64 // Runner.generation when it was right
}

// left reports whether it is of a group that the runner has left.
func (t *validity) left() bool { return t.generation.Load() != t.r.generation.Load() }

// wrong implements use.
func (t *validity) wrong() string {
	if t.left() {
		return "it was captured in a group before, and its calls were not carried to this one, or are done otherwise here: capture it again"
	}
	return ""
}

// validity returns the validity of what has this print in the runner's group: the earlier group's, if
// there is one and nothing has changed.
func (r *Runner) validity(before *validity, print fingerprint) *validity {
	t := before
	if t == nil || t.print != print {
		t = &validity{r: r, print: print}
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

// bindTo sets the plan's validity. before is the same call's plan in the group before, or nil. The
// plan is loaded.
func (p *plan) bindTo(before *plan) {
	r, c := p.r, p.call
	of := []any{p.description, c.Choice, p.algorithm.about().name, p.reach, p.piece, p.kernel.fit}
	for _, l := range p.staged {
		if l != nil {
			of = append(of, *l)
		}
	}
	switch {
	case c.Count == 0:
	case p.kernel.kernel != nil:
		// Others' stagings are no part of it: which there are by now depends on the order of calls.
		var in, out devicecode.PeerMemory
		if p.reach == reachInputs || p.reach == reachBoth {
			in = r.staging.in.peers()
		}
		if p.reach == reachOutputs || p.reach == reachBoth {
			out = r.staging.out.peers()
		}
		c.stride, c.Count = c.part(), min(p.piece, c.part())/uint64(c.Type.Size())
		of = append(of, p.algorithm.(mapped).launch(r, &c, p.kernel, in, out))
	}
	var old *validity
	if before != nil {
		old = before.validity
	}
	p.validity = r.validity(old, printOf(of...))
	p.uses = []use{r, p.validity}
}
