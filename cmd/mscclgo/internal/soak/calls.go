package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
)

// A call is what ranks do together.
type call struct {
	kind collective.Kind
	typ  collective.Type // of a reduction; other kinds' types are drawn
	op   collective.Op
}

// calls are the calls of the runs: each kind, and each type and operation in some reduction. Not
// all combinations, which would be compiled for minutes; kinds that only copy have one kernel
// for all types.
var calls = []call{
	{collective.AllReduce, collective.F32, collective.Sum},
	{kind: collective.AllGather},
	{collective.ReduceScatter, collective.F16, collective.Sum},
	{kind: collective.AllToAll},
	{kind: collective.SendReceive},
	{kind: collective.Broadcast},
	{collective.Reduce, collective.F64, collective.Min},
	{kind: collective.Gather},
	{kind: collective.Scatter},
	// The short form ends here.
	{collective.AllReduce, collective.BF16, collective.Avg},
	{collective.AllReduce, collective.U8, collective.Max},
	{collective.ReduceScatter, collective.I64, collective.Prod},
	{collective.Reduce, collective.I32, collective.Sum},
}

// fewCalls are the calls of the short form.
const fewCalls = 9

// callsOf returns the calls of a run.
func callsOf(short bool) []call {
	if short {
		return calls[:fewCalls]
	}
	return calls
}

// algorithms returns the algorithms by which a call is made at random, beside what the tuning chooses.
// It leaves out the ones that take most memory, since ranks that share a GPU have too little.
func (c call) algorithms() (some []string) {
	for _, a := range c.kind.Algorithms() {
		if a != "pushed" {
			some = append(some, a)
		}
	}
	return some
}

const (
	// guard is the bytes before and behind an output that must stay as they are.
	guard  = 64
	poison = 0xa5
	// places are where outputs and inputs begin that all ranks have shared.
	places = 3
)

// A team is a group as its ranks work in it: the run's, or one of a Split.
type team struct {
	comm    *communicator.Communicator
	runner  *collective.Runner
	in, out *gpu.Buffer
	most    uint64                  // bytes of a call's input, and of its output
	views   [2][]*collective.Memory // of in and out
	calls   []call                  // that these ranks can make
	groups  bool                    // sends and receives in groups
	seed    uint64
}

// newTeam makes a team's runner and memory. Collective.
func (w *worker) newTeam(ctx context.Context, comm *communicator.Communicator, most, seed uint64) (*team, error) {
	t := &team{comm: comm, most: most, seed: seed}
	for _, b := range []**gpu.Buffer{&t.in, &t.out} {
		var err error
		if *b, err = comm.Device().Alloc(most + 4*guard); err != nil {
			return nil, err
		}
		w.closing((*b).Close)
	}
	var err error
	if t.runner, err = collective.New(ctx, comm, collective.Options{Scratch: 1 << 20}); err != nil {
		return nil, err
	}
	w.leaving(func() error {
		err := t.runner.Close(context.Background())
		if comm != w.comm {
			err = w.inPart(err)
		}
		return err
	})
	for i, b := range []*gpu.Buffer{t.in, t.out} {
		whole, err := t.runner.Share(ctx, b)
		if err != nil {
			return nil, err
		}
		for place := range places {
			at := uint64(guard + place*place*3) // 0, 3 and 12 bytes behind an aligned address
			view, err := whole.Slice(at, whole.Size()-at)
			if err != nil {
				return nil, err
			}
			t.views[i] = append(t.views[i], view)
		}
	}
	for _, c := range callsOf(w.Short) {
		if t.fits(c) {
			t.calls = append(t.calls, c)
		}
	}
	if len(comm.Hosts()) == 1 {
		t.groups = true
		return t, t.runner.LoadGroups(ctx)
	}
	return t, nil
}

// fits reports whether a call can be made among these ranks, which may not map each other's
// memory.
func (t *team) fits(c call) bool {
	for count := uint64(1); count < t.most/8/uint64(t.comm.Size()); count *= 4 {
		if _, err := t.runner.Choose(collective.Call{Kind: c.kind, Type: c.typ, Op: c.op, Count: count}); err != nil {
			return false
		}
	}
	return true
}

// amount draws a number up to most: often 0 and 1, and otherwise any magnitude as likely as
// another.
func amount(random *rand.Rand, most uint64) uint64 {
	if n := random.IntN(10); n < 2 {
		return min(uint64(n), most)
	}
	return min(random.Uint64N(1<<random.IntN(bits.Len64(most)+1)), most)
}

// A trial is a collective on one rank: its data, and what must come of it.
type trial struct {
	call
	elements elements.Type
	count    uint64
	root     int
	inPlace  bool
	seeds    func(rank, part int) uint64
}

// part returns the bytes of a part.
func (k *trial) part() int { return int(k.count) * k.elements.Size() }

