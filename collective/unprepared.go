package collective

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/mscclgo/mscclgo/gpu"
)

// AllReduce reduces count elements of all ranks' in into every rank's out. It may be
// done in place: out is in.
//
// # Calls on any buffer
//
// AllReduce and the methods like it need no preparation. They queue the call on s and
// return. Any buffer of the communicator's device will do, at any alignment, and any
// count; a call of 0 elements does nothing. All ranks make the same calls in the same
// order, on any streams: calls of one communicator are done in the order in which they
// are made, also on several streams and in graphs.
//
// The first call of a kind, type, operation and algorithm prepares what such calls need, and waits for
// the other ranks. The count decides on the algorithm. Other calls only queue; see [Runner.Load] and
// [Runner.DoContext]. After an ErrTimeout of a first call all may make it again if none has queued it.
// Otherwise the group fails, with an error of kind ErrInvalid or ErrTimeout. Calls may be captured. Captured
// calls are done when their graph is launched, in the order of the launches. A launch is an error once
// a buffer of its calls was closed.
//
// Other code may capture calls too, on a stream of [gpu.Device.WrapStream], all ranks alike, once such a
// call was made or loaded. All ranks launch its graphs in the same order among the calls; that is not
// checked. Such a graph comes behind earlier calls and before later ones, on any streams. The exception
// is calls that were made on the captured stream before its first such capture: these must have ended,
// unless the graph is launched on that stream. Runner, memories and communicator stay open as long as
// the graph is used.
//
// Errors: ErrInvalid for invalid buffers, streams, types and roots, and where another
// rank's call is a different one, which fails the group: see
// [communicator.Communicator.MatchCall]; ErrUnsupported for elements that the operation
// does not reduce. Nothing is queued then.
func (r *Runner) AllReduce(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op) error {
	return r.call(s, out, in, callKey{kind: AllReduce, typ: t, op: op, count: count})
}

// Do makes the call of c's Kind, as the method of that name: with c's Type and Count, and with its Op and Root
// where the kind has such. The rest of c counts nothing. See [Runner.AllReduce].
func (r *Runner) Do(s *gpu.Stream, out, in *gpu.Buffer, c Call) error {
	return r.call(s, out, in, c.key())
}

// DoContext is Do with a context, which ends what the first such call waits for, as the context of [Runner.Load] does.
// After an error of the context on any rank, all make the call again if none has queued it, as after an ErrTimeout. Calls
// that only queue do not look at it.
func (r *Runner) DoContext(ctx context.Context, s *gpu.Stream, out, in *gpu.Buffer, c Call) error {
	return r.callContext(ctx, s, out, in, c.key())
}

// AllGather concatenates the first count elements of in of all ranks, in rank order, in
// every rank's out. It may be done in place: in is this rank's part of out. See
// [Runner.AllReduce].
func (r *Runner) AllGather(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, callKey{kind: AllGather, typ: t, count: count})
}

// ReduceScatter reduces all ranks' in, of count elements for each rank, and leaves part
// r of the result in the out of rank r. It may be done in place: out is this rank's
// part of in. See [Runner.AllReduce].
func (r *Runner) ReduceScatter(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op) error {
	return r.call(s, out, in, callKey{kind: ReduceScatter, typ: t, op: op, count: count})
}

// AllToAll makes part p of this rank's in, of count elements, this rank's part of the
// out of rank p. See [Runner.AllReduce].
func (r *Runner) AllToAll(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, callKey{kind: AllToAll, typ: t, count: count})
}

// SendReceive copies count elements of in into the out of the next rank, around the
// ring of all ranks. See [Runner.AllReduce].
func (r *Runner) SendReceive(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, callKey{kind: SendReceive, typ: t, count: count})
}

// Broadcast copies count elements of the root's in into every rank's out. On other
// ranks in is not used and may be nil. It may be done in place: out is in. See
// [Runner.AllReduce].
func (r *Runner) Broadcast(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, callKey{kind: Broadcast, typ: t, count: count, root: root})
}

// Reduce reduces count elements of all ranks' in into the root's out. On other ranks out
// is not used and may be nil. It may be done in place: out is in. See [Runner.AllReduce].
func (r *Runner) Reduce(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op, root int) error {
	return r.call(s, out, in, callKey{kind: Reduce, typ: t, op: op, count: count, root: root})
}

