package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/nccl"
)

// ncclGroup is this rank's NCCL communicator, and what is made of it. Each thing to
// compare with has one of its own, so that one that fails does not take the other
// along.
type ncclGroup struct {
	queue   *nccl.Queue
	windows []*nccl.Memory
	mapped  []*gpu.Buffer // of the windows
}

// loadNCCL loads the library, if the configuration compares with it. Collective.
func (b *bench) loadNCCL(ctx context.Context) error {
	if len(b.cfg.Compare) == 0 {
		return nil
	}
	var err error
	if b.library, err = nccl.Open(b.cfg.NCCL); err == nil && b.comm.Device().Info().PCIBusID == "" {
		err = mscclgo.Errorf(mscclgo.ErrUnsupported, "bench: compare with NCCL", "%v is no NVIDIA GPU", b.comm.Device())
	}
	if err := together(ctx, b.comm, err); err != nil {
		return err
	}
	fmt.Fprintf(b.sinks.Table, "# NCCL %s\n", b.library.Version())
	return nil
}

// meetNCCL makes the contestants that the configuration compares with. They are of
// one collective only: NCCL 2.28 with windows did not end at a broadcast after all
// the others, and does by itself. Collective.
func (b *bench) meetNCCL(ctx context.Context) error {
	for _, name := range b.cfg.Compare {
		g := &ncclGroup{}
		b.nccl[name] = g
		var err error
		g.queue, err = b.library.NewQueue(b.comm.Device().Info().PCIBusID)
		if err := together(ctx, b.comm, err); err != nil {
			return err
		}
		if err := g.join(ctx, b.comm); err != nil {
			return err
		}
		k := &ncclContestant{name: name, comm: b.comm, queue: g.queue, in: b.in.Buffer, out: b.out.Buffer}
		if name == withNCCLSym {
			if k.in, k.out, err = g.symmetric(b.comm.Device(), b.most()+guard); err != nil {
				return err
			}
		}
		b.others[name] = k
	}
	return nil
}

// leaveNCCL releases what meetNCCL made. failed is why this rank gives up, if it
// does. Collective.
func (b *bench) leaveNCCL(failed error) error {
	if Stuck(failed) {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(b.nccl)) { // so on all ranks in one order
		errs = append(errs, b.nccl[name].close(failed))
	}
	clear(b.nccl)
	clear(b.others)
	return errors.Join(errs...)
}

// ncclPatience bounds what is awaited of NCCL, which has no deadline of its own.
const ncclPatience = 10 * time.Second

// gaveUp is the error of a contestant of NCCL's that failed, the same on all ranks.
type gaveUp struct {
	name  string
	err   error
	stuck bool // its work did not end, and may hold the GPU for good
}

func (g *gaveUp) Error() string {
	if g.stuck {
		return fmt.Sprintf("%s: %v; it may hold the GPU for good, so the run ends here: leave %s out of what is compared", g.name, g.err, g.name)
	}
	return g.name + ": " + g.err.Error()
}
func (g *gaveUp) Unwrap() error { return g.err }

// Stuck says whether another library's work did not end on the GPU. Then [Run] has
// released nothing, and whoever would, or waits for the device, may never return.
func Stuck(err error) bool {
	var g *gaveUp
	return errors.As(err, &g) && g.stuck
}

// drop goes on without what gave up, until the next collective.
func (b *bench) drop(g *gaveUp, c *collective.Collective) {
	fmt.Fprintf(b.sinks.Table, "# %v; %s goes on without it\n", g, c.Name)
	delete(b.others, g.name)
	queue := b.nccl[g.name].queue
	delete(b.nccl, g.name)
	// An abort that does not end is left alone.
	_ = within(context.Background(), "abort", func() error { return queue.Close(true) })
}

// within calls what may never return.
func within(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, ncclPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, "bench: NCCL: "+what, "")
	}
}

// together gives an error on all ranks where one has one, so that none waits for
// it. Collective.
func together(ctx context.Context, c *communicator.Communicator, mine error) error {
	text := []byte{}
	if mine != nil {
		text = []byte(mine.Error())
	}
	all, err := c.Bootstrap().AllGather(ctx, text)
	if mine != nil || err != nil {
		return errors.Join(mine, err)
	}
	for rank, theirs := range all {
		if len(theirs) > 0 {
			return mscclgo.Errorf(mscclgo.ErrRemote, "bench: prepare", "%s", theirs).At(c.Rank(), rank)
		}
	}
	return nil
}

// join makes the communicator. Collective.
func (g *ncclGroup) join(ctx context.Context, c *communicator.Communicator) error {
	var id nccl.ID
	var err error
	if c.Rank() == 0 {
		id, err = g.queue.NewID()
	}
	if err := together(ctx, c, err); err != nil {
		return err
	}
	shared, err := c.Bootstrap().Broadcast(ctx, 0, id[:])
	if err != nil {
		return err
	}
	copy(id[:], shared)
	return g.queue.Join(ctx, id, c.Rank(), c.Size())
}

