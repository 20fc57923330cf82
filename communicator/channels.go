package communicator

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
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
	op := fmt.Sprintf("communicator: make memory channels for %d bytes", local.Size())
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	if o.PerPeer < 0 || o.PerPeer > maxPerPeer {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d channels a peer asked, 1 to %d are possible", o.PerPeer, maxPerPeer).At(c.Rank(), mscclgo.NoRank)
	}
	shared := local
	if o.Inbox != nil {
		shared = o.Inbox
	}
	peers, err := c.Share(ctx, shared)
	if err != nil {
		return nil, err
	}
	m := &MemoryChannels{comm: c, peers: peers}
	mine, err := m.offer(o.PerPeer)
	all, err := c.collect(ctx, op, mine, err)
	if err == nil {
		err = m.connect(ctx, op, local, o, all)
		err = c.agree(ctx, op, err)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// offer takes memory for this rank's ends and describes where each peer's
// signals go: for every channel the slab and the offset in it.
func (m *MemoryChannels) offer(perPeer int) ([]byte, error) {
	c := m.comm
	w := wire.NewWriter(0)
	w.U32(uint32(perPeer))
	for range perPeer * c.Size() {
		p, err := c.shared.take(semaphore.Device2DeviceBytes)
		if err != nil {
			return nil, err
		}
		m.words = append(m.words, p)
	}
	var slabs []*slab // in the order of their description
	index := map[*slab]uint32{}
	for _, p := range m.words {
		if _, ok := index[p.slab]; !ok {
			index[p.slab] = uint32(len(slabs))
			slabs = append(slabs, p.slab)
		}
	}
	w.U32(uint32(len(slabs)))
	for _, s := range slabs {
		b, err := s.mem.MarshalBinary()
		if err != nil {
			return nil, err
		}
		w.Blob(b)
	}
	for _, p := range m.words {
		w.U32(index[p.slab])
		w.U64(p.offset)
	}
	return w.Bytes(), nil
}

// offered is what a peer's offer says for this rank: its slabs, imported, and
// the words of each channel.
type offered struct {
	words []*gpu.Buffer // by channel number
}

// maxSlabs bounds the slabs of an offer, and maxDescription the bytes of one.
const (
	maxSlabs       = 1 << 16
	maxDescription = 4096
)

// accept reads a peer's offer and maps the slabs it names.
func (m *MemoryChannels) accept(ctx context.Context, op string, rank, perPeer int, b []byte) (offered, error) {
	c := m.comm
	bad := func(format string, args ...any) (offered, error) {
		return offered{}, mscclgo.Errorf(mscclgo.ErrRemote, op, format, args...).At(c.Rank(), rank)
	}
	r := wire.NewReader(b)
	if theirs := r.U32(); r.Err() == nil && theirs != uint32(perPeer) {
		return offered{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "it makes %d channels a peer, this rank %d", theirs, perPeer).At(c.Rank(), rank)
	}
	n := r.U32()
	if n > maxSlabs {
		return bad("its offer names %d slabs", n)
	}
	var slabs []*registeredmem.Memory
	for range n {
		description := r.Blob(maxDescription)
		if r.Err() != nil {
			break
		}
		slab, err := c.registry.Import(ctx, description)
		if err != nil {
			return offered{}, err
		}
		m.memories = append(m.memories, slab)
		slabs = append(slabs, slab)
	}
	var o offered
	for i := range perPeer * c.Size() {
		slab, offset := r.U32(), r.U64()
		if r.Err() != nil || i%c.Size() != c.Rank() {
			continue
		}
		if slab >= uint32(len(slabs)) {
			return bad("its offer has %d slabs and a semaphore in slab %d", len(slabs), slab)
		}
		words, err := slabs[slab].Buffer().Slice(offset, semaphore.Device2DeviceBytes)
		if err != nil {
			return bad("a semaphore of its offer: %w", err)
		}
		o.words = append(o.words, words)
	}
	if err := r.End(); err != nil {
		return bad("its offer is malformed: %w", err)
	}
	return o, nil
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
	offers := make([]offered, c.Size())
	for rank, b := range all {
		var err error
		if offers[rank], err = m.accept(ctx, op, rank, o.PerPeer, b); err != nil {
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
			s, err := semaphore.NewDevice2Device(words, offers[rank].words[i], c.watch(rank, c.number()))
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
