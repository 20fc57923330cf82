package collective

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
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
// The first call of a kind, type, operation and count prepares what it needs, for which
// it waits for the other ranks, and later ones only queue; see [Runner.Load]. After an ErrTimeout of a first call all may
// make it again if none has queued it: else the group fails, with an error of kind ErrInvalid or ErrTimeout. Calls may
// be captured. What a graph holds is done when it is launched, in the order of the
// launches. A launch is an error once a buffer of its calls was closed.
//
// Other code may capture them too, on a stream of [gpu.Device.WrapStream], all ranks alike,
// once such a call was made or loaded. Its graphs are launched on all ranks in the same order
// among the calls, which is not checked. They come behind the calls before and before those
// after, on any streams, but for calls that were made on the captured stream before its first
// such capture: these must have ended, unless the graph is launched on that stream. Runner,
// memories and communicator stay open as long as the graph is used.
//
// Errors: ErrInvalid for invalid buffers, streams, types and roots, and where another
// rank's call is a different one, which fails the group: see
// [communicator.Communicator.MatchCall]; ErrUnsupported for elements that the operation
// does not reduce. Nothing is queued then.
func (r *Runner) AllReduce(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op) error {
	return r.call(s, out, in, planKey{kind: AllReduce, typ: t, op: op, count: count})
}

// AllGather concatenates the first count elements of in of all ranks, in rank order, in
// every rank's out. It may be done in place: in is this rank's part of out. See
// [Runner.AllReduce].
func (r *Runner) AllGather(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, planKey{kind: AllGather, typ: t, count: count})
}

// ReduceScatter reduces all ranks' in, of count elements for each rank, and leaves part
// r of the result in the out of rank r. It may be done in place: out is this rank's
// part of in. See [Runner.AllReduce].
func (r *Runner) ReduceScatter(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op) error {
	return r.call(s, out, in, planKey{kind: ReduceScatter, typ: t, op: op, count: count})
}

// AllToAll makes part p of this rank's in, of count elements, this rank's part of the
// out of rank p. See [Runner.AllReduce].
func (r *Runner) AllToAll(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, planKey{kind: AllToAll, typ: t, count: count})
}

// SendReceive copies count elements of in into the out of the next rank, around the
// ring of all ranks. See [Runner.AllReduce].
func (r *Runner) SendReceive(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type) error {
	return r.call(s, out, in, planKey{kind: SendReceive, typ: t, count: count})
}

// Broadcast copies count elements of the root's in into every rank's out. On other
// ranks in is not used and may be nil. It may be done in place: out is in. See
// [Runner.AllReduce].
func (r *Runner) Broadcast(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, planKey{kind: Broadcast, typ: t, count: count, root: root})
}

// Reduce reduces count elements of all ranks' in into the root's out. On other ranks out
// is not used and may be nil. It may be done in place: out is in. See [Runner.AllReduce].
func (r *Runner) Reduce(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, op Op, root int) error {
	return r.call(s, out, in, planKey{kind: Reduce, typ: t, op: op, count: count, root: root})
}

// Gather concatenates the first count elements of in of all ranks, in rank order, in the
// root's out. On other ranks out is not used and may be nil. On the root it may be done
// in place: in is its part of out. See [Runner.AllReduce].
func (r *Runner) Gather(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, planKey{kind: Gather, typ: t, count: count, root: root})
}

