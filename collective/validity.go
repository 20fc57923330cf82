package collective

import (
	"crypto/sha256"
	"fmt"
	"sync/atomic"

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
			if v == nil {
				break
			}
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