// wrong counts the elements, and the bytes beside them, that are not as they must be. all is
// the output, or in place where input and output are, between guards.
func (k *trial) wrong(all []byte, rank, ranks int) (wrong int) {
	body := all[guard : len(all)-guard]
	for _, edge := range [][]byte{all[:guard], all[len(all)-guard:]} {
		wrong += touched(edge)
	}
	for p := range k.kind.OutParts(ranks) {
		at := (p + k.kind.Internal().OutOffset(rank, k.inPlace)) * k.part()
		got := body[at:][:k.part()]
		switch from, theirs := k.kind.Internal().Sources(rank, p, ranks, k.root); {
		case len(from) == 0:
			if !k.inPlace {
				wrong += touched(got)
			}
		case k.kind.Reduces():
			var seeds []uint64
			for _, r := range from {
				seeds = append(seeds, k.seeds(r, theirs))
			}
			wrong += k.elements.WrongReduced(got, k.op, seeds, ranks)
		default:
			wrong += k.elements.Wrong(got, k.seeds(from[0], theirs))
		}
	}
	return wrong
}

// touched counts the bytes that were written where none may be.
func touched(b []byte) (n int) {
	for _, v := range b {
		if v != poison {
			n++
		}
	}
	return n
}

func poisoned(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = poison
	}
	return b
}

// The ways in which a call is made.
const (
	plain = iota // on any buffer, which needs no preparation
	prepared
	ways
)

// collective makes a random call of a team, and counts the wrong elements if it is told that
// all went well. The victim of other makes it with one element more, or another root.
func (w *worker) collective(ctx context.Context, t *team, random *rand.Rand, step int, other bool) error {
	me, ranks := t.comm.Rank(), t.comm.Size()
	k := &trial{call: t.calls[random.IntN(len(t.calls))], root: random.IntN(ranks)}
	if !k.kind.Reduces() {
		k.typ = collective.Types()[random.IntN(len(collective.Types()))]
	}
	var err error
	if k.elements, err = elements.Of(k.typ); err != nil {
		return err
	}
	k.count = amount(random, t.most/uint64(k.kind.Parts(ranks)*k.typ.Size()))
	k.inPlace = k.kind.Internal().InPlace() && random.IntN(3) == 0
	k.seeds = func(rank, part int) uint64 { return t.seed + uint64(step)<<32 + uint64(rank)<<16 + uint64(part) }
	way, graph, twice := random.IntN(ways), random.IntN(3) == 0, random.IntN(2) == 0 && !k.inPlace
	inPlace, outPlace, skew := random.IntN(places), random.IntN(places), random.IntN(guard)
	choice := t.choice(k, random)
	if w.mismatch(step) {
		way, k.count = plain, max(k.count/2, 1) // with room for one more
		if w.Fault == "no call" {               // all wait for all
			k.call = calls[0]
			k.typ, k.inPlace = k.call.typ, false
			k.count = min(k.count, t.most/uint64(4*k.typ.Size()))
			k.elements, err = elements.Of(k.typ)
		}
	}
	if err != nil {
		return err
	}
	w.what = fmt.Sprintf("step %d: %v of %d %v, %v, root %d, among %d, in place %v, way %d by %+v, in a graph %v, twice %v",
		step, k.kind, k.count, k.typ, k.op, k.root, ranks, k.inPlace, way, choice, graph, twice)

	// Data, in place at the output's.
	at := uint64(skew) // of what is poisoned; inputs and outputs begin guard bytes behind
	if way == prepared {
		at = uint64(outPlace * outPlace * 3)
	}
	size := max(k.kind.OutParts(ranks)+k.kind.Internal().OutOffset(me, k.inPlace), 1) * k.part()
	if k.inPlace {
		size = max(size, (k.kind.InParts(ranks)+k.kind.Internal().InOffset(me, true))*k.part())
	}
	all := poisoned(size + 2*guard)
	in, inAt, inBuffer := make([]byte, k.kind.InParts(ranks)*k.part()), uint64(guard+inPlace*inPlace*3), t.in
	if k.inPlace {
		in = all[guard+k.kind.Internal().InOffset(me, true)*k.part():][:len(in)]
		inAt, inBuffer = at+guard+uint64(k.kind.Internal().InOffset(me, true)*k.part()), t.out
	}
	for p := range k.kind.InParts(ranks) {
		w.pauses.alone(func() { k.elements.Fill(in[p*k.part():][:k.part()], k.seeds(me, p)) })
	}
	if err := put(t.out, at, all); err != nil {
		return err
	}
	if !k.inPlace {
		if err := put(t.in, inAt, in); err != nil {
			return err
		}
	}

	// The call.
	var queue func(*gpu.Stream) error
	switch way {
	case prepared:
		c := collective.Call{
			Kind: k.kind, Type: k.typ, Op: k.op, Count: k.count, Root: k.root, InPlace: k.inPlace, Choice: choice,
			In: t.views[0][inPlace], Out: t.views[1][outPlace], Overlap: random.IntN(2) == 0,
		}
		if k.inPlace {
			c.In = nil
		}
		op, err := t.runner.Prepare(ctx, c)
		if err != nil {
			return err
		}
		defer op.Close()
		queue = op.Launch
	default:
		count := k.count
		switch {
		case other && k.kind.Rooted() && random.IntN(2) == 0:
			k.root = (k.root + 1) % ranks
		case other:
			count++
		}
		parts := count * uint64(k.typ.Size())
		from, errIn := inBuffer.Slice(inAt, uint64(k.kind.InParts(ranks))*parts)
		to, errOut := t.out.Slice(at+guard+uint64(k.kind.Internal().OutOffset(me, k.inPlace)*k.part()), uint64(k.kind.OutParts(ranks))*parts)
		if err := errors.Join(errIn, errOut); err != nil {
			return err
		}
		c := collective.Call{Kind: k.kind, Type: k.typ, Op: k.op, Count: count, Root: k.root}
		queue = func(s *gpu.Stream) error { return t.runner.Do(s, to, from, c) }
	}
	if err := w.play(ctx, t.comm, queue, graph, twice); err != nil {
		return err
	}
	if err := get(all, t.out, at); err != nil {
		return err
	}
	w.checked(func() int { return k.wrong(all, me, ranks) })
	return nil
}

