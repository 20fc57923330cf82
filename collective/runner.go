package collective

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/topology"
)

// Options configure a runner, alike on all ranks. The zero value is right for most
// uses.
type Options struct {
	// Tuning chooses the algorithms. nil means [DefaultTuning].
	Tuning *Tuning
	// Scratch is the bytes of device memory for the input, and as many for the output, of calls
	// on any buffer whose algorithms reach the peers' memory; see [Runner.AllReduce]. On several
	// hosts it is for the two together. It is allocated when it is first needed. Larger calls go
	// through it in pieces. 0 means 64 MiB. Reductions have as much for the sums of other hosts (hier).
	// A size other than 64 MiB also bounds other memory between hosts: for what groups and all-to-alls
	// with counts send, and for what they receive, though each rank has 16 KiB at least; and, for both
	// together, for what other all-to-alls, gathers and scatters pass on (hier).
	Scratch uint64
	// MaxBlocks bounds the blocks of each kernel, and so the multiprocessors that it takes from
	// kernels on other streams. The tuning's rules for so few blocks count then (see
	// [Rule].Within), and others have fewer blocks than they ask for. Algorithms that need
	// more are not chosen: on several hosts, what only moves data needs 2, but for all-to-alls
	// with counts and groups. 0 means no bound.
	MaxBlocks int
}

// Runner runs collectives on one rank. Its memory and kernels are its own; the
// packets are in a scratch that the runners of a communicator share, of
// [communicator.Options].Scratch bytes. A communicator may have several.
type Runner struct {
	comm    *communicator.Communicator
	machine *topology.Machine
	scratch uint64       // Options.Scratch
	group   layout.Group // of the ranks of this one's host
	place   place
	tuning  *Tuning
	link    string
	arch    string     // of this rank's device
	lines   bool       // 128 bytes that a warp stores arrive whole at all ranks of the host
	links   *linkRules // for its links; nil if these are unknown
	room    uint64     // bytes of the inbox
	order   *order
	number  uint64   // among the runners of a communicator, from 1, the same on all ranks
	name    string   // suffix of descriptions, of the number
	rings   bulkRing // of the blocks of bulk.cu

	maxBlocks int // Options.MaxBlocks

	groups   groups   // with mu held
	prepared prepared // likewise

	mu        sync.Mutex
	plans     map[planKey]*plan
	calls     map[callKey]*anyCall // of the latest counts and roots
	staging   staging
	modules   map[unitKey]*agreed
	loads     map[string]*module  // all, by unit and options
	own       map[purpose]*Memory // made by the first calls that need it
	hostPaths map[pathKey]*hostPath
	threads   proxyservice.Threads // serve the host paths, unless the communicator's do
	memories  map[*Memory]bool     // that are open
	numbers   uint64               // of memories so far
	preparedV uint64               // all-to-alls with counts so far
	closed    atomic.Bool          // written with mu held

	generation atomic.Uint64 // counts the groups that the runner has left; written with mu held
	before     earlier
	left       []func() error // close what calls have made that failed on other ranks
	joining    bool           // Reform has failed, or is under way
}

// New makes a rank's runner. Collective. In a group that [communicator.Communicator.Reform] forms,
// newcomers call it where the others call [Runner.Reform]. Then it also prepares what the others have
// for calls on any buffer. After an error of a context, on any rank, all may call it again, also
// ranks on which it worked.
//
// Errors: ErrInvalid for a communicator that is nil or closed; as for
// [communicator.Communicator.HostGroup] and [DefaultTuning].
func New(ctx context.Context, comm *communicator.Communicator, o Options) (*Runner, error) {
	if comm == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "collective: make a runner", "the communicator is nil")
	}
	return newRunner(ctx, comm, o, machineOf(comm.Device()), comm.Device().Info().Arch)
}

