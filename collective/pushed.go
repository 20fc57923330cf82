package collective

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed kernels/pushed.cu
var pushedSource []byte

const (
	pushedInbox = 256 << 20 // bytes of each rank's inbox
	// Short pieces are reduced sooner, long ones signal less often. A block has about
	// pushedPieces of them, within these bounds, in bytes.
	pushedPieces = 2
	leastPiece   = 16 << 10
	mostPiece    = 256 << 10
)

// inbox is memory of the runner's that all ranks write.
type inbox struct {
	*gpu.Buffer
	peers devicecode.PeerMemory
}

// pushed prepares a call by pushed.cu.
func (r *Runner) pushed(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	kernel, fit, err := r.kernelOfTwo(ctx, c, a)
	if err != nil {
		return nil, err
	}
	// A slot has what a chunk's place in its lines takes besides; see pushed.cu.
	ranks := uint64(r.comm.Size())
	chunk := divideUp(r.room/ranks, line)*line + line
	slot := chunk + line
	if r.inbox == nil {
		b, err := r.comm.Device().Alloc(ranks * slot)
		if err != nil {
			return nil, err
		}
		shared, err := r.Share(ctx, b)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		r.inbox = &inbox{b, shared.Peers}
	}
	pairs := max(1, uint64(r.blocks(c, a, fit))/2)
	shard := divideUp(c.part(), ranks)
	piece := divideUp(divideUp(shard, pairs*pushedPieces), line) * line
	piece = min(max(piece, leastPiece), mostPiece)
	shape := gpu.Blocks(int(2*pairs), c.Threads)
	shape.Overlap = c.Overlap && r.comm.Sharers() == 1
	in, out := r.peers(c)
	return &Operation{kernel, shape, []any{r.group, in, out, r.inbox.peers, c.part(), chunk, piece}}, nil
}
