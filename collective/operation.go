package collective

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Operation is a call that is ready to run.
type Operation struct {
	orderedCall
	runner   *Runner
	prepare  func(context.Context) error // for the group of the runner. The caller holds mu
	exchange *Group                      // of an all-to-all with counts, else nil
	number   uint64                      // among the prepared all-to-alls with counts
	choice   Choice                      // with the blocks of the grid
	memories []*Memory                   // of the call
	validity *validity                   // nil before the first preparation
	closed   atomic.Bool
}

// ready makes it the operation of a launch, which is done by that algorithm and choice but for
// the number of blocks. A launch without a kernel does nothing.
func (o *Operation) ready(l launch, choice Choice, op, description string, memories []*Memory, sides []side) {
	r := o.runner
	choice.Blocks = l.shape.Grid.X
	description += r.name
	o.choice, o.memories = choice, memories
	o.validity = r.validity(o.validity, printOf(l, description))
	o.orderedCall = orderedCall{op: op, description: description, uses: []use{r, o.validity}, sides: sides, queue: l.queue}
	for _, m := range memories {
		o.uses = append(o.uses, m)
	}
}

// launch is a kernel with its arguments.
type launch struct {
	kernel *gpu.Kernel
	shape  gpu.LaunchConfig
	args   []any
	before []launch // that go first
	err    error    // why it cannot be made
}

// queue queues the kernel, if there is one, behind those before it.
func (l *launch) queue(s *gpu.Stream) error {
	if l.kernel == nil || l.err != nil {
		return l.err
	}
	for i := range l.before {
		if err := l.before[i].queue(s); err != nil {
			return err
		}
	}
	return l.kernel.Launch(s, l.shape, l.args...)
}

// Launch queues the operation once. All ranks launch the same, in the same order, which
// is kept on any streams; see [Runner.AllReduce].
//
// Errors: ErrInvalid when the operation, its memory, its runner or the stream is closed,
// and where another rank's call is a different one, which fails the group; the group's
// error when it has failed.
func (o *Operation) Launch(s *gpu.Stream) error {
	if o == nil || o.runner == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "collective: launch", "the operation is nil; Runner.Prepare makes one")
	}
	r := o.runner
	if err := r.begin(o.op); err != nil {
		return err
	}
	defer r.mu.Unlock()
	if o.closed.Load() {
		return r.invalidUse(o.op, "it is closed")
	}
	if o.validity.left() {
		return r.invalidUse(o.op, "it was prepared in the group before: Operation.Reform carries it to this one, or prepare it again")
	}
	if slices.ContainsFunc(o.memories, (*Memory).over) {
		return r.invalidUse(o.op, "its memory is closed")
	}
	if err := r.checkSides(s, o.op, o.sides); err != nil {
		return err
	}
	if o.exchange != nil {
		return r.exchangeParts(s, o.orderedCall, o.exchange)
	}
	return r.order.do(s, &o.orderedCall)
}

// checkStream returns the error of a stream that cannot run calls.
func (r *Runner) checkStream(s *gpu.Stream, op string) error {
	switch {
	case s == nil:
		return r.invalidUse(op, "the stream is nil")
	case s.Device() != r.comm.Device():
		return r.invalidUse(op, "the stream is of %v, the communicator of %v%s", s.Device(), r.comm.Device(), native.Twice(s.Device(), r.comm.Device()))
	}
	return r.at(s.Internal().Usable(op))
}

// side is a buffer of a call, of which it uses so many bytes.
type side struct {
	*gpu.Buffer
	bytes uint64
}

// checkSides returns the error of a stream, or of a buffer of which something is used, that a call cannot use.
func (r *Runner) checkSides(s *gpu.Stream, op string, sides []side) error {
	if err := r.checkStream(s, op); err != nil {
		return err
	}
	for _, x := range sides {
		if x.bytes == 0 {
			continue
		}
		if err := r.checkBuffer(s, x.Buffer, op, x.bytes); err != nil {
			return err
		}
	}
	return nil
}

// checkBuffer returns the error of a buffer whose first bytes a stream cannot use.
func (r *Runner) checkBuffer(s *gpu.Stream, b *gpu.Buffer, op string, bytes uint64) error {
	return r.at(s.Internal().Reaches(b, op, bytes))
}

