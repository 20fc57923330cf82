package communicator

import (
	"context"

	"github.com/mscclgo/mscclgo"
)

// operation is a collective call of the user's, whose steps are exchanges. The calls that package collective makes one
// after the other may be one operation; see Operation of inside.Communicator.
//
// A rank whose context ends in a step may have sent its part: then the others go on to the next step, and when
// that rank makes the call again, its first step meets their later one. Their calls fail, so that they make them again
// too. The rank in its first step repeats it, and meets their first.
type operation struct {
	c      *Communicator
	name   string // the same on all ranks
	number uint64 // of this rank's collective calls, or of another's that has made more; the same on all once they have met
	step   uint32 // the number of the exchange that is under way or was last, from 1
}

// mostSteps bounds how often a rank repeats a first step.
const mostSteps = 64

type operationKey struct{}

// operation returns the operation of this communicator that a context is for, or nil.
func (c *Communicator) operation(ctx context.Context) *operation {
	if o, ok := ctx.Value(operationKey{}).(*operation); ok && o.c == c {
		return o
	}
	return nil
}

// then returns the call that follows k in the same operation.
func (k *call) then(name string) *call { return &call{c: k.c, op: k.op, name: name, of: k.of} }

// number returns the operation's number, or 0 for a call of two ranks.
func (k *call) number() uint64 {
	if k.of == nil {
		return 0
	}
	return k.of.number
}

// apart returns the rank in the first of the steps in which the ranks are, or NoRank if all are in one.
func (o *operation) apart(all []header) (first int) {
	step, differ := o.step, false
	first = o.c.Rank()
	for rank, h := range all {
		if h.operation == o.name && h.step != o.step {
			differ = true
			if h.step < step {
				first, step = rank, h.step
			}
		}
	}
	if !differ {
		return mscclgo.NoRank
	}
	return first
}

// meet takes the number of the rank that has made most calls, with which all go on.
func (o *operation) meet(all []header) {
	for _, h := range all {
		o.number = max(o.number, h.number)
	}
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	o.c.begun = max(o.c.begun, o.number)
}
