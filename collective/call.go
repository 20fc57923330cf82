package collective

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// Call is one use of a collective, the same on all ranks but for the memory's size.
type Call struct {
	Kind  Kind
	Type  Type
	Op    Op     // of a collective that reduces
	Count uint64 // elements of a part; see [Kind.InParts]
	Root  int    // of a collective that has one
	// In and Out are the data. In place, Out holds both: the input of an all-gather is this rank's part of
	// Out, the result of a reduce-scatter takes the place of its part, and others have both at the same place.
	In, Out *Memory
	InPlace bool
	// Choice is how the collective is done. The zero value leaves it to the tuning.
	Choice
	// Overlap lets the call begin while the kernel before it in the stream ends; see
	// [gpu.LaunchConfig]. It has no effect where ranks share a device: blocks that
	// have yet to wait would keep out blocks that another rank awaits.
	Overlap bool

	stride uint64 // bytes from one part of the input to the next, if not the bytes of a part
}

// Choice is a way to do a collective.
type Choice struct {
	Algorithm string // one of [Kind.Algorithms]
	// Blocks is how many there are at most; there are fewer where there is not enough to do. But algorithms
	// whose blocks have two tasks have 2 at least, and ports has one more than Blocks, and up to 17 whatever it
	// says, where threads move a part of the data. Options.MaxBlocks bounds all.
	Blocks  int
	Threads int // of a block
}

// String describes the call, such as "all-reduce of 1024 f32, sum".
func (c *Call) String() string {
	text := fmt.Sprintf("%v of %d %v", c.Kind, c.Count, c.Type)
	if c.Kind.valid() && c.Kind.Reduces() {
		text += ", " + c.Op.String()
	}
	if c.Kind.valid() && c.Kind.Rooted() {
		text += fmt.Sprintf(", root %d", c.Root)
	}
	return text
}

// holds returns how many parts a rank has of the input and of the output. Where there is
// a root, it alone has the input, or the output.
func (c *Call) holds(rank, ranks int) (in, out int) {
	in, out = c.Kind.InParts(ranks), c.Kind.OutParts(ranks)
	switch {
	case !c.Kind.Rooted() || rank == c.Root:
	case c.Kind.toRoot():
		out = 0
	default:
		in = 0
	}
	return in, out
}

// part returns the bytes of a part of a call that checkSize has passed.
func (c *Call) part() uint64 { return c.Count * uint64(c.Type.Size()) }

// checkNames returns the error of a call whose kind, type or operation is invalid.
func (c *Call) checkNames() error {
	switch {
	case !c.Kind.valid():
		return fmt.Errorf("there is no %v", c.Kind)
	case !c.Type.valid():
		return fmt.Errorf("there is no element %v", c.Type)
	case c.Kind.Reduces() && !c.Op.valid():
		return fmt.Errorf("there is no %v", c.Op)
	case c.Kind.Reduces() && !CanReduce(c.Type, c.Op):
		return fmt.Errorf("elements of %v are not reduced by %v", c.Type, c.Op)
	}
	return nil
}

// checkSize returns the bytes of a call's input and output, of all their parts, or what is wrong with its names or
// its count.
func (c *Call) checkSize(ranks int) (in, out uint64, err error) {
	if err := c.checkNames(); err != nil {
		return 0, 0, err
	}
	overflow, part := bits.Mul64(c.Count, uint64(c.Type.Size()))
	overIn, in := bits.Mul64(part, uint64(c.Kind.InParts(ranks)))
	overOut, out := bits.Mul64(part, uint64(c.Kind.OutParts(ranks)))
	if overflow|overIn|overOut != 0 || max(in, out) >= 1<<63 {
		return 0, 0, fmt.Errorf("%d elements of %d bytes for each of %d ranks are more than there can be", c.Count, c.Type.Size(), ranks)
	}
	return in, out, nil
}

// checkShape returns the error of a choice that the algorithm cannot have.
func (c Choice) checkShape(a algorithm) error {
	switch {
	case c.Blocks < 1 || c.Threads < 1:
		return fmt.Errorf("%d blocks of %d threads: there is at least one of each", c.Blocks, c.Threads)
	case a.about().warps && c.Threads%32 != 0:
		return fmt.Errorf("%s is done by whole warps, so not with blocks of %d threads", a.about().name, c.Threads)
	}
	return nil
}

