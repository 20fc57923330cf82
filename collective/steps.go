package collective

import (
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// step is a launch, or a copy between a staging and the call's buffers.
type step struct {
	launch       *launch
	stage        *gpu.Buffer
	inwards      bool   // from the input to the staging, else from there to the output
	staged, user uint64 // offsets
	bytes        uint64
}

// bind makes the steps for the buffers of a call, or nil where it uses none, unless they are the steps of the call
// before.
func (a *anyCall) bind(in, out *gpu.Buffer) {
	var from, to gpu.Ptr
	if in != nil {
		from = in.Ptr()
	}
	if out != nil {
		to = out.Ptr()
	}
	if a.call.Count == 0 || a.steps != nil && from == a.from && to == a.to {
		return
	}
	a.from, a.to, a.steps = from, to, nil
	for at := uint64(0); at < a.call.part(); at += a.piece {
		bytes := min(a.piece, a.call.part()-at)
		switch a.plan.reach {
		case reachNothing:
			a.local(at, bytes)
		case reachOutputs:
			a.throughOutput(at, bytes)
		case reachShards, reachToRoot:
			a.throughShards(at, bytes)
		case reachInputs:
			a.throughInput(at, bytes)
		case reachBoth:
			a.throughBoth(at, bytes)
		}
	}
}

// local moves a piece by an algorithm that reaches no memory of peers.
func (a *anyCall) local(at, bytes uint64) {
	var in, out layout.PeerMemory
	me := a.me()
	in.Set(me, a.from+gpu.Ptr(at))
	out.Set(me, a.to+gpu.Ptr(at))
	a.kernelStep(in, out, bytes)
}

// me returns this rank's index in the kernels' memories.
func (a *anyCall) me() uint64 { return uint64(a.r.group.Rank) }

// throughOutput has the peers write a piece into the staging, from which it is copied
// to the output. This rank's own part is written to where it belongs at once.
func (a *anyCall) throughOutput(at, bytes uint64) {
	r, me, c := a.r, a.me(), &a.call
	stage := r.own[forOut]
	in, out := stage.peers(), stage.peers() // nobody reads a peer's input
	in.Set(me, a.from+gpu.Ptr(at))
	own := a.to + gpu.Ptr(at) // where this rank's own part of the piece belongs
	switch {
	case c.Kind.spec().gathered:
		// Part p of the kernel's output starts at p * bytes.
		out.Set(me, own+gpu.Ptr(me*c.part())-gpu.Ptr(me*bytes))
		a.kernelStep(in, out, bytes)
		for part := range uint64(c.Kind.OutParts(r.comm.Size())) {
			if part != me && a.outBytes > 0 {
				a.copyOut(stage.Buffer, part*bytes, part*c.part()+at, bytes)
			}
		}
	case c.Kind.Rooted() && r.comm.Rank() == c.Root:
		out.Set(me, own)
		a.kernelStep(in, out, bytes)
	default:
		a.kernelStep(in, out, bytes)
		a.copyOut(stage.Buffer, 0, at, bytes)
	}
}

// throughShards is throughOutput of an all-reduce or a reduction to the root, and through the staging of the input too
// if peers reach that. This rank's shard is read and written where it belongs if that is aligned as the stagings are.
func (a *anyCall) throughShards(at, bytes uint64) {
	stage := a.r.own[forOut]
	in, out := stage.peers(), stage.peers()
	first, end := a.shard(bytes)
	own := a.from + gpu.Ptr(at)
	if a.plan.reach.inputs() {
		stage := a.r.own[forIn]
		in = stage.peers()
		if own%line == 0 {
			a.copyIn(stage.Buffer, 0, at, first)
			a.copyIn(stage.Buffer, end, at+end, bytes-end)
		} else {
			a.copyIn(stage.Buffer, 0, at, bytes)
		}
	}
	if own%line == 0 || !a.plan.reach.inputs() {
		in.Set(a.me(), own)
	}
	if c := &a.call; c.Kind.Rooted() && a.r.comm.Rank() != c.Root {
		a.kernelStep(in, out, bytes)
		return
	}
	if own = a.to + gpu.Ptr(at); own%line == 0 {
		out.Set(a.me(), own)
	} else {
		first, end = bytes, bytes
	}
	a.kernelStep(in, out, bytes)
	a.copyOut(stage.Buffer, 0, at, first)
	a.copyOut(stage.Buffer, end, at+end, bytes-end)
}

// shard returns where this rank's shard of a piece starts and ends, of data that are
// aligned to a line; see Shards of collective.cuh.
func (a *anyCall) shard(bytes uint64) (first, end uint64) {
	share := divideUp(divideUp(bytes, line), uint64(a.r.comm.Size())) * line
	return min(a.me()*share, bytes), min((a.me()+1)*share, bytes)
}

// throughInput copies a piece into the staging, where the peers read it. This rank's
// own part is read where it lies if that is aligned as the stagings are.
func (a *anyCall) throughInput(at, bytes uint64) {
	r, me, c := a.r, a.me(), &a.call
	stage := r.own[forIn]
	in := stage.peers()
	var out layout.PeerMemory
	out.Set(me, a.to+gpu.Ptr(at))
	for part := range uint64(c.Kind.InParts(r.comm.Size())) {
		from := part*c.part() + at
		if c.Kind.spec().scattered && part == me && (a.from+gpu.Ptr(from))%16 == 0 {
			in.Set(me, a.from+gpu.Ptr(from)-gpu.Ptr(me*bytes))
			continue
		}
		a.copyIn(stage.Buffer, part*bytes, from, bytes)
	}
	a.kernelStep(in, out, bytes)
}

// throughBoth copies a piece into the staging of the input, and out of the staging of the
// output.
func (a *anyCall) throughBoth(at, bytes uint64) {
	c, rank := &a.call, a.r.comm.Rank()
	in, out := c.holds(rank, a.r.comm.Size())
	firstIn, firstOut := uint64(c.Kind.Internal().InOffset(rank, c.InPlace)), uint64(c.Kind.Internal().OutOffset(rank, c.InPlace))
	for part := range uint64(in) {
		a.copyIn(c.input().Buffer, (firstIn+part)*bytes, part*c.part()+at, bytes)
	}
	l := a.staged[0]
	if bytes < a.piece && at > 0 {
		l = a.staged[1]
	}
	a.steps = append(a.steps, step{launch: l})
	for part := range uint64(out) {
		a.copyOut(c.Out.Buffer, (firstOut+part)*bytes, part*c.part()+at, bytes)
	}
}

func (a *anyCall) kernelStep(in, out layout.PeerMemory, bytes uint64) {
	c := a.call
	c.stride = c.part()
	c.Count = bytes / uint64(c.Type.Size())
	l := a.plan.algorithm.(mapped).launch(a.r, &c, a.plan.kernel, in, out)
	a.steps = append(a.steps, step{launch: &l})
}

func (a *anyCall) copyIn(stage *gpu.Buffer, staged, user, bytes uint64) {
	a.steps = append(a.steps, step{stage: stage, inwards: true, staged: staged, user: user, bytes: bytes})
}

func (a *anyCall) copyOut(stage *gpu.Buffer, staged, user, bytes uint64) {
	a.steps = append(a.steps, step{stage: stage, staged: staged, user: user, bytes: bytes})
}

// run queues the steps.
func (a *anyCall) run(s *gpu.Stream) error {
	for i := range a.steps {
		t := &a.steps[i]
		var err error
		switch {
		case t.launch != nil:
			err = t.launch.queue(s)
		case t.inwards:
			err = s.Copy(t.stage, t.staged, a.sides[0].Buffer, t.user, t.bytes)
		default:
			err = s.Copy(a.sides[1].Buffer, t.user, t.stage, t.staged, t.bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
