package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/nccl"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
)

//go:embed rings.cu
var ringsSource []byte

// ringShape is a grid of blocks, each with a ring of its own: half of them one way and half the
// other, if there are two ways. They begin in waves, one after another.
type ringShape struct{ blocks, ways, waves int }

func (s ringShape) String() string {
	text := fmt.Sprintf("%d blocks", s.blocks)
	if s.ways == 2 {
		text = fmt.Sprintf("%d+%d blocks", s.blocks/2, s.blocks/2)
	}
	if s.waves > 1 {
		text += fmt.Sprintf(" in %d waves", s.waves)
	}
	return text
}

// apart returns how long a wave begins before the next: as long as a link takes for the bytes that
// the wave sends at a time, but no longer than a hop takes besides, as waiting longer gains nothing.
func (s ringShape) apart(piece uint64) time.Duration {
	const rate, most = 350, 1500 * time.Nanosecond // bytes a nanosecond
	return min(time.Duration(uint64(s.blocks/s.waves)*piece/rate), most)
}

// ringSizes are what all-reduces by rings of pipes are timed with.
type ringSizes struct {
	sizes   []uint64 // bytes of float16
	slots   []uint64 // bytes, in ascending order
	shapes  []ringShape
	threads int // of a block
	timing  Config
}

func (t *primitives) ringSizes() ringSizes {
	if emulated(t.comm) {
		return ringSizes{
			sizes: []uint64{32 << 10}, slots: []uint64{512, 1 << 10}, shapes: []ringShape{{2, 1, 1}, {2, 2, 1}, {2, 1, 2}}, threads: 32,
			timing: Config{Iters: 1, Replays: 1, Rounds: 1, Graph: true},
		}
	}
	return ringSizes{
		sizes: []uint64{4 << 20, 64 << 20, 256 << 20}, slots: []uint64{128 << 10, 256 << 10, 512 << 10},
		shapes: []ringShape{{16, 1, 1}, {32, 1, 1}, {64, 1, 1}, {128, 1, 1}, {64, 1, 4}, {128, 1, 4}, {32, 2, 1}, {64, 2, 1}}, threads: 512,
		timing: Config{Iters: 20, Warmup: 20, Replays: 7, Rounds: 3, Graph: true},
	}
}

// pipeRings are one rank's state.
type pipeRings struct {
	*primitives
	ringSizes
	numbers *ringNumbers
	data    *gpu.Buffer // what is reduced, in place
	kernel  *gpu.Kernel
	nccl    *ncclContestant // or nil
}

// rings times all-reduces by rings of pipes, beside NCCL's ring where that can be.
func (t *primitives) rings(ctx context.Context) error {
	r, err := t.newRings(ctx, t.ringSizes())
	if err != nil {
		return err
	}
	if err := r.meetNCCL(ctx); err != nil {
		return err
	}
	for _, bytes := range r.sizes {
		if err := r.size(ctx, bytes); err != nil {
			return err
		}
	}
	return nil
}

// newRings makes what all sizes have in common. Collective.
func (t *primitives) newRings(ctx context.Context, s ringSizes) (*pipeRings, error) {
	r := &pipeRings{primitives: t, ringSizes: s}
	r.numbers = newRingNumbers(t.comm.Rank(), t.comm.Size(), s.sizes)
	var err error
	if r.data, err = gpu.Upload(t.comm.Device(), r.numbers.mine); err != nil {
		return nil, err
	}
	t.closers = append(t.closers, r.data.Close)
	module, err := devicecode.Load(ctx, t.comm.Device(), "rings.cu", ringsSource, devicecode.Options{})
	if err != nil {
		return nil, err
	}
	t.closers = append(t.closers, module.Close)
	if r.kernel, err = module.Kernel("rings"); err != nil {
		return nil, err
	}
	fit, err := t.comm.MaxBlocks(ctx, r.kernel, r.threads, 0)
	if err != nil {
		return nil, err
	}
	var shapes []ringShape
	for _, shape := range r.shapes {
		shape.blocks = min(shape.blocks, fit) / shape.ways * shape.ways
		// Between two ranks there is one way.
		if shape.blocks > 0 && (shape.ways == 1 || t.comm.Size() > 2) && !slices.Contains(shapes, shape) {
			shapes = append(shapes, shape)
		}
	}
	r.shapes = shapes
	return r, nil
}

// meetNCCL makes a communicator of NCCL's that has rings only. Where that cannot be, rank 0
// says why. Collective.
func (r *pipeRings) meetNCCL(ctx context.Context) error {
	if emulated(r.comm) {
		return nil
	}
	// NCCL looks when a communicator is made; nothing else here uses it.
	if err := os.Setenv("NCCL_ALGO", "Ring"); err != nil {
		return err
	}
	group := &ncclGroup{}
	library, err := nccl.Open(r.library)
	if err == nil && r.comm.Internal().Sharers() > 1 {
		err = errors.New("NCCL has no ranks that share a GPU")
	}
	if err == nil {
		err = group.open(library, r.comm.Device())
	}
	if err = together(ctx, r.comm, err); err == nil {
		err = together(ctx, r.comm, group.join(ctx, r.comm, 0))
	}
	switch {
	case err == nil:
		r.closers = append(r.closers, func() error { return group.close(r.comm.Err()) })
		r.nccl = &ncclContestant{name: "NCCL's ring", comm: r.comm, group: group, in: r.data, out: r.data}
		return nil
	case r.comm.Err() != nil || ctx.Err() != nil:
		return err
	}
	fmt.Fprintf(r.sinks.Table, "# no ring of NCCL's: %v\n", err)
	return group.abort()
}