// check returns the algorithm of a call, or the error of an invalid call.
func (r *Runner) check(c *Call) (algorithm, error) {
	ranks := r.comm.Size()
	in, out, err := c.checkSize(ranks)
	if err != nil {
		return nil, err
	}
	switch {
	case c.InPlace && !c.Kind.Internal().InPlace():
		return nil, fmt.Errorf("%v is not done in place", c.Kind)
	case c.Kind.Rooted() && (c.Root < 0 || c.Root >= ranks):
		return nil, fmt.Errorf("the root is rank %d of %d", c.Root, ranks)
	}
	if c.Count == 0 {
		if c.Choice != (Choice{}) {
			_, err = c.Kind.algorithm(c.Algorithm)
		}
		return nil, err
	}
	if err := r.checkMemory("output", c.Out, out); err != nil {
		return nil, err
	}
	if c.InPlace {
		err = r.checkMemory("output, which holds the input,", c.Out, in)
	} else if err = r.checkMemory("input", c.In, in); err == nil && overlap(c.In.Ptr(), in, c.Out.Ptr(), out) {
		err = errors.New("input and output overlap; Call.InPlace is for one buffer that holds both")
	}
	if err != nil {
		return nil, err
	}
	if c.Choice == (Choice{}) {
		if c.Choice, err = r.choose(c); err != nil {
			return nil, err
		}
	}
	a, err := c.Kind.algorithm(c.Algorithm)
	if err == nil {
		err = c.checkShape(a)
	}
	if err == nil {
		err = r.fit(c, a)
	}
	return a, err
}

// checkMemory returns the error of a memory that cannot hold so many bytes of a call.
func (r *Runner) checkMemory(what string, m *Memory, bytes uint64) error {
	switch {
	case m == nil:
		return fmt.Errorf("the %s is nil", what)
	case m.runner != r:
		return fmt.Errorf("the %s was shared by another runner", what)
	case m.over():
		return fmt.Errorf("the %s was closed", what)
	case m.left():
		return fmt.Errorf("the %s is of the group before: Memory.Reform carries it to this one", what)
	case m.Size() < bytes:
		return fmt.Errorf("the %s has %d bytes, and %d are needed", what, m.Size(), bytes)
	}
	_, err := m.Buffer.Slice(0, bytes) // of memory that is open
	return err
}

// overlap reports whether two ranges of memory have bytes in common.
func overlap(a gpu.Ptr, aBytes uint64, b gpu.Ptr, bBytes uint64) bool {
	return a < b+gpu.Ptr(bBytes) && b < a+gpu.Ptr(aBytes)
}

// extent is a part of memory that a call reads or writes, for the message or rank of a number.
type extent struct {
	at     gpu.Ptr
	bytes  uint64
	writes bool
	of     int
}

func (e *extent) end() gpu.Ptr { return e.at + gpu.Ptr(e.bytes) }

// overlapping returns two extents that overlap, of which one at least is written, in the order of their addresses, or nil.
// It sorts them all. None is empty.
func overlapping(all []extent) (a, b *extent) {
	slices.SortStableFunc(all, func(a, b extent) int { return cmp.Compare(a.at, b.at) })
	var last, written *extent // of all so far, and of the written ones, the one that ends last
	for i := range all {
		e, other := &all[i], written
		if e.writes {
			other = last
		}
		if other != nil && e.at < other.end() {
			return other, e
		}
		if last == nil || e.end() > last.end() {
			last = e
		}
		if e.writes && (written == nil || e.end() > written.end()) {
			written = e
		}
	}
	return nil, nil
}

func (r runnerInside) Fits(c Call) error {
	return r.asked(&c, "fit", func() error {
		a, err := c.Kind.algorithm(c.Algorithm)
		if err == nil {
			err = r.fit(&c, a)
		}
		return err
	})
}

// asked answers what is asked of a call, if its names and size are right.
func (r *Runner) asked(c *Call, verb string, answer func() error) error {
	if err := r.made(fmt.Sprintf("collective: %s %v", verb, c)); err != nil {
		return err
	}
	_, _, err := c.checkSize(r.comm.Size())
	if err == nil {
		err = answer()
	}
	if err != nil {
		return r.invalid(c, verb, err)
	}
	return nil
}

func (r *Runner) fit(c *Call, a algorithm) error {
	t := a.about()
	if hosts := len(r.comm.Hosts()); hosts > 1 && !t.hosts {
		all := c.Kind.spec().algorithms // of which some are for several hosts
		instead := all[slices.IndexFunc(all, func(a algorithm) bool { return a.about().hosts })].about().name
		return fmt.Errorf("the kernels of %s reach the memory of ranks on one host only, and the ranks are on %d hosts; take an algorithm with port channels, such as %s", t.name, hosts, instead)
	}
	if t.narrow && c.sumsGrow() > 1 {
		return fmt.Errorf("%s keeps sums in the elements' type, which is too narrow for %v of %v; take another algorithm, such as hier", t.name, c.Op, c.Type)
	}
	if 0 < r.maxBlocks && r.maxBlocks < t.blocks {
		return fmt.Errorf("%s needs %d blocks, and the runner's kernels have at most %d (Options.MaxBlocks)", t.name, t.blocks, r.maxBlocks)
	}
	return a.fits(r, c)
}

