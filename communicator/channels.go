package communicator

import (
	"context"
	"errors"
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
}

// MemoryChannels are one rank's ends of channels to all ranks, itself included,
// so that a kernel can treat all alike.
type MemoryChannels struct {
	// Handles is device memory with the handles, PerPeer times Size of them:
	// channel i to rank r is handles[i * Size + r].
	Handles *gpu.Buffer

	comm     *Communicator
	channels []*channel.MemoryChannel
	words    []piece // semaphores, in the order of Handles
	handles  piece
	peers    *PeerMemory
	memories []*registeredmem.Memory // imported or registered for these channels alone
}

// maxPerPeer bounds MemoryChannelOptions.PerPeer.
const maxPerPeer = 4096

// MemoryChannels makes channels between all ranks: local here is what peers
// reach as remote, unless the options name an inbox. The handles are ready for
// kernels when it returns. The buffers stay the caller's; see
// [Communicator.Share] for when to free them. Collective.
//
// Errors: as [Communicator.Share]; ErrInvalid when the ranks disagree on
// PerPeer.
func (c *Communicator) MemoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions) (*MemoryChannels, error) {
	op := "communicator: make memory channels for " + sizeOf(local)
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	shared := local
	if o.Inbox != nil {
		shared = o.Inbox
	}
	peers, err := c.share(ctx, c.begin("make memory channels", op), shared, c.checkChannels(op, local, o))
	if err != nil {
		return nil, err
	}
	m := &MemoryChannels{comm: c, peers: peers}
	k := c.begin("connect memory channels", op)
	mine, err := m.offer(o.PerPeer)
	all, err := k.collect(ctx, mine, err)
	if err == nil {
		err = k.agree(ctx, m.connect(ctx, op, local, o, all))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// checkChannels gives the error of arguments that cannot be.
func (c *Communicator) checkChannels(op string, local *gpu.Buffer, o MemoryChannelOptions) error {
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(c.Rank(), mscclgo.NoRank)
	}
	switch {
	case o.PerPeer < 0 || o.PerPeer > maxPerPeer:
		return invalid("%d channels a peer asked, 1 to %d are possible", o.PerPeer, maxPerPeer)
	case local == nil:
		return invalid("the local buffer is nil")
	}
	return nil
}

// offer takes memory for this rank's ends and describes where each peer's
// signals go.
func (m *MemoryChannels) offer(perPeer int) ([]byte, error) {
	for range perPeer * m.comm.Size() {
		p, err := m.comm.shared.take(semaphore.Device2DeviceBytes)
		if err != nil {
			return nil, err
		}
		m.words = append(m.words, p)
	}
	o, err := newOffer(perPeer, m.words)
	if err != nil {
		return nil, err
	}
	return o.encode(), nil
}

// accept reads a peer's offer, maps the slabs it names, and gives the words that
// this rank signals, by channel number.
func (m *MemoryChannels) accept(ctx context.Context, op string, rank, perPeer int, b []byte) ([]*gpu.Buffer, error) {
	c := m.comm
	o, err := decodeOffer(b, c.Size())
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its offer is malformed: %w", err).At(c.Rank(), rank)
	}
	if o.perPeer != perPeer {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "it makes %d channels a peer, this rank %d", o.perPeer, perPeer).At(c.Rank(), rank)
	}
	slabs := map[uint32]*registeredmem.Memory{}
	words := make([]*gpu.Buffer, perPeer)
	for i := range perPeer {
		p := o.places[i*c.Size()+c.Rank()]
		if slabs[p.slab] == nil {
			slab, err := c.registry.Import(ctx, o.slabs[p.slab])
			if err != nil {
				return nil, err
			}
			m.memories = append(m.memories, slab)
			slabs[p.slab] = slab
		}
		if words[i], err = slabs[p.slab].Buffer().Slice(p.offset, semaphore.Device2DeviceBytes); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "a semaphore of its offer: %w", err).At(c.Rank(), rank)
		}
	}
	return words, nil
}

// connect makes this rank's ends and puts their handles into device memory.
func (m *MemoryChannels) connect(ctx context.Context, op string, local *gpu.Buffer, o MemoryChannelOptions, all [][]byte) error {
	c := m.comm
	mine := m.peers.Memories[c.Rank()]
	if o.Inbox != nil {
		own, err := c.registry.Register(local)
		if err != nil {
			return err
		}
		m.memories = append(m.memories, own)
		mine = own
	}
	signalled := make([][]*gpu.Buffer, c.Size()) // by rank and channel number
	for rank, b := range all {
		var err error
		if signalled[rank], err = m.accept(ctx, op, rank, o.PerPeer, b); err != nil {
			return err
		}
	}
	var handles []devicecode.MemoryChannel
	for i := range o.PerPeer {
		for rank := range c.Size() {
			words, err := m.words[i*c.Size()+rank].buffer(semaphore.Device2DeviceBytes)
			if err != nil {
				return err
			}
			s, err := semaphore.NewDevice2Device(words, signalled[rank][i], c.watch(rank, c.number()))
			if err != nil {
				return err
			}
			ch, err := channel.NewMemoryChannel(s, m.peers.Memories[rank], mine, o.Inbox)
			if err != nil {
				return err
			}
			m.channels = append(m.channels, ch)
			handles = append(handles, ch.Handle())
		}
	}
	size := uint64(len(handles)) * uint64(unsafe.Sizeof(devicecode.MemoryChannel{}))
	p, err := c.private.take(size)
	if err != nil {
		return err
	}
	m.handles = p
	if m.Handles, err = p.buffer(size); err != nil {
		return err
	}
	return gpu.CopyIn(m.Handles, handles)
}

// number gives a channel its number, from 1.
func (c *Communicator) number() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels++
	return c.channels
}

// Channel gives channel i, below PerPeer, to a rank.
func (m *MemoryChannels) Channel(i, rank int) *channel.MemoryChannel {
	return m.channels[i*m.comm.Size()+rank]
}

// HandleOf gives the address of the handle of channel i, below PerPeer, to a
// rank, in device memory.
func (m *MemoryChannels) HandleOf(i, rank int) gpu.Ptr {
	return m.Handles.Ptr() + gpu.Ptr(i*m.comm.Size()+rank)*gpu.Ptr(unsafe.Sizeof(devicecode.MemoryChannel{}))
}

// Close releases the channels' memory. No kernel of any rank may use them any
// more. It is safe to call twice.
func (m *MemoryChannels) Close() error {
	errs := []error{m.peers.Close()}
	for _, s := range m.memories {
		errs = append(errs, s.Close())
	}
	for _, p := range m.words {
		m.comm.shared.give(p)
	}
	if m.handles.slab != nil {
		m.comm.private.give(m.handles)
	}
	m.memories, m.words, m.handles = nil, nil, piece{}
	return errors.Join(errs...)
}