// at adds this rank to an error that was made for the call.
func (r *Runner) at(err error) error {
	if err == nil {
		return nil // without an allocation
	}
	var typed *mscclgo.Error
	if errors.As(err, &typed) {
		return typed.At(r.comm.Rank(), mscclgo.NoRank)
	}
	return err
}

func (r *Runner) invalidUse(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(r.comm.Rank(), mscclgo.NoRank)
}

// Choice returns how the operation is done, with the number of blocks that its grid has on this
// rank.
func (o *Operation) Choice() Choice { return o.choice }

// Close ends the operation's use. What the call's memories have for it stays theirs;
// see [Memory]. It concerns this rank alone, and is safe to call twice.
func (o *Operation) Close() error {
	if o != nil {
		o.closed.Store(true)
	}
	return nil
}

// Prepare makes a call ready to run: the ranks compare it, load its kernel and agree on
// its blocks; algorithms that go through the host make channels at their first use with
// a pair of memories. A call of 0 elements needs none of these, and no memory. Collective. After an error of a
// context, on any rank, all may call it again, also ranks on which it worked. So it is with [Runner.PrepareAllToAllV] and
// [Runner.Load].
//
// Errors: ErrInvalid for an invalid call, on all ranks: on the others as ErrRemote,
// naming the rank, and where the ranks' calls differ; as for [devicecode.Load]
// and [communicator.Communicator.MaxBlocks].
func (r *Runner) Prepare(ctx context.Context, c Call) (*Operation, error) {
	if err := r.begin("collective: prepare " + c.String()); err != nil {
		return nil, err
	}
	defer r.mu.Unlock()
	o := &Operation{runner: r}
	o.prepare = func(ctx context.Context) error { return o.prepareCall(ctx, c) }
	if err := o.prepare(ctx); err != nil {
		return nil, err
	}
	return o, nil
}

// prepareCall is Prepare for an operation, which may be of a group before. The caller holds mu.
func (o *Operation) prepareCall(ctx context.Context, c Call) error {
	r := o.runner
	a, err := r.check(&c)
	if err != nil {
		err = r.invalid(&c, "prepare", err)
	}
	var l launch
	if err := r.prepareTogether(ctx, "prepare a call", c.details(), err, func(ctx context.Context) (err error) {
		if c.Count == 0 {
			return nil
		}
		if l, err = r.prepare(ctx, &c, a); err != nil {
			return r.invalid(&c, "prepare", err)
		}
		return nil
	}); err != nil {
		return err
	}
	var memories []*Memory
	var sides []side
	for _, m := range []*Memory{c.In, c.Out} {
		if m != nil {
			memories, sides = append(memories, m), append(sides, side{m.Buffer, m.Size()})
		}
	}
	o.ready(l, c.Choice, "collective: launch "+c.String(), c.details(), memories, sides)
	return nil
}

// details describes all of a call that is the same on all ranks.
func (c *Call) details() string {
	in := "in place"
	if !c.InPlace {
		in = "from " + c.In.String()
	}
	return fmt.Sprintf("%v, %s, to %v, by %s with %d blocks of %d threads", c, in, c.Out, c.Algorithm, c.Blocks, c.Threads)
}

// peers returns where all ranks' input and output start.
func (r *Runner) peers(c *Call) (in, out layout.PeerMemory) {
	out = c.Out.peers()
	in = out
	if !c.InPlace {
		in = c.In.peers()
	}
	// InOffset and OutOffset of the first ranks give the offsets of all.
	in.Shift(int(r.group.Size), 0, c.part()*uint64(c.Kind.Internal().InOffset(1, c.InPlace)))
	out.Shift(int(r.group.Size), 0, c.part()*uint64(c.Kind.Internal().OutOffset(1, c.InPlace)))
	me := r.group.Rank
	in.Set(uint64(me), c.input().Ptr()+gpu.Ptr(c.part()*uint64(c.Kind.Internal().InOffset(int(me), c.InPlace))))
	out.Set(uint64(me), c.Out.Ptr()+gpu.Ptr(c.part()*uint64(c.Kind.Internal().OutOffset(int(me), c.InPlace))))
	return in, out
}