// Scatter copies part r of the root's in, of count elements, into the out of rank r. On
// other ranks in is not used and may be nil. On the root it may be done in place: out is
// its part of in. See [Runner.AllReduce].
func (r *Runner) Scatter(s *gpu.Stream, out, in *gpu.Buffer, count uint64, t Type, root int) error {
	return r.call(s, out, in, planKey{kind: Scatter, typ: t, count: count, root: root})
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
	var keys []planKey
	var names []string
	for _, c := range calls {
		key := planKey{kind: c.Kind, typ: c.Type, count: c.Count}
		if c.Kind.Reduces() {
			key.op = c.Op
		}
		if c.Kind.Rooted() {
			key.root = c.Root
		}
		c = key.call()
		keys, names = append(keys, key), append(names, c.String())
	}
	if err := r.begin("collective: " + name); err != nil {
		return err
	}
	defer r.mu.Unlock()
	mine := strings.Join(names, "; ")
	if len(mine) > mostText {
		mine = fmt.Sprintf("%d calls of sum %x", len(calls), sha256.Sum256([]byte(mine)))
	}
	return r.prepareTogether(ctx, name, mine, nil, func(ctx context.Context, texts []string) error {
		if err := r.alike(texts, name); err != nil {
			return err
		}
		for _, key := range keys {
			if r.plans[key] != nil {
				continue
			}
			if _, err := r.newPlan(ctx, key, func(*plan) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	})
}

// planKey is what the plan of a call depends on.
type planKey struct {
	kind  Kind
	typ   Type
	op    Op
	count uint64
	root  int
}

func (k planKey) call() Call {
	return Call{Kind: k.kind, Type: k.typ, Op: k.op, Count: k.count, Root: k.root}
}

// name is what errors of the call name.
func (k planKey) name() string {
	c := k.call()
	return "collective: " + c.String()
}

// mostPlans bounds the plans that are kept.
const mostPlans = 1024

// plan is how a call on any buffer is done.
type plan struct {
	orderedCall
	r         *Runner
	call      Call
	algorithm algorithm
	kernel    launchable // none if the stagings' launches are prepared
	inBytes   uint64     // that this rank's buffers must have; 0 where it has no such
	outBytes  uint64
	reach     reach
	piece     uint64 // bytes of a part that are moved at a time
	staged    [2]*launch
	validity  *validity

	in, out *gpu.Buffer // of the call under way
	from    gpu.Ptr     // the addresses that steps are for
	to      gpu.Ptr
	steps   []step
}

// step is a launch, or a copy between a staging and the call's buffers.
type step struct {
	launch       *launch
	stage        *gpu.Buffer
	inwards      bool   // from the input to the staging, else from there to the output
	staged, user uint64 // offsets
	bytes        uint64
}

// call makes a call on any buffer.
func (r *Runner) call(s *gpu.Stream, out, in *gpu.Buffer, key planKey) error {
	if r == nil || r.comm == nil {
		return r.made(key.name())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.plans[key]
	first := p == nil
	if first || r.closed.Load() {
		if err := r.usable(key.name()); err != nil {
			return err
		}
		if err := r.prepareFirst(func(ctx context.Context) (err error) {
			p, err = r.newPlan(ctx, key, func(p *plan) error {
				if err := p.check(s, out, in); err != nil {
					return err
				}
				if err := mayWait(s, "call of its kind, type, operation and count", ", or call Runner.Load"); err != nil {
					return err
				}
				return r.comm.MatchCall("the first " + p.description)
			})
			return err
		}); err != nil {
			return err
		}
	}
	if err := p.check(s, out, in); err != nil {
		return err
	}
	if p.inBytes == 0 {
		in = nil
	}
	if p.outBytes == 0 {
		out = nil
	}
	p.in, p.out = in, out
	p.bind()
	p.buffers = append(p.buffers[:0], in, out)
	p.matched = first
	err := r.order.do(s, &p.orderedCall)
	p.in, p.out = nil, nil
	clear(p.buffers)
	return err
}

// mayWait returns the error of a first call in a capture of other code: it would wait for
// the other ranks meanwhile, load and allocate. first says of what it is the first, and or what else
// may be done before the capture, if anything.
func mayWait(s *gpu.Stream, first, or string) error {
	if _, err := native.Enter(s, ""); err != nil {
		return err
	}
	if native.CapturedByOthers(s) {
		return fmt.Errorf("a capture that other code began cannot hold the first %s, which waits for the other ranks; make one before the capture%s", first, or)
	}
	return nil
}

// check returns the error of invalid buffers or an invalid stream.
func (p *plan) check(s *gpu.Stream, out, in *gpu.Buffer) error {
	if err := p.r.checkStream(s, p.op); err != nil {
		return err
	}
	for _, b := range []struct {
		*gpu.Buffer
		bytes uint64
	}{{in, p.inBytes}, {out, p.outBytes}} {
		if b.bytes == 0 {
			continue
		}
		if err := p.r.checkBuffer(s, b.Buffer, p.op, b.bytes); err != nil {
			return err
		}
	}
	if p.inBytes > 0 && p.outBytes > 0 && overlap(in.Ptr(), p.inBytes, out.Ptr(), p.outBytes) {
		rank, part := p.r.comm.Rank(), p.call.part()
		start := in.Ptr() + gpu.Ptr(part*uint64(p.call.Kind.OutOffset(rank, true)))
		if p.call.Kind.InOffset(rank, true) > 0 {
			start = in.Ptr() - gpu.Ptr(part*uint64(p.call.Kind.InOffset(rank, true)))
		}
		switch {
		case !p.call.Kind.InPlace() && !p.call.Kind.Rooted():
			return p.r.invalidUse(p.op, "input and output overlap, and %v is never in place", p.call.Kind)
		case out.Ptr() != start:
			return p.r.invalidUse(p.op, "input and output overlap, and not as in a call in place")
		}
	}
	return nil
}

// newPlan makes the plan of a call and keeps it. ready is called with the call checked,
// and before anything waits for the other ranks. The caller holds mu and has found the
// runner usable. Collective where the plan needs what no call before did.
func (r *Runner) newPlan(ctx context.Context, key planKey, ready func(*plan) error) (*plan, error) {
	c := key.call()
	p := &plan{r: r, call: c}
	p.orderedCall = orderedCall{op: key.name(), description: c.String() + r.name, queue: p.run}
	err := p.choose()
	if err == nil {
		err = ready(p)
	}
	if err == nil && c.Count > 0 {
		err = p.load(ctx)
	}
	if err != nil {
		return nil, wrap(r.comm, p.op, err)
	}
	p.bindTo(r.before.plans[key])
	if len(r.plans) >= mostPlans {
		clear(r.plans)
		r.dropped = true
	}
	r.plans[key] = p
	r.prepared.made(func() error { delete(r.plans, key); return nil })
	return p, nil
}

// choose checks the call and chooses its algorithm.
func (p *plan) choose() (err error) {
	c, rank, ranks := &p.call, p.r.comm.Rank(), p.r.comm.Size()
	if err := c.checkNames(); err != nil {
		return err
	}
	if c.Kind.Rooted() && (c.Root < 0 || c.Root >= ranks) {
		return fmt.Errorf("the root is rank %d of %d", c.Root, ranks)
	}
	if _, _, err := c.checkSize(ranks); err != nil || c.Count == 0 {
		return err
	}
	in, out := c.holds(rank, ranks)
	p.inBytes, p.outBytes = c.part()*uint64(in), c.part()*uint64(out)
	if c.Choice, p.algorithm, err = p.r.chooseUnprepared(c); err != nil {
		return err
	}
	p.reach, p.piece = c.Kind.reach(p.algorithm), c.part()
	if m, ok := p.algorithm.(mapped); ok {
		if p.piece = m.piece(p.r, c); ranks == 1 {
			p.reach = reachNothing
		}
	}
	// Other steps do not lie between two kernels.
	c.Overlap = p.reach == reachNothing
	return c.checkShape(p.algorithm)
}

// load gets what the plan needs that is shared by plans. Collective, the first time.
func (p *plan) load(ctx context.Context) (err error) {
	r, c, ranks := p.r, &p.call, p.r.comm.Size()
	m, ok := p.algorithm.(mapped)
	if ok {
		if p.kernel, err = m.load(ctx, r, c); err != nil {
			return err
		}
		if p.kernel.fit < m.about().blocks {
			if p.algorithm, err = c.Kind.algorithm("direct"); err != nil {
				return err
			}
			p.reach, c.Overlap = c.Kind.reach(p.algorithm), false
			m = p.algorithm.(mapped)
			if p.kernel, err = m.load(ctx, r, c); err != nil {
				return err
			}
		}
	}
	switch p.reach {
	case reachNothing:
		return nil
	case reachOutputs:
		p.piece = r.pieces(c.part(), c.Kind.OutParts(ranks))
		_, err = r.side(ctx, forOut)
		return err
	case reachInputs:
		p.piece = r.pieces(c.part(), c.Kind.InParts(ranks))
		_, err = r.side(ctx, forIn)
		return err
	}
	if ok && c.Kind == Reduce {
		p.piece = r.pieces(c.part(), 1)
		if _, err = r.side(ctx, forIn); err == nil {
			_, err = r.side(ctx, forOut)
		}
		return err
	}
	p.kernel = launchable{}
	return p.prepareStaged(ctx)
}

// prepareStaged prepares the calls on the stagings themselves, for pieces and for the
// last one.
func (p *plan) prepareStaged(ctx context.Context) error {
	c, r := &p.call, p.r
	room, err := r.sides(ctx, c)
	if err != nil {
		return err
	}
	p.piece = piecesOf(c.part(), room/uint64(c.Kind.Parts(r.comm.Size())))
	size := uint64(c.Type.Size())
	for i, bytes := range []uint64{min(p.piece, p.call.part()), p.call.part() % p.piece} {
		if bytes == 0 {
			continue
		}
		piece := *c
		piece.Count = bytes / size
		l, err := p.algorithm.prepare(ctx, r, &piece)
		if err != nil {
			return err
		}
		p.staged[i] = &l
	}
	return nil
}

// bind makes the steps for the buffers of a call, unless they are the steps of the call
// before.
func (p *plan) bind() {
	var from, to gpu.Ptr
	if p.in != nil {
		from = p.in.Ptr()
	}
	if p.out != nil {
		to = p.out.Ptr()
	}
	if p.call.Count == 0 || p.steps != nil && from == p.from && to == p.to {
		return
	}
	p.from, p.to, p.steps = from, to, nil
	for at := uint64(0); at < p.call.part(); at += p.piece {
		bytes := min(p.piece, p.call.part()-at)
		switch p.reach {
		case reachNothing:
			p.local(at, bytes)
		case reachOutputs:
			p.throughOutput(at, bytes)
		case reachInputs:
			p.throughInput(at, bytes)
		default:
			if p.kernel.kernel != nil {
				p.reducePiece(at, bytes)
			} else {
				p.throughBoth(at, bytes)
			}
		}
	}
}

// local moves a piece by an algorithm that reaches no memory of peers.
func (p *plan) local(at, bytes uint64) {
	var in, out devicecode.PeerMemory
	me := p.me()
	in.Set(me, p.from+gpu.Ptr(at))
	out.Set(me, p.to+gpu.Ptr(at))
	p.kernelStep(in, out, bytes)
}

// me returns this rank's index in the kernels' memories.
func (p *plan) me() uint64 { return uint64(p.r.group.Rank) }

// throughOutput has the peers write a piece into the staging, from which it is copied
// to the output. This rank's own part is written to where it belongs at once.
func (p *plan) throughOutput(at, bytes uint64) {
	r, me, c := p.r, p.me(), &p.call
	stage := r.staging.out
	in, out := stage.peers(), stage.peers() // nobody reads a peer's input
	in.Set(me, p.from+gpu.Ptr(at))
	own := p.to + gpu.Ptr(at) // where this rank's own part of the piece belongs
	if _, pushes := p.algorithm.(*pushed); pushes {
		p.pushPiece(in, out, own, at, bytes)
		return
	}
	switch {
	case c.Kind.spec().gathered:
		// Part p of the kernel's output starts at p * bytes.
		out.Set(me, own+gpu.Ptr(me*c.part())-gpu.Ptr(me*bytes))
		p.kernelStep(in, out, bytes)
		for part := range uint64(c.Kind.OutParts(r.comm.Size())) {
			if part != me && p.outBytes > 0 {
				p.copyOut(stage.Buffer, part*bytes, part*c.part()+at, bytes)
			}
		}
	case c.Kind.Rooted() && r.comm.Rank() == c.Root:
		out.Set(me, own)
		p.kernelStep(in, out, bytes)
	default:
		p.kernelStep(in, out, bytes)
		p.copyOut(stage.Buffer, 0, at, bytes)
	}
}

// pushPiece is throughOutput of a pushed all-reduce or reduction to the root. This rank's shard
// is written to where it belongs at once if that is aligned as the stagings are.
func (p *plan) pushPiece(in, out devicecode.PeerMemory, own gpu.Ptr, at, bytes uint64) {
	stage := p.r.staging.out
	if c := &p.call; c.Kind.Rooted() && p.r.comm.Rank() != c.Root {
		p.kernelStep(in, out, bytes)
		return
	}
	first, end := p.shard(bytes)
	if own%line == 0 {
		out.Set(p.me(), own)
	} else {
		first, end = bytes, bytes
	}
	p.kernelStep(in, out, bytes)
	p.copyOut(stage.Buffer, 0, at, first)
	p.copyOut(stage.Buffer, end, at+end, bytes-end)
}

// shard returns where this rank's shard of a piece starts and ends, of data that are
// aligned to a line; see Shards of collective.cuh.
func (p *plan) shard(bytes uint64) (first, end uint64) {
	share := divideUp(divideUp(bytes, line), uint64(p.r.comm.Size())) * line
	return min(p.me()*share, bytes), min((p.me()+1)*share, bytes)
}

// reducePiece is throughBoth of a direct reduction to the root. This rank alone reads its
// shard of its input, and on the root writes it: where they lie, if that is aligned as the
// stagings are.
func (p *plan) reducePiece(at, bytes uint64) {
	r, me := p.r, p.me()
	in, out := r.staging.in.peers(), r.staging.out.peers()
	first, end := p.shard(bytes)
	if own := p.from + gpu.Ptr(at); own%line == 0 {
		in.Set(me, own)
		p.copyIn(r.staging.in.Buffer, 0, at, first)
		p.copyIn(r.staging.in.Buffer, end, at+end, bytes-end)
	} else {
		p.copyIn(r.staging.in.Buffer, 0, at, bytes)
	}
	if r.comm.Rank() != p.call.Root {
		p.kernelStep(in, out, bytes)
		return
	}
	if own := p.to + gpu.Ptr(at); own%line == 0 {
		out.Set(me, own)
	} else {
		first, end = bytes, bytes
	}
	p.kernelStep(in, out, bytes)
	p.copyOut(r.staging.out.Buffer, 0, at, first)
	p.copyOut(r.staging.out.Buffer, end, at+end, bytes-end)
}

// throughInput copies a piece into the staging, where the peers read it. This rank's
// own part is read where it lies if that is aligned as the stagings are.
func (p *plan) throughInput(at, bytes uint64) {
	r, me, c := p.r, p.me(), &p.call
	stage := r.staging.in
	in := stage.peers()
	var out devicecode.PeerMemory
	out.Set(me, p.to+gpu.Ptr(at))
	for part := range uint64(c.Kind.InParts(r.comm.Size())) {
		from := part*c.part() + at
		if c.Kind.spec().scattered && part == me && (p.from+gpu.Ptr(from))%16 == 0 {
			in.Set(me, p.from+gpu.Ptr(from)-gpu.Ptr(me*bytes))
			continue
		}
		p.copyIn(stage.Buffer, part*bytes, from, bytes)
	}
	p.kernelStep(in, out, bytes)
}

// throughBoth copies a piece into the staging of the input, and out of the staging of the
// output.
func (p *plan) throughBoth(at, bytes uint64) {
	c, rank := &p.call, p.r.comm.Rank()
	in, out := c.holds(rank, p.r.comm.Size())
	firstIn, firstOut := uint64(c.Kind.InOffset(rank, c.InPlace)), uint64(c.Kind.OutOffset(rank, c.InPlace))
	for part := range uint64(in) {
		p.copyIn(c.input().Buffer, (firstIn+part)*bytes, part*c.part()+at, bytes)
	}
	l := p.staged[0]
	if bytes < p.piece && at > 0 {
		l = p.staged[1]
	}
	p.steps = append(p.steps, step{launch: l})
	for part := range uint64(out) {
		p.copyOut(c.Out.Buffer, (firstOut+part)*bytes, part*c.part()+at, bytes)
	}
}

func (p *plan) kernelStep(in, out devicecode.PeerMemory, bytes uint64) {
	c := p.call
	c.stride = c.part()
	c.Count = bytes / uint64(c.Type.Size())
	l := p.algorithm.(mapped).launch(p.r, &c, p.kernel, in, out)
	p.steps = append(p.steps, step{launch: &l})
}

func (p *plan) copyIn(stage *gpu.Buffer, staged, user, bytes uint64) {
	p.steps = append(p.steps, step{stage: stage, inwards: true, staged: staged, user: user, bytes: bytes})
}

func (p *plan) copyOut(stage *gpu.Buffer, staged, user, bytes uint64) {
	p.steps = append(p.steps, step{stage: stage, staged: staged, user: user, bytes: bytes})
}

// run queues the steps.
func (p *plan) run(s *gpu.Stream) error {
	for i := range p.steps {
		t := &p.steps[i]
		var err error
		switch {
		case t.launch != nil:
			err = t.launch.queue(s)
		case t.inwards:
			err = s.Copy(t.stage, t.staged, p.in, t.user, t.bytes)
		default:
			err = s.Copy(p.out, t.user, t.stage, t.staged, t.bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
