package collective

import (
	"context"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
)

// Memory is a buffer of this rank that all ranks reach, as this rank sees it.
type Memory struct {
	*gpu.Buffer
	Peers devicecode.PeerMemory // those of [communicator.Communicator.HostRanks]: all ranks', on one host
}

// Call is one use of a collective, the same on all ranks but for the memory.
type Call struct {
	Collective *Collective
	Choice
	Type  elements.Type
	Op    elements.Op // of a collective that reduces
	Count uint64      // elements of a part
	Root  int         // of a collective that has one
	// In and Out are the data. In place, all are in Out; see
	// [Collective.InOffset].
	In, Out Memory
	InPlace bool
	// Overlap lets the call begin while the kernel before it in the stream ends;
	// see [gpu.LaunchConfig]. It is without effect where ranks share a device:
	// blocks that have yet to wait would keep out those that another rank awaits.
	Overlap bool
}

// Choice says how a collective is done.
type Choice struct {
	Algorithm string
	Blocks    int // at most; fewer where there is not enough to do
	Threads   int // of a block
}

// part gives the bytes of a part.
func (c *Call) part() uint64 { return c.Count * uint64(c.Type.Size) }

// Runner runs collectives on one rank. Its memory and kernels are its own; the
// packets are in the communicator's scratch.
type Runner struct {
	comm    *communicator.Communicator
	group   devicecode.Group // of the ranks of this one's host
	modules map[string]*gpu.Module
	fits    map[fitKey]int // blocks
	host    *hostPath      // made by the first call that needs it
	inbox   *inbox         // likewise
	room    uint64         // bytes of the inbox
}

// NewRunner makes a rank's runner. Collective.
//
// Errors: those of [communicator.Communicator.HostGroup].
func NewRunner(ctx context.Context, comm *communicator.Communicator) (*Runner, error) {
	group, err := comm.HostGroup(ctx)
	if err != nil {
		return nil, err
	}
	return &Runner{comm: comm, group: group, modules: map[string]*gpu.Module{}, fits: map[fitKey]int{}, room: pushedInbox}, nil
}

// Share makes a buffer of each rank known to all. It stays the caller's.
// Collective.
//
// Errors: those of [communicator.Communicator.Share].
func (r *Runner) Share(ctx context.Context, b *gpu.Buffer) (Memory, error) {
	shared, err := r.comm.Share(ctx, b)
	if err != nil {
		return Memory{}, err
	}
	peers, err := shared.HostHandle()
	return Memory{b, peers}, err
}

// Fits says whether a call's algorithm can be had for these ranks and this size.
// Kernels reach the memory of one host's ranks only; and packets, where there are
// any, have to fit into the scratch (see the Inboxes of collective.cuh).
//
// Errors: why not.
func (r *Runner) Fits(c Call) error {
	a, err := c.Collective.algorithm(c.Algorithm)
	if err != nil {
		return err
	}
	if hosts := len(r.comm.Hosts()); (a.through == byKernel || a.through == byPush || a.through == byStages) && hosts > 1 {
		return fmt.Errorf("%s is done by kernels that reach all ranks' memory, and the ranks are on %d hosts; take an algorithm with port channels, such as hier", a.name, hosts)
	}
	if a.payload != 0 && a.inboxPackets(c.part(), uint64(r.comm.Size())) > r.capacity(a) {
		return fmt.Errorf("%s of %d bytes does not fit into a scratch of %d bytes; ask for more (communicator.Options.Scratch)", a.name, c.part(), r.group.ScratchSize)
	}
	return nil
}

// inboxPackets gives how many packets a call puts into an inbox.
func (a algorithm) inboxPackets(part, ranks uint64) uint64 {
	n := divideUp(part, a.payload)
	switch a.split {
	case twoShards:
		return 2 * divideUp(n, ranks)
	case relayShare:
		return divideUp(n, max(ranks-1, 1))
	}
	return n
}

// capacity gives the packets that an inbox holds.
func (r *Runner) capacity(a algorithm) uint64 {
	const packet = 512 // bytes of an LL128 packet
	room := r.group.ScratchSize / 4 / packet * packet
	size := 2 * a.payload
	if a.payload == payloadLL128 {
		room, size = 3*room, packet
	}
	return room / 2 / size / uint64(max(r.comm.Size()-1, 1))
}

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }

// Operation is a call that is ready to run.
type Operation struct {
	kernel *gpu.Kernel
	shape  gpu.LaunchConfig
	args   []any
}

// Launch queues the operation once. All ranks launch the same, in the same order.
func (o *Operation) Launch(s *gpu.Stream) error { return o.kernel.Launch(s, o.shape, o.args...) }

// Blocks gives how many blocks the operation's grid has.
func (o *Operation) Blocks() int { return o.shape.Grid.X }

