package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
)

// SoakConfig is the configuration of a [Soak], the same on all ranks.
type SoakConfig struct {
	Collectives []collective.Kind
	Most        uint64        // bytes of a call's input, and of its output
	Batch       int           // calls that are queued before the host waits for them
	For         time.Duration // at least one batch
}

// byHostSlots is how many of a batch's calls may go through the host: each has
// channels of its own.
const byHostSlots = 2

// slot is the memory of one call of a batch.
type slot struct {
	in, out *collective.Memory
}

// soaked is a call of a batch.
type soaked struct {
	slot
	p          problem
	o          own
	unprepared bool // the call is made on plain buffers, and o.choice not used
	seed       uint64
}

func (k *soaked) contestant() contestant {
	if k.unprepared {
		return &unprepared{&k.o}
	}
	return &k.o
}

// launch returns what queues the call. Collective.
func (k *soaked) launch(ctx context.Context) (func(*gpu.Stream) error, error) {
	if k.unprepared {
		return (&unprepared{&k.o}).launch(ctx, &k.p)
	}
	op, err := k.o.runner.Prepare(ctx, k.o.call(&k.p))
	if err != nil {
		return nil, err
	}
	return op.Launch, nil
}

// Soak alternates collectives, prepared and unprepared calls, algorithms, types, sizes, grids and places at
// random on one communicator, many calls at a time between which the host does not wait,
// and checks every element. It returns the number of calls. Collective.
//
// Errors: at the first batch with wrong elements, naming the call.
func Soak(ctx context.Context, comm *communicator.Communicator, cfg SoakConfig, progress func(text string)) (calls int, err error) {
	if cfg.Most < 1024 || cfg.Batch < 1 || len(cfg.Collectives) == 0 {
		return 0, errors.New("a soak needs collectives, calls, and at least 1 KiB for each")
	}
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return 0, err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			comm.Abort(err)
		}
		err = errors.Join(err, stream.Close(), runner.Close(ctx))
	}()
	byHost := byHostSlots
	if len(comm.Hosts()) > 1 { // all do
		byHost = 2 * byHostSlots
		cfg.Batch = min(cfg.Batch, byHost)
	}
	slots, err := makeSlots(ctx, comm, runner, cfg)
	if err != nil {
		return 0, err
	}
	seed, err := agreeOnSeed(ctx, comm)
	if err != nil {
		return 0, err
	}
	random := rand.New(rand.NewPCG(seed, 1)) // alike on all ranks
	referees := map[collective.Type]*referee{}
	defer func() {
		for _, r := range referees {
			err = errors.Join(err, r.close())
		}
	}()
	for _, t := range elements.Reducible() {
		if referees[t.Type], err = newReferee(ctx, comm.Device(), t.Type); err != nil {
			delete(referees, t.Type)
			return 0, err
		}
	}
	for start, more := time.Now(), true; more; {
		var batch []*soaked
		for i, s := range slots {
			batch = append(batch, pick(random, comm, runner, stream, s, cfg, i < byHost))
		}
		if err := soakBatch(ctx, comm, batch, referees); err != nil {
			return calls, err
		}
		calls += len(batch)
		progress(fmt.Sprintf("%d calls in %v", calls, time.Since(start).Round(time.Second)))
		if more, err = decide(ctx, comm, time.Since(start) < cfg.For); err != nil {
			return calls, err
		}
	}
	return calls, nil
}

// decide returns rank 0's answer on all ranks.
func decide(ctx context.Context, comm *communicator.Communicator, answer bool) (bool, error) {
	mine := []byte{0}
	if answer {
		mine[0] = 1
	}
	b, err := comm.Broadcast(ctx, 0, mine)
	return err == nil && len(b) == 1 && b[0] == 1, err
}

