package collective

import (
	"cmp"
	"context"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// algorithm is one way to do some of the collectives. Each has a file, and only kind.go names it elsewhere.
type algorithm interface {
	about() *traits
	// fits returns why a call cannot be done so, beyond what the traits tell, or nil.
	fits(r *Runner, c *Call) error
}

// hosted is an algorithm by which the host moves data too.
type hosted interface {
	algorithm
	// prepare is Runner.prepare.
	prepare(ctx context.Context, r *Runner, c *Call) (launch, error)
}

// mapped is an algorithm by which kernels alone move the data, through memory that they reach.
type mapped interface {
	algorithm
	// reach returns what the kernels reach of the callers' memory in a collective.
	reach(k Kind) reach
	// piece returns the most bytes of a part that a call moves at a time, whatever the stagings hold.
	piece(r *Runner, c *Call) uint64
	// load gets the kernel, and memory of the runner's. The caller holds mu. Collective the first time.
	load(ctx context.Context, r *Runner, c *Call) (launchable, error)
	// launch returns the launch of a loaded kernel on memories.
	launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch
}

// traits are what there is to know of an algorithm besides how it moves the data.
type traits struct {
	name    string // as the user writes it
	kernel  string
	unit    unit // of the kernel, if not the kind's
	hosts   bool // the ranks may be on several hosts
	between bool // it is for ranks on several hosts
	narrow  bool // sums are kept in the elements' type
	warps   bool // it is done by whole warps
	shared  bool // its blocks share their port channels
	free    bool // its blocks need not fit at once
	// instead is the algorithm of calls on any buffers, if another, and fallback where too few of its blocks fit.
	instead, fallback string
	// blocks is the fewest blocks that the kernel may have where not 1: some have another task than others. threads
	// is the most threads of a block, where not 1024.
	blocks, threads int
}

func (t *traits) about() *traits { return t }

func (t *traits) fits(*Runner, *Call) error { return nil }

func (t *traits) piece(_ *Runner, c *Call) uint64 { return c.part() }

func (t *traits) load(ctx context.Context, r *Runner, c *Call) (launchable, error) {
	return r.kernel(ctx, c, t)
}

// mostThreads returns the most threads that a block of the kernel can have.
func (t *traits) mostThreads() int { return cmp.Or(t.threads, 1024) }

// boundedThreads is how many threads a block has at most of kernels that need many registers each, as they are
// compiled.
const boundedThreads = 512

// launchable is a kernel of which so many blocks fit.
type launchable struct {
	kernel *gpu.Kernel
	fit    int
}

// prepare returns the launch of a call that was checked, on its memories. The caller holds mu. Collective the first time
// with these memories and so many threads.
func (r *Runner) prepare(ctx context.Context, c *Call, a algorithm) (launch, error) {
	m, ok := a.(mapped)
	if !ok {
		return a.(hosted).prepare(ctx, r, c)
	}
	k, err := m.load(ctx, r, c)
	if err != nil {
		return launch{}, err
	}
	if err := r.enough(c, a.about(), k); err != nil {
		return launch{}, err
	}
	in, out := r.peers(c)
	return m.launch(r, c, k, in, out), nil
}

// divideUp returns a / b, rounded up, for any a.
func divideUp(a, b uint64) uint64 { return a/b + min(a%b, 1) }