// Gather concatenates the first count elements of in of all ranks, in rank order, in the
// root's out. On other ranks out is not used and may be nil. On the root it may be done
// in place: in is its part of out. See [Runner.AllReduce].
func (r *Runner) Gather(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, callKey{kind: Gather, typ: t, count: count, root: root})
}

// Scatter copies part r of the root's in, of count elements, into the out of rank r. On
// other ranks in is not used and may be nil. On the root it may be done in place: out is
// its part of in. See [Runner.AllReduce].
func (r *Runner) Scatter(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, callKey{kind: Scatter, typ: t, count: count, root: root})
}

// Load prepares what the first such calls on any buffer need, so that they only
// queue. Of a call it uses Kind, Type, Op, Count and Root. All ranks name the same calls. Collective each time, also
// where they are loaded.
//
// Errors: as for the calls.
func (r *Runner) Load(ctx context.Context, calls ...Call) error {
	if len(calls) == 0 {
		return nil
	}
	const name = "load calls"
	var keys []callKey
	var names []string
	for _, c := range calls {
		keys = append(keys, c.key())
		names = append(names, c.String())
	}
	if err := r.begin("collective: " + name); err != nil {
		return err
	}
	defer r.mu.Unlock()
	mine := strings.Join(names, "; ")
	if len(mine) > mostText {
		mine = fmt.Sprintf("%d calls of sum %x", len(calls), sha256.Sum256([]byte(mine)))
	}
	return r.prepareTogether(ctx, name, mine, nil, func(ctx context.Context) error {
		for _, key := range keys {
			if r.calls[key] != nil {
				continue
			}
			c, err := r.newCall(key)
			if err == nil {
				err = r.plan(ctx, c)
			}
			if err != nil {
				return wrap(r.comm, key.name(), err)
			}
		}
		return nil
	})
}

// callKey is a call on any buffers, without the buffers.
type callKey struct {
	kind  Kind
	typ   Type
	op    Op
	count uint64
	root  int
}

// key returns what of a call is the key of one on any buffers.
func (c *Call) key() callKey {
	k := callKey{kind: c.Kind, typ: c.Type, count: c.Count}
	if c.Kind.Reduces() {
		k.op = c.Op
	}
	if c.Kind.Rooted() {
		k.root = c.Root
	}
	return k
}

func (k callKey) call() Call {
	return Call{Kind: k.kind, Type: k.typ, Op: k.op, Count: k.count, Root: k.root}
}

// name is what errors of the call name.
func (k callKey) name() string {
	c := k.call()
	return "collective: " + c.String()
}

// mostCalls bounds the calls that are kept.
const mostCalls = 1024

// anyCall is a call on any buffers. It is kept for the next call with its count and root, and this rank alone can make it
// again.
type anyCall struct {
	orderedCall
	r         *Runner
	call      Call
	algorithm algorithm // as chosen, nil of 0 elements
	plan      *plan
	inBytes   uint64 // that this rank's buffers must have; 0 where it has no such
	outBytes  uint64
	piece     uint64     // bytes of a part that are moved at a time
	staged    [2]*launch // on stagings, of a piece and of the last one

	from, to gpu.Ptr // the addresses that steps are for
	steps    []step
}

// call makes a call on any buffer.
func (r *Runner) call(s *gpu.Stream, out, in *gpu.Buffer, key callKey) error {
	return r.callContext(context.Background(), s, out, in, key)
}