// choice draws an algorithm and a grid, or leaves the choice to the tuning.
func (t *team) choice(k *trial, random *rand.Rand) collective.Choice {
	names := k.algorithms()
	choice := collective.Choice{Algorithm: names[random.IntN(len(names))], Blocks: 1 + random.IntN(8), Threads: 32 << random.IntN(4)}
	c := collective.Call{Kind: k.kind, Type: k.typ, Op: k.op, Count: k.count, Root: k.root, Choice: choice}
	if random.IntN(4) == 0 || t.runner.Internal().Fits(c) != nil {
		return collective.Choice{}
	}
	return choice
}

// play queues work, perhaps from a graph and perhaps twice, and waits for it.
func (w *worker) play(ctx context.Context, comm *communicator.Communicator, queue func(*gpu.Stream) error, graph, twice bool) error {
	stream := w.stream
	times := 1
	if twice {
		times = 2
	}
	if graph {
		if err := stream.BeginCapture(); err != nil {
			return err
		}
		err := queue(stream)
		g, ended := stream.EndCapture()
		if err := errors.Join(err, ended); err != nil {
			return err
		}
		w.graphs = append(w.graphs, g)
		queue = g.Launch
	}
	for range times {
		if err := queue(stream); err != nil {
			return err
		}
	}
	return w.synchronize(ctx, comm)
}

// synchronize waits for the work, and forgets the graphs that have run.
func (w *worker) synchronize(ctx context.Context, comm *communicator.Communicator) error {
	if err := comm.Synchronize(ctx, w.stream); err != nil {
		return err // its graphs may still run
	}
	for _, g := range w.graphs {
		if err := g.Close(); err != nil {
			return err
		}
	}
	w.graphs = nil
	return nil
}

// A message is elements that one rank sends to another.
type message struct {
	from, to int
	elements elements.Type
	count    uint64
	seed     uint64
}

func (m *message) bytes() int { return int(m.count) * m.elements.Size() }

// letters draws messages that fit into the buffers of all ranks.
func (t *team) letters(random *rand.Rand, step, n int, pair func(i int) (from, to int), typ func() collective.Type) ([]message, error) {
	var all []message
	for i := range n {
		m := message{seed: t.seed + uint64(step)<<32 + uint64(i)}
		var err error
		if m.elements, err = elements.Of(typ()); err != nil {
			return nil, err
		}
		m.from, m.to = pair(i)
		m.count = amount(random, t.most/uint64(n)/16*16/uint64(m.elements.Size()))
		all = append(all, m)
	}
	return all, nil
}

// lay writes what this rank sends, one behind the other, and poisons where it receives. It
// returns where each message is that this rank sends or receives.
func (t *team) lay(all []message, gap int) (out []byte, sends, receives map[int]uint64, err error) {
	me := t.comm.Rank()
	sends, receives = map[int]uint64{}, map[int]uint64{}
	var in []byte
	n := 0
	for i := range all {
		m := &all[i]
		if m.from == me {
			sends[i] = uint64(len(in))
			bytes := make([]byte, m.bytes()+gap*m.elements.Size())
			m.elements.Fill(bytes[:m.bytes()], m.seed)
			in = append(in, bytes...)
		}
		if m.to == me {
			receives[i] = uint64(n)
			n += m.bytes() + gap*m.elements.Size()
		}
	}
	out = poisoned(n + guard)
	return out, sends, receives, errors.Join(put(t.in, 0, in), put(t.out, 0, out))
}

