package communicator

import (
	"context"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// PeerMemory is one buffer of each rank, as this rank reaches it.
type PeerMemory struct {
	// Memories are the buffers by rank, this rank's included.
	Memories []*registeredmem.Memory

	c *Communicator
}

// Share makes a buffer of each rank known to all; the sizes may differ. The
// buffers stay their owners', who free them when no peer uses them any more:
// after a Barrier or Close that follows the last use. Collective.
//
// Errors: on all ranks, naming the rank that could not; ErrUnsupported there
// when a peer's memory cannot be reached by any transport.
func (c *Communicator) Share(ctx context.Context, buf *gpu.Buffer) (*PeerMemory, error) {
	return c.share(ctx, c.begin("share", "communicator: share "+sizeOf(buf)), buf, nil)
}

// share is Share as part of a call, or the whole of it. failed is why this rank
// cannot take part, if it cannot.
func (c *Communicator) share(ctx context.Context, k *call, buf *gpu.Buffer, failed error) (*PeerMemory, error) {
	if err := c.usable(k.op); err != nil {
		return nil, err
	}
	var mine *registeredmem.Memory
	var description []byte
	if failed == nil {
		mine, failed = c.registry.Register(buf)
	}
	if failed == nil {
		description, failed = mine.MarshalBinary()
	}
	all, err := k.collect(ctx, description, failed)
	if err != nil {
		return nil, errors.Join(err, closeMemory(mine))
	}
	p := &PeerMemory{Memories: make([]*registeredmem.Memory, c.Size()), c: c}
	for rank, b := range all {
		if rank == c.Rank() {
			p.Memories[rank] = mine
		} else if p.Memories[rank], err = c.registry.Import(ctx, b); err != nil {
			break
		}
	}
	if err := k.agree(ctx, err); err != nil {
		return nil, errors.Join(err, p.Close(), closeMemory(mine))
	}
	return p, nil
}

// sizeOf tells a buffer's size, for errors.
func sizeOf(b *gpu.Buffer) string {
	if b == nil {
		return "a nil buffer"
	}
	return fmt.Sprintf("%d bytes", b.Size())
}

// Handle gives what kernels take by value.
//
// Errors: ErrUnsupported when a peer's memory is not mapped here, or the group
// is larger than [devicecode.MaxRanks].
func (p *PeerMemory) Handle() (devicecode.PeerMemory, error) {
	return p.handleOf(p.c.everyone())
}

// HostHandle is Handle for the ranks of [Communicator.HostRanks] alone, by their
// index in that list.
func (p *PeerMemory) HostHandle() (devicecode.PeerMemory, error) { return p.handleOf(p.c.mates()) }

// handleOf gives the handle of some ranks, by their index in the list.
func (p *PeerMemory) handleOf(ranks []int) (devicecode.PeerMemory, error) {
	const op = "communicator: handle of shared memory"
	var h devicecode.PeerMemory
	if len(ranks) > len(h.Ranks) {
		return h, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "a kernel reaches at most %d ranks by address, and these are %d", len(h.Ranks), len(ranks))
	}
	for i, rank := range ranks {
		b := p.Memories[rank].Buffer()
		if b == nil {
			return h, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "its memory is not mapped here; take the ranks of this host alone (HostHandle, HostGroup), and port channels to the others").At(mscclgo.NoRank, rank)
		}
		h.Ranks[i] = b.Ptr()
	}
	return h, nil
}

// Close unmaps the peers' buffers and makes this rank's unknown to those who
// have not mapped it yet. Kernels that use them must have ended. It is safe to
// call twice.
func (p *PeerMemory) Close() error {
	var errs []error
	for _, m := range p.Memories {
		errs = append(errs, closeMemory(m))
	}
	return errors.Join(errs...)
}

func closeMemory(m *registeredmem.Memory) error {
	if m == nil {
		return nil
	}
	return m.Close()
}
