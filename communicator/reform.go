package communicator

import (
	"context"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// lasting is what Reform hands from a communicator to the next: the memory whose address kernels and captured
// graphs know. What is in it is made again, for the new group.
type lasting struct {
	status     *gpu.Buffer                // the group's: waits look there
	private    *arena                     // memory of this rank's kernels alone: handles, epochs
	groups     map[uint32]*group          // by the channel of their waits; of this communicator or one before, which it makes again
	registries []*registeredmem.Registry  // of communicators before: they hold the places at which peers' memory was mapped
	ports      *portKernels               // or nil
	ring       *traceRing                 // of a timeline, or nil
	kept       inside.Kept[*Communicator] // or nil
	ownsDevice bool                       // it is to be closed with the communicator
}

// Reform ends this rank's part in the group, and makes it a rank of another group, in the
// same process and on the same device. After a failure that is the ranks that survived and
// perhaps new ones. Ranks of a group that works agree on a time for it. boot is the bootstrap
// of the new group, for example of [bootstrap.Member.Next]. Newcomers make their communicators
// with [New] instead. The new communicator has this one's options. Collective, for the ranks
// of the new group.
//
// streams are all streams with work that uses this group. Waits in their kernels end as aborted,
// and Reform waits for the work before any memory is used again. Close proxy services before, but
// not the services of runners. Reform closes this communicator, with its group's memory. What it
// made is carried to the new group one by one, by collective calls. A newcomer matches each
// with the call that makes such an object:
//
//   - [MemoryChannels.Reform], matched by [Communicator.MemoryChannels]
//   - [PortChannels.Reform], matched by [Communicator.PortChannels]
//   - [PeerMemory.Reform], matched by [Communicator.Share]
//   - [Communicator.Group] and [Communicator.HostGroup] of the new communicator
//
// Each reports whether graphs that were captured before are right for the new group. Handles
// in device memory stay at their address, and are rewritten, where the group has as many
// ranks as before. Handles by value (of a group, of peers' memory) stay as they were if in
// addition peers' memory is mapped where it was. The driver can do so with memory of other
// processes, from [gpu.Device.Alloc], of the same size. The runners of package collective have a
// Reform of their own. Pipes are not carried: close them, and make new ones.
//
// Reform writes no memory of the caller's. Semaphores, flags, packets and epochs begin
// anew, in memory that the ranks of the old group cannot reach: a rank that was left out
// writes to the old memory, which nobody reads. But until its kernels end, it still reaches
// the caller's buffers that it has mapped: see docs/RELIABILITY.md.
//
// After an error, such as a second failure meanwhile or a context that ended, Reform may be called again with
// another bootstrap, not with the same. After success Close does nothing, and what Join opened is closed with
// the new communicator. A bootstrap that the caller made stays the caller's.
//
// Errors: ErrInvalid for a nil bootstrap, a communicator that is closed or was re-formed;
// ErrTimeout and ErrAborted when ctx ends while the streams still work; as for [New].
func (c *Communicator) Reform(ctx context.Context, boot Bootstrap, streams ...*gpu.Stream) (*Communicator, error) {
	const op = "communicator: re-form the group"
	if boot == nil {
		return nil, c.invalid(op, "the bootstrap is nil")
	}
	c.reforming.Lock()
	defer c.reforming.Unlock()
	c.mu.Lock()
	over := c.closed && !c.retired && !c.retiring
	c.mu.Unlock()
	if over {
		return nil, c.invalid(op, "the communicator is closed, or was re-formed")
	}
	if !c.retired {
		if err := c.retire(ctx, op, streams); err != nil {
			return nil, err
		}
	}
	options := c.options
	options.branch = nil
	next, err := newCommunicator(ctx, boot, c.dev, options, c.lasting)
	if err != nil {
		return nil, err
	}
	if next.kept != nil {
		next.kept.Follow(next)
	}
	c.retired = false
	next.latest = c.latest
	next.latest.Store(next)
	return next, nil
}

// retire ends this rank's part in the group, but for what lasts. If it fails it may be called again.
func (c *Communicator) retire(ctx context.Context, op string, streams []*gpu.Stream) error {
	c.mu.Lock()
	first := !c.retiring
	c.closed, c.retiring = true, true
	c.mu.Unlock()
	if first {
		c.calls.Load().Refuse()
		c.together = c.part()
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
	var errs []error
	if c.tracer != nil {
		errs = append(errs, c.tracer.finish(c.together))
	}
	if c.kept != nil {
		errs = append(errs, c.kept.Retire())
	}
	errs = append(errs, c.end(c.registry.Internal().Retire), c.closeBootstrap())
	c.registries = append(c.registries, c.registry)
	c.mu.Lock()
	c.retired, c.retiring = true, false
	c.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		c.options.Logger.Warn("what the old group leaves did not close well", "rank", c.Rank(), "error", err)
	}
	return nil
}

// close frees everything but what is kept.
func (l *lasting) close() error {
	var errs []error
	for _, g := range l.groups {
		errs = append(errs, g.close(l.private))
	}
	for _, r := range l.registries {
		errs = append(errs, r.Close())
	}
	if l.ring != nil {
		errs = append(errs, l.ring.close())
	}
	return errors.Join(append(errs, l.ports.close(), l.private.close(), l.status.Close())...)
}

// follows returns an error unless c follows old, with which something was made, by Reform.
func (c *Communicator) follows(op string, old *Communicator) error {
	if c == old || c.lasting != old.lasting {
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
// Errors: as for [Communicator.Share]; ErrInvalid for another communicator.
func (p *PeerMemory) Reform(ctx context.Context, c *Communicator) (captured bool, err error) {
	k := c.begin("share", "communicator: share "+sizeOf(p.own)+" again")
	fresh, err := c.shareAt(ctx, k, p.own, c.follows(k.op, p.c), p)
	if err != nil {
		return false, err
	}
	captured = c.asBefore(p.c) && fresh.sameAddresses(p)
	fresh.more, p.more = p.more, fresh.more // what the tables have is right if the addresses are the same
	if err := p.Close(); err != nil {
		return captured, errors.Join(err, fresh.Close())
	}
	*p = *fresh
	return captured, nil
}

// sameAddresses reports whether all memories are where old had its memories.
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
// Errors: as for [Communicator.MemoryChannels]; ErrInvalid for another communicator.
func (m *MemoryChannels) Reform(ctx context.Context, c *Communicator) (captured bool, err error) {
	fresh, err := c.memoryChannels(ctx, m.local, m.options, &m.channelEnds)
	if err != nil {
		return false, err
	}
	captured = m.captured(c, fresh.Handles, m.Handles)
	err = m.Close()
	*m = *fresh
	return captured, err
}

// Reform is [MemoryChannels.Reform] for port channels. s is a service of the new group.
// With PortChannelOptions.Peers these are the peers in the new group too. Collective,
// matched by [Communicator.PortChannels]. After an error it may be called again with the
// next group.
//
// Errors: as for [Communicator.PortChannels]; ErrInvalid for another communicator.
func (p *PortChannels) Reform(ctx context.Context, c *Communicator, s *proxyservice.ProxyService) (captured bool, err error) {
	fresh, err := c.portChannels(ctx, s, p.local, p.options, &p.channelEnds)
	if err != nil {
		return false, err
	}
	captured = p.captured(c, fresh.Handles, p.Handles)
	err = p.Close()
	*p = *fresh
	return captured, err
}