// ringContestant is one way to do the all-reduce; repeat is as in a [contestant].
type ringContestant struct {
	name   string
	repeat func(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error)
}

// pipeRing is an all-reduce in place by rings of pipes.
type pipeRing struct {
	*pipeRings
	shape ringShape
	slot  uint64
	pipes *communicator.Pipes
}

func (k *pipeRing) name() string {
	return fmt.Sprintf("ring of pipes, %v, slots of %s", k.shape, bytesize.Format(k.slot))
}

func (k *pipeRing) repeat(_ context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	piece := min(p.count*uint64(p.typ.Size())/uint64(k.shape.blocks*p.ranks), k.slot)
	launch := func(s *gpu.Stream) error {
		return k.kernel.Launch(s, gpu.Blocks(k.shape.blocks, k.threads), k.pipes.Set(), k.shape.ways, k.shape.waves, k.shape.apart(piece).Nanoseconds(), p.rank, p.ranks, k.data, p.count)
	}
	return newLaunches(k.comm, k.stream, launch, iters, replays, graph)
}

// open makes the rings of a size: for each shape, those with slots that cut a piece of the data
// into more chunks than larger ones do. Collective.
func (r *pipeRings) open(ctx context.Context, bytes uint64) (all []*pipeRing, err error) {
	rank, ranks := r.comm.Rank(), r.comm.Size()
	next, previous := (rank+1)%ranks, (rank+ranks-1)%ranks
	for _, shape := range r.shapes {
		piece := bytes / uint64(shape.blocks*ranks)
		for i, slot := range r.slots {
			if i > 0 && r.slots[i-1] >= piece {
				break
			}
			k := &pipeRing{pipeRings: r, shape: shape, slot: slot}
			k.pipes, err = r.comm.Pipes(ctx, communicator.PipeOptions{
				To: []int{next, previous}[:shape.ways], From: []int{previous, next}[:shape.ways],
				PerPeer: shape.blocks / shape.ways, Size: channel.PipeSize{SlotBytes: slot},
			})
			if err != nil {
				return nil, err
			}
			r.closers = append(r.closers, k.pipes.Close)
			all = append(all, k)
		}
	}
	return all, nil
}

// size times all-reduces of a size, all of them in turns, and prints the best slots of each
// shape.
func (r *pipeRings) size(ctx context.Context, bytes uint64) error {
	ours, err := r.open(ctx, bytes)
	if err != nil {
		return err
	}
	var all []ringContestant
	for _, k := range ours {
		all = append(all, ringContestant{k.name(), k.repeat})
	}
	if r.nccl != nil {
		all = append(all, ringContestant{r.nccl.name, r.nccl.repeat})
	}
	times, err := r.compete(ctx, bytes, all)
	if err != nil {
		return err
	}
	if err := r.print(bytes, ours, times); err != nil {
		return err
	}
	if err := r.comm.Barrier(ctx); err != nil {
		return err
	}
	var errs []error
	for _, k := range ours {
		errs = append(errs, k.pipes.Close())
	}
	return errors.Join(errs...)
}

// compete checks all contestants, times them in turns, and checks them again. Collective.
func (r *pipeRings) compete(ctx context.Context, bytes uint64, all []ringContestant) (_ []Times, err error) {
	p := &problem{
		collective: collective.AllReduce, rank: r.comm.Rank(), ranks: r.comm.Size(), typ: collective.F16, op: collective.Sum,
		count: bytes / uint64(collective.F16.Size()), inPlace: true,
	}
	if err := r.verifyAll(ctx, p, all); err != nil {
		return nil, err
	}
	var ready []repeated
	defer func() {
		for _, one := range ready {
			err = errors.Join(err, one.close())
		}
	}()
	for _, k := range all {
		one, err := k.repeat(ctx, p, r.timing.Iters, r.timing.Replays, r.timing.Graph)
		if err != nil {
			return nil, err
		}
		ready = append(ready, one)
	}
	times, err := inTurns(ctx, r.comm, &r.timing, ready)
	if err != nil {
		return nil, err
	}
	return times, r.verifyAll(ctx, p, all)
}

// print reports the best of each shape, NCCL's time, which is the last, and the ratio of the
// best of all to it.
func (r *pipeRings) print(bytes uint64, ours []*pipeRing, times []Times) error {
	best := map[ringShape]int{}
	least := 0
	for i, k := range ours {
		if other, there := best[k.shape]; !there || times[i].Median < times[other].Median {
			best[k.shape] = i
		}
		if times[i].Median < times[least].Median {
			least = i
		}
	}
	for _, shape := range r.shapes {
		i := best[shape]
		if err := r.report(ours[i].name(), bytes, micros(times[i].Median), "us"); err != nil {
			return err
		}
	}
	if r.nccl == nil {
		return nil
	}
	theirs := times[len(ours)].Median
	if err := r.report(r.nccl.name, bytes, micros(theirs), "us"); err != nil {
		return err
	}
	return r.report("ring of pipes over NCCL's ring", bytes, micros(times[least].Median)/micros(max(theirs, 1)), "ratio")
}
