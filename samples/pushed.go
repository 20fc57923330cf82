package samples

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed allreduce/pushed.cu
var pushedSource []byte

const (
	pushedInbox = 64 << 20 // bytes of each rank's
	pushedSlots = 4        // as in pushed.cu
	// Short steps overlap sooner, long ones signal less often. A shard has about
	// pushedSteps of them, of pieces within these bounds, in bytes.
	pushedSteps = 6
	leastPiece  = 4 << 10
	mostPiece   = 64 << 10
)

// inbox is memory of the runner's that all ranks write.
type inbox struct {
	*gpu.Buffer
	peers devicecode.PeerMemory
}

// pushed prepares a call by pushed.cu.
func (r *Runner) pushed(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return nil, err
	}
	if r.inbox == nil {
		b, err := r.comm.Device().Alloc(pushedInbox)
		if err != nil {
			return nil, err
		}
		shared, err := r.Share(ctx, b)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		r.inbox = &inbox{b, shared.Peers}
	}
	ranks := uint64(r.comm.Size())
	blocks := uint64(r.blocks(c, a, fit))
	room := pushedInbox/(blocks*pushedSlots*ranks)/line*line - line
	piece := divideUp(divideUp(c.part(), ranks*blocks*pushedSteps), line) * line
	piece = min(max(piece, leastPiece), mostPiece, room)
	shape := gpu.Blocks(int(blocks), c.Threads)
	shape.Overlap = c.Overlap && r.comm.Sharers() == 1
	in, out := r.peers(c)
	return &Operation{kernel, shape, []any{r.group, in, out, r.inbox.peers, c.part(), piece}}, nil
}
