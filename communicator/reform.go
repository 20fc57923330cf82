package communicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// carried is what a communicator leaves to the one that follows it in the same process:
// memory whose address kernels and captured graphs know.
type carried struct {
	status  *gpu.Buffer // the group's status: waits look there
	private *arena      // handles, epochs
	groups  map[uint32]*group
	// Of this communicator and of those before it. They are retired, and hold the places
	// at which peers' memory was mapped.
	registries []*registeredmem.Registry
	device     bool                       // it is to be closed with the communicator
	kept       inside.Kept[*Communicator] // or nil
	ring       *traceRing                 // of a timeline, or nil
}

// Reform ends this rank's part in the group, and makes it one of another group, in the
// same process and on the same device: after a failure, with the ranks that survived and
// perhaps new ones; or, of a group that works, at a time on which its ranks agree. boot is
// the bootstrap of the new group, for example of [bootstrap.Member.Next]. Newcomers make
// their communicators with [New] instead. The options are those of this communicator.
// Collective, for the ranks of the new group.
//
// streams are all streams with work that uses this group. Waits in their kernels end as
// aborted, and Reform waits for the work before any memory is used again. Proxy services
// must be closed before, but for those of runners. This communicator is closed then, with its group's memory;
// what it made is carried to the new group one by one, by collective calls that newcomers
// match with the call that makes such an object:
//
//   - [MemoryChannels.Reform], matched by [Communicator.MemoryChannels]
//   - [PortChannels.Reform], matched by [Communicator.PortChannels]
//   - [PeerMemory.Reform], matched by [Communicator.Share]
//   - [Communicator.Group] and [Communicator.HostGroup] of the new communicator
//
// Each reports whether graphs that were captured before are right for the new group. Handles
// in device memory stay at their address, and are rewritten, where the group has as many
// ranks as before. Handles by value (of a group, of peers' memory) stay as they were if in
// addition peers' memory is mapped where it was, as far as the driver can: that of other
// processes, from [gpu.Device.Alloc], of the same size. The runners of package collective have a
// Reform of their own. Pipes are not carried: close them, and make new ones.
//
// Reform writes no memory of the caller's. Semaphores, flags, packets and epochs begin
// anew, in memory that the ranks of the old group cannot reach: a rank that was left out
// writes to the old, which nobody reads. But a buffer of the caller's that it has mapped it
// still reaches, until its kernels end: see docs/RELIABILITY.md.
//
// After an error, such as a second failure meanwhile or a context that ended, Reform may be called again with
// another bootstrap, not with the same. After success Close does nothing, and what Join opened is closed with
// the new communicator. A bootstrap that the caller made stays the caller's.
//
// Errors: ErrInvalid for a nil bootstrap, a communicator that is closed or was re-formed;
// ErrTimeout and ErrAborted when ctx ends while the streams still work; those of [New].
func (c *Communicator) Reform(ctx context.Context, boot Bootstrap, streams ...*gpu.Stream) (*Communicator, error) {
	const op = "communicator: re-form the group"
	if boot == nil {
		return nil, c.invalid(op, "the bootstrap is nil")
	}
	c.reforming.Lock()
	defer c.reforming.Unlock()
	c.mu.Lock()
	over := c.closed && c.leaves == nil && !c.retiring
	c.mu.Unlock()
	if over {
		return nil, c.invalid(op, "the communicator is closed, or was re-formed")
	}
	if c.leaves == nil {
		if err := c.retire(ctx, op, streams); err != nil {
			return nil, err
		}
	}
	options := c.options
	options.branch = nil
	next, err := newCommunicator(ctx, boot, c.dev, options, c.leaves)
	if err != nil {
		return nil, err
	}
	if c.leaves.kept != nil {
		next.kept, c.leaves.kept = c.leaves.kept, nil
		next.kept.Follow(next)
	}
	c.leaves = nil
	next.latest = c.latest
	next.latest.Store(next)
	return next, nil
}