// symmetric gives two buffers in symmetric windows. Collective.
func (g *ncclGroup) symmetric(d *gpu.Device, bytes uint64) (in, out *gpu.Buffer, err error) {
	var buffers [2]*gpu.Buffer
	for i := range buffers {
		window, err := g.queue.Alloc(bytes)
		if err != nil {
			return nil, nil, err
		}
		g.windows = append(g.windows, window)
		if buffers[i], err = d.Wrap(window.Ptr, bytes); err != nil {
			return nil, nil, err
		}
		g.mapped = append(g.mapped, buffers[i])
	}
	return buffers[0], buffers[1], nil
}

// close releases everything; failed is why this rank gives up, if it does. Then
// the windows, which are given back together, go with the process.
func (g *ncclGroup) close(failed error) error {
	var errs []error
	for _, b := range g.mapped {
		errs = append(errs, b.Close())
	}
	if failed == nil {
		for _, w := range g.windows {
			errs = append(errs, w.Close())
		}
		errs = append(errs, g.queue.Close(false))
	}
	return errors.Join(errs...)
}

// ncclContestant is NCCL, on this library's buffers or on its own.
type ncclContestant struct {
	name    string
	comm    *communicator.Communicator
	queue   *nccl.Queue
	in, out *gpu.Buffer
}

func (k *ncclContestant) buffers() (in, out *gpu.Buffer) { return k.in, k.out }

// roundings is what a ring or a tree has: one at each rank.
func (k *ncclContestant) roundings(ranks int) int { return ranks }

// agree gives all ranks an error where one has one. begun says whether there may be
// work on the GPU. Collective.
func (k *ncclContestant) agree(ctx context.Context, err error, begun bool) error {
	if err = together(ctx, k.comm, err); err == nil || k.comm.Err() != nil || ctx.Err() != nil {
		return err
	}
	return &gaveUp{k.name, err, begun}
}

func (k *ncclContestant) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (_ repeated, err error) {
	in, out := k.in, k.out
	if p.inPlace {
		in = out
	}
	call := nccl.Call{
		Collective: p.collective.Name, Type: p.typ.Name, Op: p.op.Name, Count: p.count, PartBytes: p.part(), Root: p.root,
		In:  in.Ptr() + gpu.Ptr(p.part()*uint64(p.collective.InOffset(p.rank, p.inPlace))),
		Out: out.Ptr() + gpu.Ptr(p.part()*uint64(p.collective.OutOffset(p.rank, p.inPlace))),
	}
	r := &ncclRepeated{k: k, q: k.queue, call: call, iters: iters}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for range replays + 1 {
		e, err := k.queue.NewEvent()
		if err != nil {
			return nil, err
		}
		r.marks = append(r.marks, e)
	}
	if !graph {
		return r, nil
	}
	var made *nccl.Graph
	err = within(ctx, "capture", func() (err error) {
		if err := k.queue.Begin(); err != nil {
			return err
		}
		failed := r.each()
		made, err = k.queue.End()
		return errors.Join(failed, err)
	})
	if err == nil {
		r.graph = made
	}
	return r, k.agree(ctx, err, false)
}

// ncclRepeated is a call to NCCL a number of times.
type ncclRepeated struct {
	k      *ncclContestant
	q      *nccl.Queue
	call   nccl.Call
	iters  int
	graph  *nccl.Graph // nil for plain launches
	failed error       // what wait tells
	marks  []*nccl.Event
}

// each queues the calls one by one.
func (r *ncclRepeated) each() error {
	for range r.iters {
		if err := r.q.Queue(r.call); err != nil {
			return err
		}
	}
	return nil
}

func (r *ncclRepeated) queue(ctx context.Context) error {
	if r.failed == nil {
		r.failed = within(ctx, "queue", func() error {
			if r.graph != nil {
				return r.graph.Launch()
			}
			return r.each()
		})
	}
	return nil // wait tells, on all ranks
}

func (r *ncclRepeated) mark(i int) error {
	if r.failed == nil {
		r.failed = r.marks[i].Record()
	}
	return nil
}

func (r *ncclRepeated) wait(ctx context.Context) error {
	err := r.failed
	if err == nil {
		patient, cancel := context.WithTimeout(ctx, ncclPatience)
		defer cancel()
		err = r.q.Synchronize(patient)
	}
	r.failed = r.k.agree(ctx, err, true)
	return r.failed
}

func (r *ncclRepeated) between(i, j int) (time.Duration, error) {
	return r.marks[j].Since(r.marks[i])
}

func (r *ncclRepeated) close() error {
	if r.failed != nil {
		return nil // what does not end cannot be released
	}
	var errs []error
	if r.graph != nil {
		errs = append(errs, r.graph.Close())
	}
	for _, e := range r.marks {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
