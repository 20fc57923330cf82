package communicator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// PeerMemory is one buffer of each rank, as this rank accesses it.
type PeerMemory struct {
	// Memories are the buffers by rank, this rank's included.
	Memories []*registeredmem.Memory

	c   *Communicator
	own *gpu.Buffer // this rank's
	at  []gpu.Ptr   // where the buffers are, 0 where one is not mapped here

	more *moreAddresses
}

// moreAddresses is what handles of large groups have in device memory.
type moreAddresses struct {
	mu         sync.Mutex
	all, local addresses // of Handle and HostHandle
	closed     bool
}

// Share gives all ranks access to a buffer of each rank; the sizes may differ. Each
// rank still owns its buffer, and frees it when no peer uses it any longer: after a
// Barrier or Close that follows the last use. If the buffer is a slice, peers on this host
// map its whole allocation: see [registeredmem.Registry.Register]. Collective.
//
// After an error of a context, on any rank, all may call it again, also ranks on which it worked. So it is
// with [Communicator.MemoryChannels], [Communicator.PortChannels], [Communicator.Pipes] and [Communicator.Split].
//
// Errors: as for [registeredmem.Registry.Register] and
// [registeredmem.Registry.Import], such as ErrUnsupported when no transport reaches a
// peer's memory; ErrRemote, naming the rank, when another rank failed.
func (c *Communicator) Share(ctx context.Context, buf *gpu.Buffer) (*PeerMemory, error) {
	return c.share(ctx, c.begin("share", "communicator: share "+sizeOf(buf)), buf, nil)
}

// share is Share as part of a collective call. If failed is not nil, this rank
// cannot take part.
func (c *Communicator) share(ctx context.Context, k *call, buf *gpu.Buffer, failed error) (*PeerMemory, error) {
	return c.shareAt(ctx, k, buf, failed, nil)
}

// shareAt is share with the memories of an earlier group, or nil. Where the driver can, it
// maps each rank's memory at the place of that rank's earlier one.
func (c *Communicator) shareAt(ctx context.Context, k *call, buf *gpu.Buffer, failed error, before *PeerMemory) (*PeerMemory, error) {
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
		return nil, errors.Join(err, mine.Close())
	}
	p := &PeerMemory{Memories: make([]*registeredmem.Memory, c.Size()), c: c, own: buf, at: make([]gpu.Ptr, c.Size()), more: new(moreAddresses)}
	imports, cancel := c.bounded(ctx)
	defer cancel()
	for rank, b := range all {
		if rank == c.Rank() {
			p.Memories[rank] = mine
		} else if p.Memories[rank], err = c.registry.Internal().ImportAt(imports, b, before.memory(rank)); err != nil {
			break
		}
		if mapped := p.Memories[rank].Buffer(); mapped != nil {
			p.at[rank] = mapped.Ptr()
		}
	}
	if err := k.agree(ctx, err); err != nil {
		return nil, errors.Join(err, p.Close(), mine.Close())
	}
	return p, nil
}

// memory returns a rank's memory, or nil where there is none, also for a nil p.
func (p *PeerMemory) memory(rank int) *registeredmem.Memory {
	if p == nil || rank >= len(p.Memories) || p.Memories[rank] == nil || p.Memories[rank].Local() {
		return nil
	}
	return p.Memories[rank]
}

// sizeOf returns a buffer's size, for errors.
func sizeOf(b *gpu.Buffer) string {
	if b == nil {
		return "a nil buffer"
	}
	return fmt.Sprintf("%d bytes", b.Size())
}

// Handle returns the handle of <mscclgo/group.cuh>, which kernels take by value. It is right
// until p is closed: of a group of more than 72 ranks it holds the first
// addresses, and p the others, in device memory.
//
// Errors: ErrUnsupported when a peer's memory is not mapped here, or the group
// is larger than [devicecode.MaxRanks]; ErrInvalid when p is closed; in a group of more than
// 72 ranks as for [gpu.Device.Alloc], since the table needs memory.
func (p *PeerMemory) Handle() (devicecode.PeerMemory, error) {
	h, err := p.handleOf(p.c.everyone(), &p.more.all)
	return layout.Handle[devicecode.PeerMemory](h), err
}

// HostHandle is like Handle for the ranks of [Communicator.HostRanks] only, by
// their index in that list.
func (p *PeerMemory) HostHandle() (devicecode.PeerMemory, error) {
	h, err := p.handleOf(p.c.hostRanks(), &p.more.local)
	return layout.Handle[devicecode.PeerMemory](h), err
}

// handleOf returns the handle of the given ranks, by their index in the list.
func (p *PeerMemory) handleOf(ranks []int, more *addresses) (h layout.PeerMemory, err error) {
	p.more.mu.Lock()
	defer p.more.mu.Unlock()
	if p.more.closed {
		return h, mscclgo.Errorf(mscclgo.ErrInvalid, handleOp, "the memory is closed").At(p.c.Rank(), mscclgo.NoRank)
	}
	at, err := p.addressesOf(ranks)
	if err != nil {
		return h, err
	}
	h.Size, h.Status = uint64(len(ranks)), p.c.status.Ptr()
	h.More, err = more.place(p.c.private, at[copy(h.Ranks[:], at):])
	return h, err
}

const handleOp = "communicator: handle of shared memory"

// addressesOf returns where the buffers of the given ranks are.
func (p *PeerMemory) addressesOf(ranks []int) ([]gpu.Ptr, error) {
	if err := fitsHandle(len(ranks)); err != nil {
		return nil, err
	}
	at := make([]gpu.Ptr, len(ranks))
	for i, rank := range ranks {
		b := p.Memories[rank].Buffer()
		if b == nil {
			return nil, mscclgo.Errorf(mscclgo.ErrUnsupported, handleOp, "its memory is not mapped here; use the ranks of this host only (HostHandle, HostGroup), and port channels to the others").At(mscclgo.NoRank, rank)
		}
		at[i] = b.Ptr()
	}
	return at, nil
}

// fitsHandle returns an error if handles cannot hold the addresses of so many ranks.
func fitsHandle(ranks int) error {
	if ranks > devicecode.MaxRanks {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, handleOp, "kernels reach the memory of at most %d ranks by address, and these are %d; use groups of fewer (Split), or port channels", devicecode.MaxRanks, ranks)
	}
	return nil
}

// Close unmaps the peers' buffers and unregisters this rank's. Kernels that use them
// must have ended. Close may be called twice, and does nothing on nil.
func (p *PeerMemory) Close() error {
	if p == nil {
		return nil
	}
	p.more.close(p.c.private)
	var errs []error
	for _, m := range p.Memories {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

func (m *moreAddresses) close(private *arena) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.all.free(private)
	m.local.free(private)
}
