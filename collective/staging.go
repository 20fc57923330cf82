package collective

import (
	"context"

	"github.com/mscclgo/mscclgo"
)

// defaultScratch is the default of Options.Scratch.
const defaultScratch = 64 << 20

// staging is memory through which calls on any buffer reach the peers, who do not
// know the buffer: they read and write the staging, and the stream copies.
//
// A rank may use its own staging between its operations, and its peers' staging during an
// operation, as with the memory of a prepared call. An operation writes into a peer's output
// only when the peer has begun it. By then the earlier work of the peer's stream is done, such
// as to copy out what the operation before left there. And it ends on a rank only when no
// peer reads or writes that rank's memory any more. So pieces, and calls, follow each other
// through the same memory.
type staging struct {
	halves [2]*Memory // views of the output's; see sides
	room   uint64     // bytes of the input's, and of the output's, which are allocated when first needed
	lines  uint64     // bytes that an inbox must hold for chooseLines
}

// leastLines is staging.lines of runners. Inboxes that hold less take more pieces than a staging.
const leastLines = 4 << 20

// side returns the input's or the output's staging. Collective the first time.
func (r *Runner) side(ctx context.Context, at purpose) (*Memory, error) {
	return r.allocateOnce(ctx, at, r.staging.room, 0)
}

// sides prepares the stagings of a call that reaches inputs and outputs, and returns the bytes of each. On
// several hosts, where all calls do, they are in one memory: calls are done in place there, or each side
// is a half. Collective the first time.
func (r *Runner) sides(ctx context.Context, c *Call) (room uint64, err error) {
	if len(r.comm.Hosts()) == 1 {
		if c.In, err = r.side(ctx, forIn); err == nil {
			c.Out, err = r.side(ctx, forOut)
		}
		return r.staging.room, err
	}
	all, err := r.side(ctx, forOut)
	if err != nil {
		return 0, err
	}
	if c.Kind.Internal().InPlace() {
		c.InPlace, c.Out = true, all
		return all.Size(), nil
	}
	half := all.Size() / 2 / line * line
	if s := &r.staging; s.halves[0] == nil || s.halves[0].whole != all {
		for i := range s.halves {
			if s.halves[i], err = all.Slice(uint64(i)*half, half); err != nil {
				return 0, err
			}
		}
	}
	c.In, c.Out = r.staging.halves[0], r.staging.halves[1]
	return half, nil
}

// reach is which of the user's memory peers reach in an algorithm.
type reach int

const (
	reachNothing reach = iota // data go through memory of the communicator's or the runner's
	reachOutputs              // peers write outputs, and nobody reads another's input
	reachShards               // likewise; of an output each rank makes its shard
	reachInputs               // peers read inputs, and nobody writes another's output
	reachToRoot               // each rank reads its shard of all inputs, and writes it at the root
	reachBoth
)

// inputs and outputs report whether peers reach these, but for reachBoth.
func (r reach) inputs() bool  { return r == reachInputs || r == reachToRoot }
func (r reach) outputs() bool { return r == reachOutputs || r == reachShards || r == reachToRoot }

// reach returns what an algorithm reaches of the peers' memory.
func (r *Runner) reach(k Kind, a algorithm) reach {
	switch m, ok := a.(mapped); {
	case !ok:
		return reachBoth
	case r.comm.Size() == 1:
		return reachNothing
	default:
		return m.reach(k)
	}
}

// chooseUnprepared returns the algorithm of a call on any buffer: the tuning's first that
// needs a copy on one side at most, or its first of all; or the choice of chooseLines.
func (r *Runner) chooseUnprepared(c *Call) (Choice, algorithm, error) {
	choice, ok, _ := r.look(c, func(a algorithm) bool { return r.reach(c.Kind, a) < reachToRoot })
	if !ok {
		var err error
		if choice, err = r.choose(c); err != nil {
			return Choice{}, nil, err
		}
	}
	a, err := c.Kind.algorithm(choice.Algorithm)
	if err == nil && a.about().instead != "" && !ok {
		choice.Algorithm = a.about().instead
		if a, err = c.Kind.algorithm(choice.Algorithm); err == nil {
			choice.Threads = min(choice.Threads, a.about().mostThreads())
		}
	}
	if err == nil && r.reach(c.Kind, a) != reachNothing {
		if lines, ok := r.chooseLines(c); ok {
			choice = lines
			a, err = c.Kind.algorithm(choice.Algorithm)
		}
	}
	return choice, a, err
}

// piecesOf returns the bytes of pieces of a part, at most so many: all alike but for the last
// one, and a multiple of a line. Shards of an all-reduce thus start in lines as the shards of
// whole buffers do.
func piecesOf(part, most uint64) uint64 {
	most = max(most/line, 1) * line
	return divideUp(divideUp(part, divideUp(part, most)), line) * line
}

// checkScratch returns the bytes of a staging.
func checkScratch(asked uint64, ranks, rank int) (uint64, error) {
	const most = 1 << 40
	if asked > most {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: make a runner", "a scratch of %d bytes is more than %d", asked, uint64(most)).At(rank, mscclgo.NoRank)
	}
	if asked == 0 {
		asked = defaultScratch
	}
	return max(asked, 2*uint64(ranks)*line), nil
}
