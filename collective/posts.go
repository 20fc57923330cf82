package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
)

const (
	postsOfPair = 4       // Posts::kPosts of posts.cuh
	mostPost    = 1 << 20 // bytes: a few of them keep a network busy
	leastPost   = 4 << 10 // bytes: each takes a trip, and among many hosts a message of many waits for its deadline
	postBlocks  = 16      // at most: a block copies about as fast as a network moves
)

// The buffers of a host path of posts.
const (
	postsOutbox = 0 // and what else is behind the posts
	postsInbox  = 1 // likewise in front of them
	postsCounts = 2
)

// postBytes returns the bytes of a post, besides which a rank has others, of `most` by default; alike on all ranks.
func (r *Runner) postBytes(most, others uint64) uint64 {
	return postOf(uint64(r.comm.Size()), r.staging.room, most, others)
}

// posts returns the host path of a key, of posts of so many bytes: with bytes behind the posts of the
// outbox, and zeros in front of the inbox's and for counts. fill completes it. The caller holds
// mu. Collective the first time.
func (r *Runner) posts(ctx context.Context, use string, post, behind, front, counts uint64, fill func(*hostPath)) (*hostPath, error) {
	return r.hostPath(ctx, pathKey{use, nil, nil}, func(h *hostPath) {
		h.outlasts = true
		end := uint64(r.comm.Size()) * postsOfPair * post
		outbox, inbox := h.allocate(ctx, end+behind, 0), h.allocate(ctx, front+end, front)
		h.allocate(ctx, counts, counts)
		h.connect(ctx, outbox, communicator.PortChannelOptions{PerPeer: 2, Inbox: inbox})
		if h.err == nil {
			fill(h)
		}
	})
}
