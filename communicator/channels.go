package communicator

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// MemoryChannelOptions are what all ranks may choose, alike; the zero value is
// right for most.
type MemoryChannelOptions struct {
	// PerPeer is the number of channels to each rank, so that each block of a
	// grid can have its own. 0 means 1.
	PerPeer int
	// Inbox is this rank's buffer that peers write, when it is not the local
	// one: for packets, which unpackPackets takes from it into the local
	// buffer. It must be zeroed before its first use.
	Inbox *gpu.Buffer
	// SameHost makes channels among the ranks of [Communicator.HostRanks] alone.
	SameHost bool
}

// MemoryChannels are one rank's ends of channels to all ranks, itself included,
// so that a kernel can treat all alike.
type MemoryChannels struct {
	// Handles is device memory with the handles, PerPeer times len(Ranks) of them:
	// channel i to rank Ranks[j] is handles[i * len(Ranks) + j].
	Handles *gpu.Buffer
	// Ranks are those at the other ends, in ascending order: all, unless
	// SameHost was asked.
	Ranks []int

	ends     ends
	channels []*channel.MemoryChannel // in the order of Handles
	handles  piece
	peers    *PeerMemory
}

// maxPerPeer bounds MemoryChannelOptions.PerPeer.
const maxPerPeer = 4096

// MemoryChannels makes channels between all ranks: local here is what peers
// reach as remote, unless the options name an inbox. The handles are ready for
// kernels when it returns. The buffers stay the caller's; see
// [Communicator.Share] for when to free them. Collective.
//
// Errors: as [Communicator.Share]; ErrInvalid when the ranks disagree on
// PerPeer; ErrUnsupported when a rank's memory is not mapped here.
func (c *Communicator) MemoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions) (*MemoryChannels, error) {
	op := "communicator: make memory channels for " + sizeOf(local)
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	shared := local
	if o.Inbox != nil {
		shared = o.Inbox
	}
	peers, err := c.share(ctx, c.begin("make memory channels", op), shared, c.checkChannels(op, local, o.PerPeer))
	if err != nil {
		return nil, err
	}
	m := &MemoryChannels{ends: ends{c: c, perPeer: o.PerPeer}, peers: peers}
	if m.Ranks = c.everyone(); o.SameHost {
		m.Ranks = c.HostRanks()
	}
	k := c.begin("connect memory channels", op)
	mine, err := m.ends.take()
	all, err := k.collect(ctx, mine, err)
	if err == nil {
		err = k.agree(ctx, m.connect(ctx, op, local, o.Inbox, all))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// checkChannels gives the error of arguments that cannot be.
func (c *Communicator) checkChannels(op string, local *gpu.Buffer, perPeer int) error {
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.Rank(), mscclgo.NoRank)
	}
	switch {
	case perPeer < 0 || perPeer > maxPerPeer:
		return invalid("%d channels a peer asked, 1 to %d are possible", perPeer, maxPerPeer)
	case local == nil:
		return invalid("the local buffer is nil")
	}
	return nil
}

// connect makes this rank's ends and puts their handles into device memory.
func (m *MemoryChannels) connect(ctx context.Context, op string, local, inbox *gpu.Buffer, all [][]byte) error {
	c := m.ends.c
	mine := m.peers.Memories[c.Rank()]
	if inbox != nil {
		var err error
		if mine, err = m.ends.register(local); err != nil {
			return err
		}
	}
	theirs := make([][]peerEnd, c.Size())
	for _, rank := range m.Ranks {
		var err error
		if theirs[rank], err = m.ends.accept(ctx, op, rank, all[rank]); err != nil {
			return err
		}
		if c.links[rank] != registeredmem.CudaIPC {
			return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "its memory is not mapped here; ask for channels on the SameHost, and for port channels to others").At(c.Rank(), rank)
		}
	}
	var values []devicecode.MemoryChannel
	for i := range m.ends.perPeer {
		for _, rank := range m.Ranks {
			words, err := m.ends.own(i, rank)
			if err != nil {
				return err
			}
			to := theirs[rank][i]
			signalled, err := to.slab.Buffer().Slice(to.offset, endBytes)
			if err != nil {
				return err
			}
			s, err := semaphore.NewDevice2Device(words, signalled, c.watch(rank, c.number()))
			if err != nil {
				return err
			}
			ch, err := channel.NewMemoryChannel(s, m.peers.Memories[rank], mine, inbox)
			if err != nil {
				return err
			}
			m.channels = append(m.channels, ch)
			values = append(values, ch.Handle())
		}
	}
	var err error
	m.handles, m.Handles, err = handles(c, values)
	return err
}

// number gives a channel its number, from 1.
func (c *Communicator) number() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels++
	return c.channels
}

// Channel gives channel i, below PerPeer, to a rank of Ranks.
func (m *MemoryChannels) Channel(i, rank int) *channel.MemoryChannel {
	return m.channels[m.index(i, rank)]
}

// index gives the place of a channel in Handles.
func (m *MemoryChannels) index(i, rank int) int {
	return i*len(m.Ranks) + slices.Index(m.Ranks, rank)
}

// HandleOf gives the address of the handle of channel i, below PerPeer, to a
// rank of Ranks, in device memory.
func (m *MemoryChannels) HandleOf(i, rank int) gpu.Ptr {
	return m.Handles.Ptr() + gpu.Ptr(sizeIn[devicecode.MemoryChannel](m.index(i, rank)))
}

// Close releases the channels' memory. No kernel of any rank may use them any
// more. It is safe to call twice.
func (m *MemoryChannels) Close() error {
	errs := []error{m.peers.Close(), m.ends.close()}
	if m.handles.slab != nil {
		m.ends.c.private.give(m.handles)
	}
	m.handles = piece{}
	return errors.Join(errs...)
}

// sizeIn gives the bytes of n values.
func sizeIn[T any](n int) uint64 {
	var value T
	return uint64(n) * uint64(unsafe.Sizeof(value))
}
