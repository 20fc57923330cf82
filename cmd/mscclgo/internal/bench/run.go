package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/nccl"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Sinks are where a rank's report goes; a nil one gets nothing.
type Sinks struct {
	Table    io.Writer
	JSON     io.Writer         // a line for each result
	Progress func(text string) // what is done now
}

// fill sets the nil ones to discard.
func (s *Sinks) fill() {
	if s.Table == nil {
		s.Table = io.Discard
	}
	if s.JSON == nil {
		s.JSON = io.Discard
	}
	if s.Progress == nil {
		s.Progress = func(string) {}
	}
}

// bench is one rank's state.
type bench struct {
	cfg      Config
	most     int // blocks of a kernel; 0 is no bound
	sinks    Sinks
	comm     *communicator.Communicator
	runner   *collective.Runner
	unshared *collective.Runner // with which no memory is shared, or nil
	stream   *gpu.Stream
	memory   []*gpu.Buffer // the allocations behind in and out
	in       *collective.Memory
	out      *collective.Memory
	typ      collective.Type
	op       collective.Op
	turns    bool   // ranks take turns on a GPU
	seed     uint64 // of the next data
	referee  *referee
	library  *nccl.Library          // of the others, if there are any
	unfit    map[kindAlgorithm]bool // what is left out of all algorithms
	others   map[string]contestant  // that take part now
	nccl     map[string]*ncclGroup  // what they are made of
}

// kindAlgorithm is an algorithm of a collective.
type kindAlgorithm struct {
	collective collective.Kind
	algorithm  string
}

// Run measures what cfg asks for, with one bound of the blocks after the other, and
// returns the results in the order of the table, also when it returns an error. Wrong
// elements are in the results and are an error in the end. Collective.
//
// Errors: also the errors that [Stuck] reports.
func Run(ctx context.Context, comm *communicator.Communicator, cfg Config, sinks Sinks) (results []Result, err error) {
	sinks.fill()
	if err := cfg.Validate(comm.Size()); err != nil {
		return nil, err
	}
	bounds := cfg.SMs
	if len(bounds) == 0 {
		bounds = []int{0}
	}
	for _, most := range bounds {
		found, err := runWithin(ctx, comm, cfg, most, sinks)
		results = append(results, found...)
		if err != nil {
			return results, err
		}
	}
	wrong := 0
	for _, r := range results {
		wrong += max(r.Wrong, 0)
		for _, o := range r.Others {
			if o.Name == withCounts || o.Name == withSends || o.Name == withUnshared || o.Name == withUnprepared {
				wrong += max(o.Wrong, 0)
			}
		}
	}
	if wrong > 0 {
		return results, fmt.Errorf("%d elements are wrong", wrong)
	}
	return results, nil
}