// retire ends this rank's part in the group, and keeps what the next one needs. If it fails
// it may be called again.
func (c *Communicator) retire(ctx context.Context, op string, streams []*gpu.Stream) error {
	c.mu.Lock()
	first := !c.retiring
	c.closed, c.retiring = true, true
	c.mu.Unlock()
	together := false
	if first {
		c.calls.Load().Refuse()
		together = c.part()
		c.together = together
		c.ended.Store(true)
		c.failure.abort()
	}
	for _, s := range streams {
		if s == nil {
			return c.invalid(op, "a stream is nil")
		}
		if err := s.Internal().Synchronize(ctx); err != nil {
			return mscclgo.Errorf(mscclgo.KindOf(err), op, "wait for the work of the old group: %w", err).At(c.Rank(), mscclgo.NoRank)
		}
	}
	if first {
		time.Sleep(abortGrace) // for streams that the caller forgot
	}
	h := &carried{private: c.private, groups: map[uint32]*group{}, device: c.ownsDevice}
	var errs []error
	if c.tracer != nil {
		ring, err := c.tracer.finish(together)
		h.ring, errs = ring, append(errs, err)
	}
	if h.kept = c.kept; h.kept != nil {
		errs = append(errs, h.kept.Retire())
	}
	for channel, g := range map[uint32]*group{groupChannel: c.group, hostGroupChannel: c.local, runnersChannel: c.runners} {
		if g != nil {
			h.groups[channel] = g
		}
	}
	c.launches.End()
	errs = append(errs, c.leaveBoard(), c.closeLeft(), c.shared.close(), c.pipes.close(), c.registry.Internal().Retire(), c.closeNetworks())
	h.status = c.failure.retire()
	c.over.Close()
	errs = append(errs, c.closeOwned())
	h.registries = append(h.registries, c.registry)
	if c.from != nil {
		h.registries = append(h.registries, c.from.registries...)
		for channel, g := range c.from.groups { // not made again in this group
			h.groups[channel] = g
		}
		c.from = nil
	}
	c.leaves = h
	c.mu.Lock()
	c.retiring = false
	c.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		c.options.Logger.Warn("what the old group leaves did not close well", "rank", c.Rank(), "error", err)
	}
	return nil
}

// close frees what no communicator has taken.
func (h *carried) close() error {
	var errs []error
	if h.kept != nil {
		errs = append(errs, h.kept.Close())
	}
	for _, g := range h.groups {
		errs = append(errs, g.close(h.private))
	}
	for _, r := range h.registries {
		errs = append(errs, r.Close())
	}
	if h.ring != nil {
		errs = append(errs, h.ring.close())
	}
	return errors.Join(errs...)
}

// take returns the group that the communicator before had made, for this one to use what
// fits, or nil.
func (c *Communicator) take(channel uint32) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from == nil {
		return nil
	}
	g := c.from.groups[channel]
	delete(c.from.groups, channel)
	return g
}

// putBack leaves what take returned, as far as it is there, to the next communicator: a second failure
// loses no address. It reports whether this one followed another.
func (c *Communicator) putBack(channel uint32, g *group) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from == nil {
		return false
	}
	c.from.groups[channel] = g
	return true
}

// follows returns an error unless c follows old, with which something was made, by Reform.
func (c *Communicator) follows(op string, old *Communicator) error {
	if c.from == nil || c == old || c.private != old.private {
		return c.invalid(op, "it was not made with a communicator that Reform has turned into this one")
	}
	return nil
}

// asBefore reports whether this rank has the place in its group that it had in old.
func (c *Communicator) asBefore(old *Communicator) bool {
	return c.Rank() == old.Rank() && c.Size() == old.Size()
}

// renewed returns memory of so many bytes that no other rank has mapped, at the address of
// old if that has the size. old may be nil, and is used up.
func (c *Communicator) renewed(old *gpu.Buffer, n uint64) (*gpu.Buffer, error) {
	if old == nil {
		return c.dev.Alloc(n)
	}
	if old.Size() == n {
		err := old.Internal().Renew()
		if err == nil {
			return old, nil
		}
		c.options.Logger.Info("the group's window has another address than before", "rank", c.Rank(), "error", err)
	}
	fresh, err := c.dev.Alloc(n)
	return fresh, errors.Join(err, old.Close())
}

