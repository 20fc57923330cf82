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
}

// Share makes a buffer of each rank known to all; the sizes may differ. The
// buffers stay their owners', who free them when no peer uses them any more:
// after a Barrier or Close that follows the last use. Collective.
//
// Errors: on all ranks, naming the rank that could not; ErrUnsupported there
// when a peer's memory cannot be reached by any transport.
func (c *Communicator) Share(ctx context.Context, buf *gpu.Buffer) (*PeerMemory, error) {
	op := fmt.Sprintf("communicator: share %d bytes", buf.Size())
	if err := c.usable(op); err != nil {
		return nil, err
	}
	var description []byte
	mine, err := c.registry.Register(buf)
	if err == nil {
		description, err = mine.MarshalBinary()
	}
	all, err := c.collect(ctx, op, description, err)
	if err != nil {
		return nil, errors.Join(err, closeMemory(mine))
	}
	p := &PeerMemory{Memories: make([]*registeredmem.Memory, c.Size())}
	for rank, b := range all {
		if rank == c.Rank() {
			p.Memories[rank] = mine
		} else if p.Memories[rank], err = c.registry.Import(ctx, b); err != nil {
			break
		}
	}
	if err := c.agree(ctx, op, err); err != nil {
		return nil, errors.Join(err, p.Close(), closeMemory(mine))
	}
	return p, nil
}

// Handle gives what kernels take by value.
//
// Errors: ErrUnsupported when a peer's memory is not mapped here, or the group
// is larger than [devicecode.MaxRanks].
func (p *PeerMemory) Handle() (devicecode.PeerMemory, error) {
	const op = "communicator: handle of shared memory"
	var h devicecode.PeerMemory
	if len(p.Memories) > len(h.Ranks) {
		return h, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "a kernel reaches at most %d ranks by address, the group has %d", len(h.Ranks), len(p.Memories))
	}
	for rank, m := range p.Memories {
		if m.Buffer() == nil {
			return h, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "its memory is not mapped here").At(mscclgo.NoRank, rank)
		}
		h.Ranks[rank] = m.Buffer().Ptr()
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