// runWithin is Run with a bound, or 0.
func runWithin(ctx context.Context, comm *communicator.Communicator, cfg Config, most int, sinks Sinks) (results []Result, err error) {
	b, err := newBench(ctx, comm, cfg, most, sinks)
	if b != nil {
		defer func() { err = errors.Join(err, b.close(ctx, err)) }()
	}
	if err != nil {
		return nil, err
	}
	for _, c := range cfg.Collectives {
		found, err := b.collective(ctx, c)
		results = append(results, found...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// newBench makes a rank's state, with a bound of the blocks, or 0.
func newBench(ctx context.Context, comm *communicator.Communicator, cfg Config, most int, sinks Sinks) (*bench, error) {
	b := &bench{cfg: cfg, most: most, sinks: sinks, comm: comm, unfit: map[kindAlgorithm]bool{}, others: map[string]contestant{}, nccl: map[string]*ncclGroup{}}
	var err error
	if b.typ, err = collective.ParseType(cfg.Type); err != nil {
		return b, err
	}
	if b.op, err = collective.ParseOp(cfg.Op); err != nil {
		return b, err
	}
	if b.seed, err = agreeOnSeed(ctx, comm); err != nil {
		return b, err
	}
	if b.turns, err = turns(ctx, comm); err != nil {
		return b, err
	}
	if b.runner, err = collective.New(ctx, comm, collective.Options{Tuning: cfg.Tuning, MaxBlocks: most}); err != nil {
		return b, err
	}
	calls, err := b.calls()
	if err != nil {
		return b, err
	}
	if err := together(ctx, comm, b.runner.Internal().Compile(ctx, calls)); err != nil {
		return b, err
	}
	if b.stream, err = comm.Device().NewStream(); err != nil {
		return b, err
	}
	if b.referee, err = newReferee(ctx, comm.Device(), b.typ); err != nil {
		return b, err
	}
	if b.in, err = b.allocate(ctx); err != nil {
		return b, err
	}
	if b.out, err = b.allocate(ctx); err != nil {
		return b, err
	}
	return b, b.loadNCCL(ctx)
}

// calls returns all calls that are to be measured, without their memory.
func (b *bench) calls() ([]collective.Call, error) {
	var calls []collective.Call
	for _, c := range b.cfg.Collectives {
		for _, size := range b.cfg.Sizes {
			p := b.problem(c, size, false)
			choices, err := b.choices(p)
			if err != nil {
				return nil, err
			}
			for _, choice := range choices {
				calls = append(calls, b.own(choice).call(p))
			}
		}
	}
	return calls, nil
}

// room returns the bytes of the largest buffer's data: a rank's part is at least one
// element.
func (b *bench) room() uint64 {
	return max(slices.Max(b.cfg.Sizes), uint64(b.comm.Size()*b.typ.Size()))
}

// allocate returns a shared buffer for the largest size, off its alignment as asked.
func (b *bench) allocate(ctx context.Context) (*collective.Memory, error) {
	whole, err := b.comm.Device().Alloc(b.cfg.Offset + b.room() + guard)
	if err != nil {
		return nil, err
	}
	b.memory = append(b.memory, whole)
	part, err := whole.Slice(b.cfg.Offset, b.room()+guard)
	if err != nil {
		return nil, err
	}
	return b.runner.Share(ctx, part)
}

// close releases this rank's own resources and, once the other ranks are done with it,
// what they reach. failed is the error that ended the run, or nil.
func (b *bench) close(ctx context.Context, failed error) error {
	if Stuck(failed) {
		return nil
	}
	var errs []error
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	if b.referee != nil {
		errs = append(errs, b.referee.close())
	}
	// An invalid call fails on all ranks, which then continue.
	if failed != nil && !errors.Is(failed, mscclgo.ErrInvalid) && !errors.Is(failed, mscclgo.ErrUnsupported) {
		b.comm.Abort(failed)
	}
	if b.unshared != nil {
		errs = append(errs, b.unshared.Close(ctx))
	}
	if b.runner != nil {
		errs = append(errs, b.runner.Close(ctx))
	}
	if failed == nil {
		errs = append(errs, b.comm.Barrier(ctx))
		for _, m := range b.memory {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// agreeOnSeed returns rank 0's choice on all ranks.
func agreeOnSeed(ctx context.Context, c *communicator.Communicator) (uint64, error) {
	w := wire.NewWriter(8)
	w.U64(rand.Uint64())
	seed, err := c.Broadcast(ctx, 0, w.Bytes())
	if err != nil {
		return 0, err
	}
	r := wire.NewReader(seed)
	return r.U64(), r.End()
}

// collective measures a collective in all places, beside others that are made for it.
func (b *bench) collective(ctx context.Context, c collective.Kind) (results []Result, err error) {
	defer func() { err = errors.Join(err, b.leaveNCCL(err)) }()
	if err := b.meetNCCL(ctx); err != nil {
		return nil, err
	}
	if b.cfg.Unprepared {
		b.others[withUnprepared] = &unprepared{b.own(collective.Choice{})}
	}
	if slices.Contains(b.cfg.beside(c), withCounts) {
		b.others[withCounts] = &counted{b.own(collective.Choice{})}
	}
	if slices.Contains(b.cfg.beside(c), withSends) {
		b.others[withSends] = &sends{b.own(collective.Choice{})}
	}
	if slices.Contains(b.cfg.beside(c), withUnshared) {
		if b.others[withUnshared], err = b.sendsUnshared(ctx); err != nil {
			return nil, err
		}
	}
	for _, place := range b.cfg.Places {
		if place == "in" && !c.Internal().InPlace() {
			continue
		}
		found, err := b.table(ctx, c, place)
		results = append(results, found...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// table measures all sizes of a collective.
func (b *bench) table(ctx context.Context, c collective.Kind, place string) ([]Result, error) {
	var problems []*problem
	for _, size := range b.cfg.Sizes {
		p := b.problem(c, size, place == "in")
		if err := b.prepare(ctx, p); err != nil {
			return nil, err
		}
		problems = append(problems, p)
	}
	// The header is printed once all ranks are under way.
	if err := b.comm.Barrier(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.sinks.Table, "# %s, %d ranks, rank 0 on %v (%s)%s\n", c, b.comm.Size(), b.comm.Device(), b.comm.Device().Info().Model, b.remark())
	printHeader(b.sinks.Table, b.cfg.beside(c)...)
	var results []Result
	for i, p := range problems {
		b.sinks.Progress(fmt.Sprintf("%s %s, size %d of %d: %s", c, place, i+1, len(problems), bytesize.Format(p.size())))
		found, err := b.size(ctx, p)
		if err != nil {
			return results, err
		}
		for _, r := range found {
			r.row().print(b.sinks.Table)
			if err := r.writeJSON(b.sinks.JSON); err != nil {
				return results, err
			}
		}
		results = append(results, found...)
	}
	return results, nil
}

// problem returns a collective of about that many bytes.
func (b *bench) problem(c collective.Kind, size uint64, inPlace bool) *problem {
	return &problem{
		collective: c, rank: b.comm.Rank(), ranks: b.comm.Size(), root: b.cfg.Root, typ: b.typ, op: b.op,
		count: max(1, size/uint64(c.Parts(b.comm.Size()))/uint64(b.typ.Size())), inPlace: inPlace,
	}
}

// prepare loads the kernels for a problem, before anything is printed. When all
// algorithms are asked for, it leaves out those whose kernels cannot run with that many
// threads, but not the last.
func (b *bench) prepare(ctx context.Context, p *problem) error {
	choices, err := b.choices(p)
	if err != nil {
		return err
	}
	for _, choice := range choices {
		_, err := b.runner.Prepare(ctx, b.own(choice).call(p))
		named := slices.Contains(b.cfg.Algorithms, choice.Algorithm) || !slices.Contains(b.cfg.Algorithms, algoAll)
		if errors.Is(err, mscclgo.ErrUnsupported) && !named {
			b.unfit[kindAlgorithm{p.collective, choice.Algorithm}] = true
			if rest, _ := b.choices(p); len(rest) > 0 {
				fmt.Fprintf(b.sinks.Table, "# %s is left out: %v\n", choice.Algorithm, err)
				continue
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// own returns the contestant of a choice.
func (b *bench) own(choice collective.Choice) *own {
	return &own{b.comm, b.runner, b.stream, b.in, b.out, choice, b.cfg.Overlap, 0}
}

// remark returns the bound of the blocks, and a warning when times mean nothing, or little.
func (b *bench) remark() string {
	var bound string
	if b.most > 0 {
		bound = fmt.Sprintf(", kernels of at most %d blocks", b.most)
	}
	switch {
	case b.emulated():
		return bound + ": emulated, times mean nothing"
	case b.turns:
		return bound + ": processes take turns on a GPU, times mean little; for ranks in one process see -device"
	}
	return bound
}

func (b *bench) emulated() bool { return emulated(b.comm) }

func emulated(comm *communicator.Communicator) bool {
	return comm.Device().Info().Arch == devicecode.ArchEmu
}

// size measures one size. It drops contestants that fail, unless they are stuck.
func (b *bench) size(ctx context.Context, p *problem) ([]Result, error) {
	for {
		results, err := b.sideBySide(ctx, p)
		var g *gaveUp
		if !errors.As(err, &g) || g.stuck {
			return results, err
		}
		b.drop(g, p.collective)
	}
}

// sideBySide measures each algorithm, and the others beside.
func (b *bench) sideBySide(ctx context.Context, p *problem) ([]Result, error) {
	choices, err := b.choices(p)
	if err != nil {
		return nil, err
	}
	var all []contestant
	for _, choice := range choices {
		all = append(all, b.own(choice))
	}
	place := map[string]int{} // of the others
	for _, name := range b.cfg.beside(p.collective) {
		if k := b.others[name]; k != nil {
			place[name] = len(all)
			all = append(all, k)
		}
	}
	times, wrong, err := b.compete(ctx, p, all)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(choices))
	for i, choice := range choices {
		results[i] = b.result(p, choice, all[i].(*own).blocks, times[i], wrong[i])
		for _, name := range b.cfg.beside(p.collective) {
			other := Other{Name: name, Wrong: -1}
			if at, there := place[name]; there {
				ratio := float64(times[i].Median) / float64(max(1, times[at].Median))
				if name == withUnprepared {
					ratio = 1 / ratio
				}
				other = Other{name, times[at], ratio, wrong[at]}
			}
			results[i].Others = append(results[i].Others, other)
		}
	}
	return results, nil
}

func (b *bench) result(p *problem, choice collective.Choice, grid int, t Times, wrong int) Result {
	op, place := "-", "out"
	if p.collective.Reduces() {
		op = p.op.String()
	}
	if p.inPlace {
		place = "in"
	}
	r := Result{
		Stage: stageRun, Collective: p.collective.String(), Ranks: p.ranks, Device: b.comm.Device().Info().Model, Emulated: b.emulated(),
		Link: b.runner.Link(), Bytes: p.size(), Count: p.size() / uint64(p.typ.Size()), Type: p.typ.String(), Op: op, Place: place,
		Offset: b.cfg.Offset, Graph: b.cfg.Graph, Overlap: b.cfg.Overlap, Iters: b.cfg.Iters, Algorithm: choice.Algorithm,
		Blocks: choice.Blocks, Threads: choice.Threads, Grid: grid, SMs: b.most, Time: t, Wrong: wrong, bus: p.collective.Bus(p.ranks),
	}
	r.AlgBW = r.row().algBW()
	r.BusBW = r.AlgBW * r.bus
	return r
}

// The shape of a grid that neither a flag nor the tuning sets.
const (
	plainBlocks  = 64
	plainThreads = 512
)

// choices returns what is to be measured at a size.
func (b *bench) choices(p *problem) ([]collective.Choice, error) {
	fits := func(c collective.Choice) bool { return b.runner.Internal().Fits(b.own(c).call(p)) == nil }
	var choices []collective.Choice
	add := func(c collective.Choice) {
		if b.cfg.Blocks != 0 {
			c.Blocks = b.cfg.Blocks
		}
		if b.cfg.Threads != 0 {
			c.Threads = b.cfg.Threads
		}
		choices = append(choices, c)
	}
	for _, name := range b.cfg.Algorithms {
		switch {
		case name == algoAuto:
			c, err := b.runner.Choose(b.own(collective.Choice{}).call(p))
			if err != nil {
				return nil, err
			}
			add(c)
		case name == algoAll:
			for _, a := range p.collective.Algorithms() {
				if c := (collective.Choice{Algorithm: a, Blocks: plainBlocks, Threads: plainThreads}); fits(c) && !b.unfit[kindAlgorithm{p.collective, a}] {
					add(c)
				}
			}
		case slices.Contains(p.collective.Algorithms(), name):
			add(collective.Choice{Algorithm: name, Blocks: plainBlocks, Threads: plainThreads})
		}
	}
	return choices, nil
}

// compete checks all contestants, times them in turns, and checks them again with
// other data. It returns their times and their wrong elements.
func (b *bench) compete(ctx context.Context, p *problem, all []contestant) (times []Times, wrong []int, err error) {
	wrong = make([]int, len(all))
	if err := b.verifyAll(ctx, p, all, wrong); err != nil {
		return nil, nil, err
	}
	var ready []repeated
	defer func() {
		for _, r := range ready {
			err = errors.Join(err, r.close())
		}
	}()
	for _, k := range all {
		r, err := k.repeat(ctx, p, b.cfg.Iters, b.cfg.Replays, b.cfg.Graph)
		if err != nil {
			return nil, nil, err
		}
		ready = append(ready, r)
	}
	if times, err = inTurns(ctx, b.comm, &b.cfg, ready); err != nil {
		return nil, nil, err
	}
	return times, wrong, b.verifyAll(ctx, p, all, wrong)
}

// verifyAll adds up the contestants' wrong elements, -1 if none is checked.
func (b *bench) verifyAll(ctx context.Context, p *problem, all []contestant, wrong []int) error {
	for i, k := range all {
		if !b.cfg.Check {
			wrong[i] = -1
			continue
		}
		b.seed++
		bad, same, err := b.referee.verify(ctx, b.comm, k, p, b.seed)
		if err != nil {
			return err
		}
		if _, theirs := k.(*ncclContestant); !theirs && !same && p.alike() {
			bad++
		}
		wrong[i] += bad
	}
	return nil
}
