package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

const (
	pushedInbox = 256 << 20 // bytes of each rank's inbox
	// Short pieces are reduced sooner, long ones signal less often. A block has about
	// pushedPieces of them, within these bounds, in bytes.
	pushedPieces = 2
	leastPiece   = 16 << 10
	mostPiece    = 256 << 10
)

// pushed reduces what peers have written into an inbox of the runner's.
type pushed struct{ traits }

// push returns the algorithm with a kernel.
func push(kernel string) *pushed {
	return &pushed{traits{name: "pushed", kernel: kernel, unit: file("pushed.cu"), fallback: "direct", blocks: 2, threads: boundedThreads}}
}

func (a *pushed) reach(k Kind) reach {
	if k == ReduceScatter {
		return reachNothing
	}
	return reachShards
}

func (a *pushed) load(ctx context.Context, r *Runner, c *Call) (launchable, error) {
	k, err := r.kernel(ctx, c, &a.traits)
	if err != nil || k.fit < a.blocks {
		return k, err
	}
	// A slot has what a chunk's place in its lines takes besides; see pushed.cu.
	_, err = r.allocateOnce(ctx, forInbox, uint64(r.comm.Size())*(r.pushedChunk()+line), 0)
	return k, err
}

// pushedChunk returns the bytes of a chunk of pushed.cu.
func (r *Runner) pushedChunk() uint64 {
	return divideUp(r.room/uint64(r.comm.Size()), line)*line + line
}

func (a *pushed) launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch {
	pairs := max(1, uint64(c.blocks(r.shard(c), 16, k.fit))/2)
	piece := divideUp(divideUp(r.shard(c), pairs*pushedPieces), line) * line
	piece = min(max(piece, leastPiece), mostPiece)
	// How data lie in lines, all ranks must take alike: as rank 0's do, or, where nobody knows
	// the peers' buffers, as if they started in one.
	var lead uint64
	if c.Out != nil {
		lead = uint64(in.Ranks[0]) % line
	}
	args := []any{r.group, in, out, r.own[forInbox].peers(), c.part(), r.pushedChunk(), piece, lead}
	if c.Kind.Rooted() {
		args = append(args, uint32(c.Root))
	}
	return launch{kernel: k.kernel, shape: r.grid(c, int(2*pairs)), args: args}
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
