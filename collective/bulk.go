package collective

import (
	"cmp"
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo/internal/layout"
)

// bulk moves the parts by the multiprocessors' copy engines, each straight to its place.
type bulk struct{ traits }

var bulkCopies = &bulk{traits{name: "bulk", kernel: "bulk", unit: file("bulk.cu")}}

const bulkLeast = 16 << 10 // bytes that are worth a block

// bulkRing is the stages in shared memory through which a block of bulk.cu copies.
type bulkRing struct {
	stages int // STAGES of bulk.cu
	stage  int // bytes of a stage, whole lines
}

// defaultBulkRing holds what a block has under way. Two rings fit on a multiprocessor of sm_90.
var defaultBulkRing = bulkRing{stages: 6, stage: 16 << 10}

// head returns the bytes before the stages; see BulkRing.
func (g bulkRing) head() int { return int(divideUp(uint64(g.stages)*24, line)) * line }

// bytes returns the shared memory that a block has.
func (g bulkRing) bytes() int { return g.head() + g.stages*g.stage }

// fitRing returns the runner's ring, with smaller stages where a block of the device has no
// room for it.
func (r *Runner) fitRing() bulkRing {
	room := (r.comm.Device().Info().MaxSharedPerBlock - r.rings.head()) / r.rings.stages / line * line
	return bulkRing{r.rings.stages, min(r.rings.stage, room)}
}

func (a *bulk) reach(Kind) reach { return reachOutputs }

func (a *bulk) load(ctx context.Context, r *Runner, c *Call) (launchable, error) {
	u := a.unit
	if r.rings.stages != defaultBulkRing.stages {
		u.options.Defines = []string{fmt.Sprintf("STAGES=%d", r.rings.stages)}
	}
	return r.kernelOf(ctx, u, a.kernel, c.Threads, r.fitRing().bytes())
}

func (a *bulk) launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch {
	call := struct {
		Peers, Own         uint32
		Dst, Stride, Bytes uint64
		Stage              uint32
	}{Peers: r.group.Size - 1, Own: 1, Bytes: c.part(), Stage: uint32(r.fitRing().stage)}
	spec := c.Kind.spec()
	switch {
	case spec.gathered:
		call.Dst = uint64(r.group.Rank) * c.part()
		if spec.scattered {
			call.Stride = cmp.Or(c.stride, c.part())
		}
	case c.Kind == SendReceive:
		if call.Peers > 0 {
			call.Peers, call.Own = 1, 0
		}
	case r.comm.Rank() != c.Root:
		call.Peers, call.Own = 0, 0
	}
	blocks := c.blocks(c.part()*uint64(r.comm.Size()), divideUp(bulkLeast, uint64(c.Threads)), k.fit)
	l := launch{kernel: k.kernel, shape: r.grid(c, blocks), args: []any{r.group, in, out, call}}
	l.shape.DynamicShared = r.fitRing().bytes()
	return l
}