// newRunner is New on a machine, with a device of that architecture; see linkOf.
func newRunner(ctx context.Context, comm *communicator.Communicator, o Options, machine *topology.Machine, arch string) (*Runner, error) {
	if o.Tuning == nil {
		var err error
		if o.Tuning, err = DefaultTuning(); err != nil {
			return nil, err
		}
	}
	r := &Runner{
		machine: machine, arch: arch, scratch: o.Scratch, tuning: o.Tuning, room: pushedInbox, rings: defaultBulkRing, maxBlocks: o.MaxBlocks,
		plans: map[planKey]*plan{}, calls: map[callKey]*anyCall{}, staging: staging{lines: leastLines},
		modules: map[unitKey]*agreed{}, loads: map[string]*module{},
		hostPaths: map[pathKey]*hostPath{}, memories: map[*Memory]bool{}, own: map[purpose]*Memory{},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.join(ctx, comm); err != nil {
		r.closed.Store(true)
		if r.order != nil {
			r.order.part(r)
		}
		return nil, errors.Join(err, r.release())
	}
	return r, nil
}

// Internal is for packages of this module.
func (r *Runner) Internal() inside.Runner[Call] { return runnerInside{r} }

type runnerInside struct{ *Runner }

func (r runnerInside) Agree(ctx context.Context, step, text string, wrong error) error {
	if err := r.begin("collective: " + step); err != nil {
		return cmp.Or(wrong, err)
	}
	defer r.mu.Unlock()
	return r.prepareTogether(ctx, step, text, wrong, func(context.Context) error { return nil })
}

// Link returns the kind of link between the ranks: [NVLink] if the GPUs of all have such
// links and one compute capability, of 7.0 or more, and the GPUs of a host's ranks all reach each other
// by the links; "emulated" if all devices are; else "other".
func (r *Runner) Link() string { return r.link }

// Close releases what the runner has: its kernels, and, once all ranks have called
// it, its memories with their channels; then it returns when all ranks have released
// theirs. Operations must have ended on this rank, and graphs that hold calls can no
// longer be launched. In a group that has failed, or that this rank has left, it waits
// for nobody. Closing the communicator closes it too. It is safe to call twice. Collective.
func (r *Runner) Close(ctx context.Context) error {
	if r == nil || r.comm == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Swap(true) {
		return nil
	}
	r.order.part(r)
	together, errs := false, []error(nil)
	for m := range r.memories {
		together = together || !m.left() // newcomers do not have the others
	}
	for _, h := range r.hostPaths {
		if h.comm != r.comm {
			continue
		}
		together = true
		if h.outlasts && r.comm.Err() == nil && r.order.serves(r.comm) {
			errs = append(errs, h.settle(ctx))
		}
	}
	if !together {
		return r.release()
	}
	return errors.Join(append(errs, r.partWith(ctx, r.release))...)
}

// release releases everything.
func (r *Runner) release() error {
	var errs []error
	for _, path := range r.hostPaths {
		errs = append(errs, path.close())
	}
	clear(r.hostPaths)
	for m := range r.memories {
		errs = append(errs, m.release())
	}
	for _, close := range r.left {
		errs = append(errs, close())
	}
	for _, m := range r.own {
		errs = append(errs, m.Buffer.Close())
	}
	errs = append(errs, r.groups.release())
	for _, m := range r.loads {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// partWith waits until all ranks are about to release what their peers reach, releases
// this rank's, and waits until all have. The driver frees memory only when no kernel runs on
// the GPU: a kernel that waited for a rank of the same process would keep that rank from
// releasing. It waits for nobody if the group has failed, or if the communicator is closed:
// that has waited for all.
func (r *Runner) partWith(ctx context.Context, release func() error) error {
	return errors.Join(r.meet(ctx), release(), r.meet(ctx))
}

func (r *Runner) meet(ctx context.Context) error {
	if r.comm.Err() != nil || !r.order.serves(r.comm) {
		return nil
	}
	return r.comm.Barrier(ctx)
}

// wrong implements use.
func (r *Runner) wrong() string {
	if r.closed.Load() {
		return "a runner" + usesClosed
	}
	return ""
}

// The bounds of a rank's part in an exchange, in bytes.
const (
	mostText         = 8192
	mostName         = 256
	mostIntroduction = 64 << 10
)

// mostContent bounds what a rank tells: a text, an introduction, or the counts of an all-to-all.
func (r *Runner) mostContent() int { return max(mostIntroduction, 64+16*r.comm.Size()) }

// exchange collects a message of each rank in a step of a collective call, which has the
// same name on all ranks. failed is why this rank's part failed, if it did; then the call fails on
// all ranks, and no rank waits for one that gave up. Collective.
func (r *Runner) exchange(ctx context.Context, name, mine string, failed error) ([]string, error) {
	ctx, cancel := r.comm.Internal().Patient(ctx)
	defer cancel()
	cut := func(s string, n int) string { return s[:min(len(s), n)] }
	w := wire.NewWriter(len(mine) + 2*mostName)
	w.String(cut(name, mostName))
	part := watch.FailedPartOf(failed)
	w.U8(uint8(part.Kind))
	w.String(cmp.Or(part.Text, mine))
	all, err := r.comm.AllGather(ctx, w.Bytes())
	if err != nil {
		if r.comm.Err() != nil { // which ended what failed here, perhaps, such as a compiler
			return nil, errors.Join(err, failed)
		}
		return nil, errors.Join(failed, err)
	}
	op := "collective: " + name
	texts := make([]string, len(all))
	for rank, b := range all {
		read := wire.NewReader(b)
		switch theirs := read.String(mostName); {
		case read.Err() != nil:
			return nil, errors.Join(failed, r.because(rank, mscclgo.ErrInvalid, op, "it is in another call (its message has no name of a step: %w); %s", read.Err(), inOrder))
		case theirs != cut(name, mostName):
			return nil, errors.Join(failed, r.because(rank, mscclgo.ErrInvalid, op, "it is in %q; %s", theirs, inOrder))
		}
		kind := mscclgo.Kind(read.U8())
		texts[rank] = read.String(r.mostContent())
		if err := read.End(); err != nil {
			return nil, r.because(rank, mscclgo.ErrRemote, op, "its message is malformed: %w", err)
		}
		if kind != 0 && failed == nil {
			failed = r.because(rank, mscclgo.ErrRemote, op, "its part failed: %w", &watch.FailedPart{Kind: kind, Text: texts[rank]})
		}
	}
	return texts, failed
}

// inOrder is what ranks that are in different steps have not heeded.
const inOrder = "all ranks make the same calls in the same order, and a call that ended with its context counts too"

// because returns the error of a collective call that fails because of another rank. A program may fail
// another group of its with it, in which ranks have other numbers.
func (r *Runner) because(rank int, kind mscclgo.Kind, op, format string, args ...any) error {
	return r.comm.Internal().OwnError(mscclgo.Errorf(kind, op, format, args...).At(r.comm.Rank(), rank))
}

// differs returns the error of a rank that says something else than this one in a step of that name.
func (r *Runner) differs(rank int, name, theirs, mine string) error {
	return r.because(rank, mscclgo.ErrInvalid, "collective: "+name, "it has %s, this rank %s", theirs, mine)
}