// makeSlots cuts two shared buffers into the memory of the calls, at all
// alignments.
func makeSlots(ctx context.Context, comm *communicator.Communicator, runner *collective.Runner, cfg SoakConfig) ([]slot, error) {
	each := cfg.Most + guard + 64 // with room to be off the alignment
	var whole [2]*collective.Memory
	for i := range whole {
		b, err := comm.Device().Alloc(each * uint64(cfg.Batch))
		if err != nil {
			return nil, err
		}
		if whole[i], err = runner.Share(ctx, b); err != nil {
			return nil, err
		}
	}
	slots := make([]slot, cfg.Batch)
	for i := range slots {
		at := each * uint64(i)
		var errs [2]error
		slots[i].in, errs[0] = whole[0].Slice(at+uint64(i%5), cfg.Most+guard) // any alignment, often different ones
		slots[i].out, errs[1] = whole[1].Slice(at+uint64(i%3*4), cfg.Most+guard)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
	}
	return slots, nil
}

// pick makes a random call. byHost is whether it may go through the host.
func pick(random *rand.Rand, comm *communicator.Communicator, runner *collective.Runner, stream *gpu.Stream, s slot, cfg SoakConfig, byHost bool) *soaked {
	ranks, ops := comm.Size(), elements.Ops()
	for {
		c := cfg.Collectives[random.IntN(len(cfg.Collectives))]
		types := elements.Reducible()
		i := random.IntN(len(types))
		typ, op := types[i].Type, ops[random.IntN(len(ops))]
		if emulated(comm) {
			typ, op = types[i%2].Type, ops[i%2] // kernels take seconds to compile there
		}
		// Any magnitude is as likely as another.
		most := cfg.Most / uint64(c.Parts(ranks)*typ.Size())
		count := max(1, random.Uint64N(most)>>random.IntN(16))
		k := &soaked{
			slot: s, seed: random.Uint64(), unprepared: random.IntN(4) == 0,
			p: problem{
				collective: c, rank: comm.Rank(), ranks: ranks, root: random.IntN(ranks), typ: typ, op: op,
				count: count, inPlace: c.Internal().InPlace() && random.IntN(2) == 1,
			},
			o: own{comm: comm, runner: runner, stream: stream, in: s.in, out: s.out, overlap: random.IntN(2) == 1, choice: collective.Choice{
				Algorithm: c.Algorithms()[random.IntN(len(c.Algorithms()))], Blocks: 1 + random.IntN(16), Threads: 32 << random.IntN(3),
			}},
		}
		if runner.Internal().Fits(k.o.call(&k.p)) == nil && (byHost || !c.Internal().ByHost(k.o.choice.Algorithm)) {
			return k
		}
	}
}

// soakBatch runs the calls of a batch one behind the other and checks them.
func soakBatch(ctx context.Context, comm *communicator.Communicator, batch []*soaked, referees map[collective.Type]*referee) error {
	calls := make([]collective.Call, len(batch))
	for i, k := range batch {
		calls[i] = k.o.call(&k.p)
	}
	if err := together(ctx, comm, batch[0].o.runner.Internal().Compile(ctx, calls)); err != nil {
		return err
	}
	launches := make([]func(*gpu.Stream) error, len(batch))
	for i, k := range batch {
		if err := referees[k.p.typ].fill(ctx, &k.p, k.in.Buffer, k.out.Buffer, k.seed); err != nil {
			return err
		}
		var err error
		if launches[i], err = k.launch(ctx); err != nil {
			return err
		}
	}
	// No peer writes into an output before it is poisoned.
	if err := comm.Barrier(ctx); err != nil {
		return err
	}
	for i, k := range batch {
		if err := launches[i](k.o.stream); err != nil {
			return err
		}
	}
	if err := comm.Synchronize(ctx, batch[0].o.stream); err != nil {
		return err
	}
	for i, k := range batch {
		wrong, sum, err := referees[k.p.typ].check(ctx, &k.p, k.out.Buffer, k.seed, k.contestant().roundings(k.p.ranks))
		if err != nil {
			return err
		}
		wrong, same, err := agree(ctx, comm, wrong, sum)
		if err != nil {
			return err
		}
		if wrong != 0 || !same && k.p.alike() {
			return fmt.Errorf("call %d of a batch, %s by %+v of %d %s, unprepared %v, in place %v: %d wrong, the same bits on all ranks: %v",
				i, k.p.collective, k.o.choice, k.p.count, k.p.typ, k.unprepared, k.p.inPlace, wrong, same)
		}
	}
	return nil
}