// Prepare makes a call ready to run. Collective: ranks agree on the blocks of a
// kernel, and algorithms that go through the host make channels at their first use
// with a pair of buffers.
//
// Errors: for what the call has wrong, and those of [devicecode.Load] and
// [communicator.Communicator.MaxBlocks].
func (r *Runner) Prepare(ctx context.Context, c Call) (*Operation, error) {
	a, err := c.Collective.algorithm(c.Algorithm)
	if err != nil {
		return nil, err
	}
	if err := r.check(&c, a); err != nil {
		return nil, err
	}
	switch a.through {
	case byRing:
		return r.ring(ctx, &c, a)
	case byExchange:
		return r.exchange(ctx, &c, a)
	case byPush:
		return r.pushed(ctx, &c, a)
	case byStages:
		return r.staged(ctx, &c, a)
	case byHosts:
		return r.hier(ctx, &c, a)
	}
	kernel, fit, err := r.kernel(ctx, &c, a)
	if err != nil {
		return nil, err
	}
	in, out := r.peers(&c)
	args := []any{r.group, in, out, c.part()}
	if c.Collective.Rooted {
		args = append(args, uint32(c.Root))
	}
	shape := gpu.Blocks(r.blocks(&c, a, fit), c.Threads)
	shape.Overlap = c.Overlap && r.comm.Sharers() == 1
	return &Operation{kernel, shape, args}, nil
}

// check gives the error of a call that cannot be.
func (r *Runner) check(c *Call, a algorithm) error {
	ranks := r.comm.Size()
	in, out := c.part()*uint64(c.Collective.InParts(ranks)), c.part()*uint64(c.Collective.OutParts(ranks))
	switch {
	case c.Count == 0:
		return errors.New("there is no element to work on")
	case c.InPlace && !c.Collective.InPlace:
		return fmt.Errorf("%s is not done in place", c.Collective.Name)
	case c.Blocks < 1 || c.Threads < 1:
		return fmt.Errorf("%d blocks of %d threads: there is at least one of each", c.Blocks, c.Threads)
	case a.payload == payloadLL128 && c.Threads%32 != 0:
		return fmt.Errorf("%s is done by whole warps, so not with blocks of %d threads", a.name, c.Threads)
	case c.Root < 0 || c.Root >= ranks:
		return fmt.Errorf("the root is rank %d of %d", c.Root, ranks)
	case !c.InPlace && c.In.Size() < in || c.Out.Size() < out || c.InPlace && c.Out.Size() < in:
		return fmt.Errorf("%s of %d elements of %s does not fit into its buffers", c.Collective.Name, c.Count, c.Type.Name)
	}
	if err := c.Collective.takes(c.Type); err != nil {
		return err
	}
	return r.Fits(*c)
}

// peers gives where all ranks' input and output start.
func (r *Runner) peers(c *Call) (in, out devicecode.PeerMemory) {
	in, out = c.In.Peers, c.Out.Peers
	if c.InPlace {
		in = out
	}
	for rank := range r.comm.Size() {
		in.Ranks[rank] += gpu.Ptr(c.part() * uint64(c.Collective.InOffset(rank, c.InPlace)))
		out.Ranks[rank] += gpu.Ptr(c.part() * uint64(c.Collective.OutOffset(rank, c.InPlace)))
	}
	return in, out
}

// blocks gives the size of the grid: a block for as much as its threads carry at
// once, but no more than fit on the device, since they wait for their peers'.
func (r *Runner) blocks(c *Call, a algorithm, fit int) int {
	perThread, work := uint64(16), c.part() // bytes
	switch {
	case a.payload == payloadLL128:
		perThread = payloadLL128 / 32
	case a.payload != 0:
		perThread = a.payload
	}
	switch ranks := uint64(r.comm.Size()); {
	case a.split == twoShards, a.through == byPush, a.name == "direct" && c.Collective.Name == "all-reduce":
		work = divideUp(work, ranks) // a shard
	case a.payload == 0 && !c.Collective.Reduces:
		work *= ranks // the ranks share the blocks
	}
	most := uint64(min(c.Blocks, fit))
	return int(max(1, min(divideUp(work, perThread*uint64(c.Threads)), most)))
}

// Close releases the kernels and, once no rank uses them, the channels. failed is
// why this rank gives up, if it does; then the others end too and are not awaited.
// Collective.
func (r *Runner) Close(ctx context.Context, failed error) error {
	var errs []error
	if r.host != nil || r.inbox != nil {
		if failed != nil {
			r.comm.Abort(failed)
		} else {
			errs = append(errs, r.comm.Barrier(ctx))
		}
	}
	if r.host != nil {
		errs = append(errs, r.host.close())
	}
	if r.inbox != nil {
		errs = append(errs, r.inbox.Close())
	}
	for _, m := range r.modules {
		errs = append(errs, m.Close())
	}
	r.modules, r.host, r.inbox = nil, nil, nil
	return errors.Join(errs...)
}
