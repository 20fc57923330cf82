package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	pushedInbox = 256 << 20 // bytes of each rank's inbox
	// Short pieces are reduced sooner, long ones signal less often. A block has about
	// pushedPieces of them, within these bounds, in bytes.
	pushedPieces = 2
	leastPiece   = 16 << 10
	mostPiece    = 256 << 10
)

// pushed prepares a call by pushed.cu.
func (r *Runner) pushed(ctx context.Context, c *Call, a algorithm) (launch, error) {
	kernel, fit, err := r.kernelOfTwo(ctx, c, a)
	if err == nil {
		err = r.needInbox(ctx)
	}
	if err != nil {
		return launch{}, err
	}
	in, out := r.peers(c)
	return r.launchOf(c, a, kernel, fit, in, out), nil
}

// pushedChunk returns the bytes of a chunk of pushed.cu.
func (r *Runner) pushedChunk() uint64 {
	return divideUp(r.room/uint64(r.comm.Size()), line)*line + line
}

// needInbox allocates the inbox, unless there is one. Collective.
func (r *Runner) needInbox(ctx context.Context) error {
	// A slot has what a chunk's place in its lines takes besides; see pushed.cu.
	return r.allocateOnce(ctx, &r.inbox, forInbox, uint64(r.comm.Size())*(r.pushedChunk()+line), 0)
}

// launchPushed is launchOf for pushed.cu.
func (r *Runner) launchPushed(c *Call, a algorithm, kernel *gpu.Kernel, fit int, in, out devicecode.PeerMemory) launch {
	pairs := max(1, uint64(r.blocks(c, a, fit))/2)
	piece := divideUp(divideUp(r.shard(c), pairs*pushedPieces), line) * line
	piece = min(max(piece, leastPiece), mostPiece)
	// How data lie in lines, all ranks must take alike: as rank 0's do, or, where nobody knows
	// the peers' buffers, as if they started in one.
	var lead uint64
	if c.Out != nil {
		lead = uint64(in.Ranks[0]) % line
	}
	args := []any{r.group, in, out, r.inbox.peers(), c.part(), r.pushedChunk(), piece, lead}
	if c.Kind.Rooted() {
		args = append(args, uint32(c.Root))
	}
	return launch{kernel: kernel, shape: r.grid(c, int(2*pairs)), args: args}
}

// zero clears the first bytes of a buffer, piece by piece, so that the host needs little memory.
func zero(b *gpu.Buffer, n uint64) error {
	blank := make([]byte, min(n, 1<<20))
	for at := uint64(0); at < n; at += uint64(len(blank)) {
		part, err := b.Slice(at, min(n-at, uint64(len(blank))))
		if err != nil {
			return err
		}
		if err := gpu.CopyIn(part, blank[:part.Size()]); err != nil {
			return err
		}
	}
	return nil
}