// Reform carries the memory to the group that [Communicator.Reform] has turned the old into:
// each survivor's buffer is the one that it shared, untouched. captured reports whether
// [PeerMemory.Handle] and the addresses of all buffers are as before, as captured graphs
// have them, and this rank and the number of ranks too. Collective, matched by
// [Communicator.Share]. After an error it may be called again with the next group.
//
// Errors: those of [Communicator.Share]; ErrInvalid for another communicator.
func (p *PeerMemory) Reform(ctx context.Context, c *Communicator) (captured bool, err error) {
	k := c.begin("share", "communicator: share "+sizeOf(p.own)+" again")
	fresh, err := c.shareAt(ctx, k, p.own, c.follows(k.op, p.c), p)
	if err != nil {
		return false, err
	}
	captured = c.asBefore(p.c) && fresh.sameAddresses(p)
	fresh.more.inherit(p.more)
	if err := p.Close(); err != nil {
		return captured, errors.Join(err, fresh.Close())
	}
	*p = *fresh
	return captured, nil
}

// sameAddresses reports whether all memories are where those of old were.
func (p *PeerMemory) sameAddresses(old *PeerMemory) bool {
	for rank, at := range p.at {
		if rank >= len(old.at) || at != old.at[rank] {
			return false
		}
	}
	return true
}

// Reform carries the channels to the group that [Communicator.Reform] has turned the old
// into, with the buffers and options that they were made with. Their semaphores begin
// anew. The handles stay at their address if there are as many as before. captured reports
// whether they do and this rank and the number of ranks are as before, so that captured
// graphs that use them are right; graphs that name peers' memory by other means need what
// carries that. Collective, matched by [Communicator.MemoryChannels]. After an error it
// may be called again with the next group.
//
// Errors: those of [Communicator.MemoryChannels]; ErrInvalid for another communicator.
func (m *MemoryChannels) Reform(ctx context.Context, c *Communicator) (captured bool, err error) {
	old := m.sems.c
	handles := m.Handles
	fresh, err := c.memoryChannels(ctx, m.local, m.options, m)
	if err != nil {
		return false, err
	}
	captured = c.asBefore(old) && fresh.Handles.Ptr() == handles.Ptr()
	if fresh.handles == m.handles {
		m.handles = piece{} // they are fresh's now
	}
	err = m.Close()
	*m = *fresh
	return captured, err
}

// Reform is [MemoryChannels.Reform] for port channels. s is a service of the new group.
// With PortChannelOptions.Peers these are the peers in the new group too. Collective,
// matched by [Communicator.PortChannels]. After an error it may be called again with the
// next group.
//
// Errors: those of [Communicator.PortChannels]; ErrInvalid for another communicator.
func (p *PortChannels) Reform(ctx context.Context, c *Communicator, s *proxyservice.ProxyService) (captured bool, err error) {
	old := p.sems.c
	handles := p.Handles
	fresh, err := c.portChannels(ctx, s, p.local, p.options, p)
	if err != nil {
		return false, err
	}
	captured = c.asBefore(old) && (handles == nil || fresh.Handles != nil && fresh.Handles.Ptr() == handles.Ptr())
	if fresh.handles == p.handles {
		p.handles = piece{} // they are fresh's now
	}
	if fresh.kernels == p.kernels {
		p.kernels = nil // they too
	}
	err = p.Close()
	*p = *fresh
	return captured, err
}

// rewrite returns device memory with the handles of channels: that of before, whose piece
// that is, if they are as many, and else new.
func rewrite[T any](c *Communicator, before piece, at *gpu.Buffer, values []T) (piece, *gpu.Buffer, error) {
	if !fits[T](before, at, len(values)) {
		return handles(c, values)
	}
	if err := gpu.CopyIn(at, values); err != nil {
		return piece{}, nil, fmt.Errorf("rewrite the handles: %w", err)
	}
	return before, at, nil
}

// handlesAt is rewrite for n handles that are not known yet: those of before stay till then.
func handlesAt[T any](c *Communicator, before piece, at *gpu.Buffer, n int) (piece, *gpu.Buffer, error) {
	if !fits[T](before, at, n) {
		return handles(c, make([]T, n))
	}
	return before, at, nil
}

// fits reports whether n handles can take the memory of before's.
func fits[T any](before piece, at *gpu.Buffer, n int) bool {
	return at != nil && before.slab != nil && at.Size() == sizeIn[T](n)
}
