package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/gpu"
)

// groupFile is where the kernels of groups of sends and receives are.
var groupFile = file("group.cu")

// groupsUse is what the host path of groups is for.
const groupsUse = "groups"

// The buffers of the host path of groups, besides the buffers of all posts.
const (
	groupHostRanks = 3 // Hosts::ranks of group.cu
	groupHosts     = 4
)

// groupHostsOf is Hosts of group.cu.
type groupHostsOf struct {
	Channels, Outbox, Inbox gpu.Ptr // Posts of posts.cuh, up to Ranks
	Front, PostBytes        uint64
	Rank, Ranks             uint32
	Numbers, HostRanks      gpu.Ptr
}

// reachHosts makes what the kernels need to send to ranks on other hosts, and returns their
// argument for it. The caller holds the runner's mu. Collective the first time.
func (g *groups) reachHosts(ctx context.Context, r *Runner) (*gpu.Buffer, error) {
	ranks := r.comm.Size()
	words := 2 * 8 * uint64(ranks)
	post := min(r.postBytes(farGroups, words+largestBox(r.comm.Hosts(), ranks)), g.sizes.post)
	h, err := r.posts(ctx, groupsUse, post, 0, 0, words, func(h *hostPath) {
		var host []uint32
		for _, rank := range r.comm.HostRanks() {
			host = append(host, uint32(rank))
		}
		if upload(ctx, h, host); h.err != nil {
			return
		}
		upload(ctx, h, []groupHostsOf{{
			Channels: h.handles(0), Outbox: h.buffers[postsOutbox].Ptr(), Inbox: h.buffers[postsInbox].Ptr(), PostBytes: post,
			Rank: uint32(r.comm.Rank()), Ranks: uint32(ranks),
			Numbers: h.buffers[postsCounts].Ptr(), HostRanks: h.buffers[groupHostRanks].Ptr(),
		}})
	})
	if err != nil {
		return nil, err
	}
	return h.buffers[groupHosts], nil
}
