package collective

import (
	"cmp"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	bulkHead  = 128      // bytes of a ring before its stages; see BulkRing
	bulkLeast = 16 << 10 // bytes that are worth a block
)

// bulkRing is the stages in shared memory through which a block of bulk.cu copies.
type bulkRing struct {
	stages int // STAGES of bulk.cu
	stage  int // bytes of a stage, whole lines
}

// defaultBulkRing holds what a block has under way. Two rings fit on a multiprocessor of sm_90.
var defaultBulkRing = bulkRing{stages: 6, stage: 16 << 10}

// bytes returns the shared memory that a block has.
func (g bulkRing) bytes() int { return bulkHead + g.stages*g.stage }

// fitRing returns the runner's ring, with smaller stages where a block of the device has no
// room for it.
func (r *Runner) fitRing() bulkRing {
	room := (r.comm.Device().Info().MaxSharedPerBlock - bulkHead) / r.rings.stages / line * line
	return bulkRing{r.rings.stages, min(r.rings.stage, room)}
}

// launchBulk is launchOf for bulk.cu.
func (r *Runner) launchBulk(c *Call, a algorithm, kernel *gpu.Kernel, fit int, in, out devicecode.PeerMemory) launch {
	call := struct {
		First, Count       uint32
		Dst, Stride, Bytes uint64
		Stage              uint32
	}{Count: r.group.Size, Bytes: c.part(), Stage: uint32(r.fitRing().stage)}
	spec := c.Kind.spec()
	switch {
	case spec.gathered:
		call.Dst = uint64(r.group.Rank) * c.part()
		if spec.scattered {
			call.Stride = cmp.Or(c.stride, c.part())
		}
	case c.Kind == SendReceive:
		call.First, call.Count = 1, 1
	case r.comm.Rank() != c.Root:
		call.Count = 0
	}
	l := launch{kernel: kernel, shape: r.grid(c, r.blocks(c, a, fit)), args: []any{r.group, in, out, call}}
	l.shape.DynamicShared = r.fitRing().bytes()
	return l
}