// sumsGrow returns how many times as many bytes as elements a reduction takes that is
// not finished: 1, but for the sums behind averages, and sums of fp8; see kWideSums of
// reduce.cuh.
func (c *Call) sumsGrow() uint64 {
	switch fp8 := c.Type == F8E4M3 || c.Type == F8E5M2; {
	case c.Op == Max || c.Op == Min || c.Op != Avg && !fp8:
		return 1
	case fp8 || c.Type == U8:
		return 4
	case c.Type == F16 || c.Type == BF16 || c.Type == I32:
		return 2
	}
	return 1
}

// Choose returns what the runner's tuning says about a call: the choice of a call
// whose Choice is zero.
//
// Errors: ErrUnsupported where no rule is for it.
func (r *Runner) Choose(c Call) (choice Choice, err error) {
	err = r.asked(&c, "choose", func() (err error) {
		choice, err = r.choose(&c)
		return err
	})
	return choice, err
}

// choose is Choose for a call whose names and size are right.
func (r *Runner) choose(c *Call) (Choice, error) {
	choice, ok, why := r.look(c, func(algorithm) bool { return true })
	size, ranks := c.size(r.comm.Size()), r.comm.Size()
	toModel := func(rule Rule) bool {
		return rule.Algorithm == byModel && rule.matches(r.link, c.Kind, ranks, size, r.maxBlocks)
	}
	switch {
	case ok:
		return choice, nil
	case why == nil && r.links == nil && slices.ContainsFunc(r.tuning.Rules, toModel):
		why = fmt.Errorf("the tuning leaves %v of %d bytes on %d ranks to the model of time, which does not know the links of these devices; add a rule that names an algorithm",
			c.Kind, size, ranks)
	case why == nil:
		why = fmt.Errorf("the tuning has no rule for %v of %d bytes on %d ranks", c.Kind, size, ranks)
	default:
		why = fmt.Errorf("no algorithm that the tuning has for it can be taken: %w", why)
	}
	return Choice{}, mscclgo.Errorf(mscclgo.ErrUnsupported, "collective: choose", "%w", why).At(r.comm.Rank(), mscclgo.NoRank)
}

// look returns the choice of the first rule whose algorithm and grid can be taken and suit, and why others
// cannot, if there are such: there may be no algorithm of that name.
func (r *Runner) look(c *Call, suits func(algorithm) bool) (choice Choice, ok bool, why error) {
	choice, ok = r.tuning.choose(r.link, r.links, c.Kind, r.comm.Size(), c.size(r.comm.Size()), r.maxBlocks, func(choice Choice) bool {
		a, err := c.Kind.algorithm(choice.Algorithm)
		if err == nil {
			err = r.fit(c, a)
		}
		if err == nil {
			err = choice.checkShape(a)
		}
		if err == nil && choice.Threads > a.about().mostThreads() {
			err = fmt.Errorf("%s is done with blocks of %d threads at most, and not of %d", a.about().name, a.about().mostThreads(), choice.Threads)
		}
		if err != nil {
			why = err
		}
		return err == nil && suits(a)
	})
	return choice, ok, why
}

// size returns the bytes by which rules go.
func (c *Call) size(ranks int) uint64 { return c.part() * uint64(c.Kind.Parts(ranks)) }

// invalid wraps what is wrong with a call.
func (r *Runner) invalid(c *Call, verb string, err error) error {
	return wrap(r.comm, fmt.Sprintf("collective: %s %v", verb, c), err)
}

// wrap wraps an error, unless it is nil or one of op on this rank. It is ErrInvalid unless it
// has a kind.
func wrap(comm *communicator.Communicator, op string, err error) error {
	if err == nil {
		return nil
	}
	kind, peer := mscclgo.ErrInvalid, mscclgo.NoRank
	var typed *mscclgo.Error
	if errors.As(err, &typed) {
		if kind, peer = typed.Kind, typed.Peer; typed.Op == op && typed.Rank == comm.Rank() {
			return err
		}
	}
	return mscclgo.Errorf(kind, op, "%w", err).At(comm.Rank(), peer)
}