// callContext is call with a context for what the first such call waits for.
func (r *Runner) callContext(ctx context.Context, s *gpu.Stream, out, in *gpu.Buffer, key callKey) error {
	if r == nil || r.comm == nil {
		return r.made(key.name())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls[key]
	if c == nil || c.plan.validity.left() || r.closed.Load() {
		if err := r.usable(key.name()); err != nil {
			return err
		}
		var err error
		if c, err = r.newCall(key); err != nil {
			return wrap(r.comm, key.name(), err)
		}
	}
	if c.inBytes == 0 {
		in = nil
	}
	if c.outBytes == 0 {
		out = nil
	}
	c.sides = append(c.sides[:0], side{in, c.inBytes}, side{out, c.outBytes})
	defer clear(c.sides)
	if err := c.check(s, out, in); err != nil {
		return err
	}
	c.matched = false
	if c.plan == nil {
		if err := r.ready(ctx, s, c); err != nil {
			return wrap(r.comm, c.op, err)
		}
	}
	c.bind(in, out)
	return r.order.do(s, &c.orderedCall)
}

// ready gets a call its plan.
func (r *Runner) ready(ctx context.Context, s *gpu.Stream, c *anyCall) error {
	if r.planOf(c.planKey()) != nil {
		return r.plan(ctx, c)
	}
	c.matched = true
	return r.first(ctx, s, "call of its kind, type, operation and algorithm", ", or call Runner.Load", c.description, func(ctx context.Context) error {
		return r.plan(ctx, c)
	})
}

// first has a first call compared with the other ranks' before they prepare it. what and or are as for mayWait.
func (r *Runner) first(ctx context.Context, s *gpu.Stream, what, or, description string, prepare func(context.Context) error) error {
	if err := mayWait(s, what, or); err != nil {
		return err
	}
	if err := r.comm.MatchCall("the first " + description); err != nil {
		return err
	}
	// Nobody waits before the compiler has begun. Where this works the call is queued, and not made again.
	last := r.prepared.drop
	r.prepared.drop = nil
	err := prepare(r.comm.Internal().Operation(ctx, "make a first call"))
	if err != nil {
		err = errors.Join(err, r.prepared.undo())
	}
	r.prepared.drop = last
	return err
}

// newCall checks a call and chooses its algorithm.
func (r *Runner) newCall(key callKey) (*anyCall, error) {
	a := &anyCall{r: r, call: key.call()}
	c, rank, ranks := &a.call, r.comm.Rank(), r.comm.Size()
	text := c.String()
	a.orderedCall = orderedCall{op: "collective: " + text, description: text + r.name, queue: a.run}
	_, _, err := c.checkSize(ranks)
	if err == nil && c.Kind.Rooted() && (c.Root < 0 || c.Root >= ranks) {
		err = fmt.Errorf("the root is rank %d of %d", c.Root, ranks)
	}
	if err != nil || c.Count == 0 {
		return a, err
	}
	in, out := c.holds(rank, ranks)
	a.inBytes, a.outBytes = c.part()*uint64(in), c.part()*uint64(out)
	if c.Choice, a.algorithm, err = r.chooseUnprepared(c); err == nil {
		err = c.checkShape(a.algorithm)
	}
	return a, err
}

// plan gives a call its plan, and keeps both. The caller holds mu and has found the runner usable. Collective if there
// is no such plan.
func (r *Runner) plan(ctx context.Context, c *anyCall) (err error) {
	p := r.planOf(c.planKey())
	if p == nil {
		if p, err = r.newPlan(ctx, c); err != nil {
			return err
		}
	}
	if err := p.take(c); err != nil {
		return err
	}
	if len(r.calls) >= mostCalls {
		clear(r.calls)
	}
	r.calls[c.call.key()] = c
	return nil
}

// mayWait returns the error of a first call in a capture of other code: it would wait for
// the other ranks meanwhile, load and allocate. first says of what it is the first, and or what else
// may be done before the capture, if anything.
func mayWait(s *gpu.Stream, first, or string) error {
	if _, err := s.Internal().Enter(""); err != nil {
		return err
	}
	if s.Internal().CapturedByOthers() {
		return fmt.Errorf("a capture that other code began cannot hold the first %s, which waits for the other ranks; make one before the capture%s", first, or)
	}
	return nil
}

// check returns the error of invalid buffers or an invalid stream.
func (c *anyCall) check(s *gpu.Stream, out, in *gpu.Buffer) error {
	if err := c.r.checkSides(s, c.op, c.sides); err != nil {
		return err
	}
	if c.inBytes > 0 && c.outBytes > 0 && overlap(in.Ptr(), c.inBytes, out.Ptr(), c.outBytes) {
		rank, part := c.r.comm.Rank(), c.call.part()
		start := in.Ptr() + gpu.Ptr(part*uint64(c.call.Kind.Internal().OutOffset(rank, true)))
		if c.call.Kind.Internal().InOffset(rank, true) > 0 {
			start = in.Ptr() - gpu.Ptr(part*uint64(c.call.Kind.Internal().InOffset(rank, true)))
		}
		switch {
		case !c.call.Kind.Internal().InPlace() && !c.call.Kind.Rooted():
			return c.r.invalidUse(c.op, "input and output overlap, and %v is never in place", c.call.Kind)
		case out.Ptr() != start:
			return c.r.invalidUse(c.op, "input and output overlap, and not as in a call in place")
		}
	}
	return nil
}
