package collective

import (
	"cmp"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// direct moves or reduces the parts between two barriers, each straight to its place, or by a rank that passes it on.
type direct struct{ traits }

var (
	straight = &direct{traits{name: "direct", kernel: "direct"}}
	// straightSums is of all-reduces, which peers' inputs and outputs both take part in.
	straightSums = &direct{traits{name: "direct", kernel: "direct", instead: "pushed"}}
)

// relayed is a broadcast by ranks that pass on the shares which the root gives them.
var relayed = &direct{traits{name: "relayed", kernel: "relayed", unit: file("broadcast.cu")}}

func (a *direct) reach(k Kind) reach {
	switch {
	case k == AllReduce:
		return reachBoth
	case k == Reduce:
		return reachToRoot
	case k.Reduces():
		return reachInputs
	}
	return reachOutputs
}

func (a *direct) launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch {
	work := c.part() * uint64(r.comm.Size()) // the ranks share the blocks
	if c.Kind.Reduces() {
		work = r.shard(c)
	}
	return r.plain(c, k, c.blocks(work, 16, k.fit), in, out)
}

// plain returns a launch of so many blocks of a kernel that takes the memories, the bytes of a part and the root, and
// if it reduces nothing, how far the parts lie apart.
func (r *Runner) plain(c *Call, k launchable, blocks int, in, out layout.PeerMemory) launch {
	args := []any{r.group, in, out, c.part()}
	if !c.Kind.Reduces() {
		args = append(args, uint32(c.Root), cmp.Or(c.stride, c.part()))
	} else if c.Kind.Rooted() {
		args = append(args, uint32(c.Root))
	}
	return launch{kernel: k.kernel, shape: r.grid(c, blocks), args: args}
}

// shard returns the most bytes of which one rank makes the result: of a reduce-scatter each its
// part, of others one share each.
func (r *Runner) shard(c *Call) uint64 {
	if c.Kind == ReduceScatter {
		return c.part()
	}
	return divideUp(c.part(), uint64(r.comm.Size()))
}

// blocks returns the size of the grid: a block for as much of the work as its threads carry at
// once, in bytes, but no more than fit on the device, since they wait for their peers'.
func (c *Call) blocks(work, perThread uint64, fit int) int {
	most := uint64(min(c.Blocks, fit))
	return int(max(1, min(divideUp(work, perThread*uint64(c.Threads)), most)))
}

// grid returns the shape of a launch of so many blocks, which may overlap with the
// kernel before it.
func (r *Runner) grid(c *Call, blocks int) gpu.LaunchConfig {
	shape := gpu.Blocks(blocks, c.Threads)
	shape.Overlap = c.Overlap && r.comm.Internal().Sharers() == 1
	return shape
}