// arrived counts what is wrong with the messages that were received.
func (t *team) arrived(all []message, receives map[int]uint64, out []byte) (wrong int, err error) {
	if err := get(out, t.out, 0); err != nil {
		return 0, err
	}
	for i, at := range receives {
		b := out[at:][:all[i].bytes()]
		wrong += all[i].elements.Wrong(b, all[i].seed)
		copy(b, poisoned(len(b)))
	}
	return wrong + touched(out), nil
}

// exchange makes an all-to-all with random counts.
func (w *worker) exchange(ctx context.Context, t *team, random *rand.Rand, step int) error {
	me, ranks := t.comm.Rank(), t.comm.Size()
	typ := collective.Types()[random.IntN(len(collective.Types()))]
	all, err := t.letters(random, step, ranks*ranks, func(i int) (int, int) { return i / ranks, i % ranks }, func() collective.Type { return typ })
	if err != nil {
		return err
	}
	way, graph, twice, gap := random.IntN(ways), random.IntN(3) == 0, random.IntN(2) == 0, 0
	if way == prepared {
		gap = random.IntN(2)
	}
	w.what = fmt.Sprintf("step %d: an all-to-all with counts of %v, among %d, way %d, in a graph %v, twice %v", step, typ, ranks, way, graph, twice)
	out, sends, receives, err := t.lay(all, gap)
	if err != nil {
		return err
	}
	size := uint64(typ.Size())
	var queue func(*gpu.Stream) error
	c := collective.AllToAllV{Type: typ, In: t.in, Out: t.out}
	var sendCounts, receiveCounts []uint64
	for p := range ranks {
		to, from := me*ranks+p, p*ranks+me
		c.Sends = append(c.Sends, collective.Part{At: sends[to] / size, Count: all[to].count})
		c.Receives = append(c.Receives, collective.Part{At: receives[from] / size, Count: all[from].count})
		sendCounts, receiveCounts = append(sendCounts, all[to].count), append(receiveCounts, all[from].count)
	}
	if way == prepared {
		op, err := t.runner.PrepareAllToAllV(ctx, c)
		if err != nil {
			return err
		}
		defer op.Close()
		queue = op.Launch
	} else {
		queue = func(s *gpu.Stream) error { return t.runner.AllToAllV(s, t.out, t.in, sendCounts, receiveCounts, typ) }
	}
	if err := w.play(ctx, t.comm, queue, graph, twice); err != nil {
		return err
	}
	wrong, err := t.arrived(all, receives, out)
	w.check(wrong)
	return err
}

// messages makes a group of random sends and receives, in which some ranks may have no part.
func (w *worker) messages(ctx context.Context, t *team, random *rand.Rand, step int) error {
	ranks := t.comm.Size()
	all, err := t.letters(random, step, 1+random.IntN(2*ranks), func(int) (int, int) { return random.IntN(ranks), random.IntN(ranks) },
		func() collective.Type { return collective.Types()[random.IntN(len(collective.Types()))] })
	if err != nil {
		return err
	}
	graph := random.IntN(3) == 0
	w.what = fmt.Sprintf("step %d: a group of %d messages among %d, in a graph %v", step, len(all), ranks, graph)
	out, sends, receives, err := t.lay(all, 0)
	if err != nil {
		return err
	}
	if len(sends)+len(receives) == 0 {
		return nil
	}
	queue := func(s *gpu.Stream) error {
		g := t.runner.Group()
		for i, m := range all {
			if at, mine := sends[i]; mine {
				b, err := t.in.Slice(at, uint64(m.bytes()))
				if err != nil {
					return err
				}
				g.Send(s, b, m.count, m.elements.Type, m.to)
			}
			if at, mine := receives[i]; mine {
				b, err := t.out.Slice(at, uint64(m.bytes()))
				if err != nil {
					return err
				}
				g.Recv(s, b, m.count, m.elements.Type, m.from)
			}
		}
		return g.Launch()
	}
	if err := w.play(ctx, t.comm, queue, graph, false); err != nil {
		return err
	}
	wrong, err := t.arrived(all, receives, out)
	w.check(wrong)
	return err
}

// put and get copy between the host and a part of a buffer.
func put(b *gpu.Buffer, at uint64, bytes []byte) error {
	part, err := b.Slice(at, uint64(len(bytes)))
	if err != nil || len(bytes) == 0 {
		return err
	}
	return gpu.CopyIn(part, bytes)
}

func get(bytes []byte, b *gpu.Buffer, at uint64) error {
	part, err := b.Slice(at, uint64(len(bytes)))
	if err != nil || len(bytes) == 0 {
		return err
	}
	return gpu.CopyOut(bytes, part)
}
