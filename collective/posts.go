package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	postsOfPair = 4       // Posted::kPosts of alltoallv.cu
	mostPost    = 1 << 20 // bytes: a few of them keep a network busy
	postBlocks  = 16      // at most: a block copies about as fast as a network moves
)

// The buffers of the host path of posts.
const (
	postsOutbox = 0 // and behind the posts, what storeParts stores
	postsInbox  = 1
	postsCalls  = 2 // Posted::numbers
)

// throughPosts is throughSlots for ranks on several hosts, by ports. Of a call with a root, ranks compare
// the count when they make it.
func (r *Runner) throughPosts(ctx context.Context, in, out *gpu.Buffer, sends, receives spans, t Type, rooted bool, choice Choice) (launch, error) {
	ranks := uint64(r.comm.Size())
	src := source{"alltoallv.cu", allToAllVSource}
	kernel, fit, err := r.kernelOf(ctx, src, devicecode.Options{}, src.name, "posts", choice.Threads)
	if err != nil {
		return launch{}, err
	}
	post := min(r.staging.room/ranks/postsOfPair, mostPost) / 16 * 16
	end := ranks * postsOfPair * post
	h, err := r.hostPath(ctx, pathKey{bySlots, nil, nil, 1}, func(h *hostPath) error {
		outbox, err := h.allocate(ctx, end+2*behind(ranks)*spanBytes, 0)
		if err != nil {
			return err
		}
		words := 2 * 8 * ranks // in front of the posts
		inbox, err := h.allocate(ctx, words+end, words)
		if err != nil {
			return err
		}
		if _, err := h.allocate(ctx, 16*ranks, 16*ranks); err != nil {
			return err
		}
		return h.connect(ctx, outbox, communicator.PortChannelOptions{PerPeer: 2, Inbox: inbox})
	})
	if err != nil {
		return launch{}, err
	}
	outbox := h.buffers[postsOutbox]
	to, from, stores, err := r.placeParts(ctx, src, sends, receives, outbox.Ptr()+gpu.Ptr(end))
	if err != nil {
		return launch{}, err
	}
	return launch{kernel: kernel, shape: gpu.Blocks(int(min(max(ranks-1, 1), postBlocks, uint64(fit))), choice.Threads), args: []any{
		h.handles(0), outbox, h.buffers[postsInbox], h.buffers[postsCalls], post, uint32(r.comm.Rank()), uint32(ranks),
		to, from, pointer(in), pointer(out), t.device(), rooted,
	}, before: stores}, nil
}
