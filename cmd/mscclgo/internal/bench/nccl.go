package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/nccl"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// ncclGroup is this rank's NCCL communicator and what belongs to it. Each entry of
// Config.Compare has one of its own, so that a failure of one does not affect the other.
type ncclGroup struct {
	stream  *gpu.Stream
	comm    *nccl.Comm
	windows []*nccl.Memory
	mapped  []*gpu.Buffer // of the windows
}

// loadNCCL loads the library if the configuration compares with it. Collective.
func (b *bench) loadNCCL(ctx context.Context) error {
	if len(b.cfg.withAnyNCCL()) == 0 {
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

// meetNCCL makes the contestants that the configuration compares with, for one
// collective only: NCCL 2.28 with windows hung in a broadcast after all the other
// collectives, and does not by itself. Collective.
func (b *bench) meetNCCL(ctx context.Context) error {
	for _, name := range b.cfg.withAnyNCCL() {
		g := &ncclGroup{}
		b.nccl[name] = g
		err := g.open(b.library, b.comm.Device())
		if err := together(ctx, b.comm, err); err != nil {
			return err
		}
		if err := g.join(ctx, b.comm, b.most); err != nil {
			return err
		}
		k := &ncclContestant{name: name, comm: b.comm, group: g, in: b.in.Buffer, out: b.out.Buffer}
		if name == withNCCLSym {
			if k.in, k.out, err = g.symmetric(b.comm.Device(), b.room()+guard); err != nil {
				return err
			}
		}
		b.others[name] = k
	}
	return nil
}

// leaveNCCL releases what meetNCCL made. failed is the error that ended the run, or nil.
// Collective.
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

// ncclPatience bounds waits for NCCL, which has no deadline of its own.
const ncclPatience = 10 * time.Second

// gaveUp is the error of an NCCL contestant that failed, the same on all ranks.
type gaveUp struct {
	name  string
	err   error
	stuck bool // its work did not end, and may hold the GPU for good
}

func (g *gaveUp) Error() string {
	if g.stuck {
		return fmt.Sprintf("%s: %v; it may hold the GPU for good, so the run ends here: leave %s out of -compare", g.name, g.err, g.name)
	}
	return g.name + ": " + g.err.Error()
}
func (g *gaveUp) Unwrap() error { return g.err }

// Stuck reports whether an error means that another library's work did not end on the
// GPU. [Run] has then released nothing: releasing it, or waiting for the device, may
// never return.
func Stuck(err error) bool {
	var g *gaveUp
	return errors.As(err, &g) && g.stuck
}

// drop leaves out a contestant that failed until the next collective.
func (b *bench) drop(g *gaveUp, c collective.Kind) {
	fmt.Fprintf(b.sinks.Table, "# %v; %s goes on without it\n", g, c)
	delete(b.others, g.name)
	group := b.nccl[g.name]
	delete(b.nccl, g.name)
	// An abort that hangs is left alone.
	_ = within(context.Background(), "abort", func() error {
		return errors.Join(group.comm.Close(true), group.stream.Close())
	})
}

// within calls a function that may never return.
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

// together returns an error on all ranks when one has one, so that none waits for it.
// Collective.
func together(ctx context.Context, c *communicator.Communicator, mine error) error {
	text := []byte{}
	if mine != nil {
		text = []byte(mine.Error())
	}
	all, err := c.AllGather(ctx, text)
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

// open makes the stream and this rank's end of the communicator.
func (g *ncclGroup) open(library *nccl.Library, d *gpu.Device) (err error) {
	if g.stream, err = d.NewStream(); err != nil {
		return err
	}
	g.comm, err = library.NewComm(g.stream)
	return err
}

// join connects the communicator, whose kernels have `blocks` blocks, or as many as it chooses if that
// is 0. Collective.
func (g *ncclGroup) join(ctx context.Context, c *communicator.Communicator, blocks int) error {
	var id nccl.ID
	var err error
	if c.Rank() == 0 {
		id, err = g.comm.NewID()
	}
	if err := together(ctx, c, err); err != nil {
		return err
	}
	shared, err := c.Broadcast(ctx, 0, id[:])
	if err != nil {
		return err
	}
	copy(id[:], shared)
	return g.comm.Join(ctx, id, c.Rank(), c.Size(), blocks)
}

// symmetric returns two buffers in symmetric windows. Collective.
func (g *ncclGroup) symmetric(d *gpu.Device, bytes uint64) (in, out *gpu.Buffer, err error) {
	var buffers [2]*gpu.Buffer
	for i := range buffers {
		window, err := g.comm.Alloc(bytes)
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

// close releases everything; failed is the error that ended the run, or nil. After an
// error the windows, which all ranks release together, are left to the end of the
// process.
func (g *ncclGroup) close(failed error) error {
	var errs []error
	for _, b := range g.mapped {
		errs = append(errs, b.Close())
	}
	if failed == nil {
		for _, w := range g.windows {
			errs = append(errs, w.Close())
		}
		errs = append(errs, g.comm.Close(false), g.stream.Close())
	}
	return errors.Join(errs...)
}

// abort releases what has been made of a group that is not joined.
func (g *ncclGroup) abort() error {
	var errs []error
	if g.comm != nil {
		errs = append(errs, g.comm.Close(true))
	}
	if g.stream != nil {
		errs = append(errs, g.stream.Close())
	}
	return errors.Join(errs...)
}

// ncclContestant is NCCL, on this library's buffers or on its own.
type ncclContestant struct {
	name    string
	comm    *communicator.Communicator
	group   *ncclGroup
	in, out *gpu.Buffer
}

func (k *ncclContestant) buffers() (in, out *gpu.Buffer) { return k.in, k.out }

// roundings are a ring's or a tree's: one at each rank.
func (k *ncclContestant) roundings(ranks int) int { return ranks }

// agree returns an error on all ranks when one has one. begun is whether there may be
// work on the GPU. Collective.
func (k *ncclContestant) agree(ctx context.Context, err error, begun bool) error {
	if err = together(ctx, k.comm, err); err == nil || k.comm.Err() != nil || ctx.Err() != nil {
		return err
	}
	return &gaveUp{k.name, err, begun}
}

func (k *ncclContestant) repeat(ctx context.Context, p *problem, iters, replays int, graph bool) (repeated, error) {
	in, out, err := p.buffers(k.in, k.out)
	if err != nil {
		return nil, err
	}
	call := nccl.Call{
		Collective: p.collective.String(), Type: p.typ.String(), Op: p.op.String(), Count: p.count, PartBytes: p.part(), Root: p.root,
		In: in.Ptr(), Out: out.Ptr(),
	}
	made := make(chan *launches, 1)
	err = within(ctx, "capture", func() error {
		launch := func(*gpu.Stream) error { return k.group.comm.Queue(call) }
		l, err := newLaunches(k.comm, k.group.stream, launch, iters, replays, graph)
		made <- l
		return err
	})
	if failed := k.agree(ctx, err, false); failed != nil {
		if err == nil {
			failed = errors.Join(failed, (<-made).close())
		}
		return nil, failed
	}
	return &ncclRepeated{k: k, launches: <-made}, nil
}

// ncclRepeated is a call to NCCL a number of times. Its failures are known to all
// ranks once they wait.
type ncclRepeated struct {
	*launches
	k      *ncclContestant
	failed error
}

func (r *ncclRepeated) queue(ctx context.Context) error {
	if r.failed == nil {
		r.failed = within(ctx, "queue", func() error { return r.launches.queue(ctx) })
	}
	return nil
}

func (r *ncclRepeated) mark(i int) error {
	if r.failed == nil {
		r.failed = r.launches.mark(i)
	}
	return nil
}

func (r *ncclRepeated) wait(ctx context.Context) error {
	err := r.failed
	if err == nil {
		patient, cancel := context.WithTimeout(ctx, ncclPatience)
		defer cancel()
		err = r.stream.Synchronize(patient)
	}
	r.failed = r.k.agree(ctx, err, true)
	return r.failed
}

func (r *ncclRepeated) close() error {
	if r.failed != nil {
		return nil // work that does not end cannot be released
	}
	return r.launches.close()
}
