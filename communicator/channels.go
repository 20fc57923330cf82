package communicator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// MemoryChannelOptions configure [Communicator.MemoryChannels], alike on all ranks.
// The zero value is right for most uses.
type MemoryChannelOptions struct {
	// PerPeer is the number of channels to each rank, so that each block of a
	// grid can have its own. 0 means 1.
	PerPeer int
	// Inbox is the buffer of this rank that peers write, when it is not the local
	// one: for packets, which unpackPackets moves from it to the local buffer. It
	// must be zero before its first use, and its address a multiple of the packets'
	// alignment: 8 bytes for LL8, 16 for LL16, 128 for LL128.
	Inbox *gpu.Buffer
	// Name is the channels' name in errors, of which 32 bytes are shown. Without one,
	// errors give a number.
	Name string
	// SameHost makes channels among the ranks of [Communicator.HostRanks] only.
	SameHost bool
}

// MemoryChannels are one rank's ends of channels to all ranks, itself included,
// so that a kernel can treat all ranks alike.
type MemoryChannels struct {
	// Handles is device memory with the handles, PerPeer times len(Ranks) of them:
	// channel i to rank Ranks[j] is handles[i * len(Ranks) + j].
	Handles *gpu.Buffer
	// Ranks are the peers, in ascending order: all ranks, unless SameHost was set.
	Ranks []int

	channelEnds
	options  MemoryChannelOptions
	channels []*channel.MemoryChannel // in the order of Handles
}

// channelEnds is what MemoryChannels and PortChannels have alike.
type channelEnds struct {
	local   *gpu.Buffer
	sems    semaphores
	peers   *PeerMemory
	mine    *registeredmem.Memory // local
	handles *table                // nil once channels of the next group have it
	before  *channelEnds          // whose handles these are still, or nil
	closing *sync.Mutex           // held by Close: what it frees is freed once
}

// startChannels begins to make channels: it shares the inbox of each rank, or its local buffer. Where before is not nil, these
// are ends of an earlier group, whose places the channels take where that is possible. failed is why this rank cannot take part.
func (c *Communicator) startChannels(ctx context.Context, k *call, local, inbox *gpu.Buffer, perPeer int, name string, before *channelEnds, failed error) (channelEnds, error) {
	switch {
	case perPeer < 0 || perPeer > maxPerPeer:
		failed = errors.Join(failed, c.invalid(k.op, "%d channels for each peer, 1 to %d are allowed", perPeer, maxPerPeer))
	case local == nil:
		failed = errors.Join(failed, c.invalid(k.op, "the local buffer is nil"))
	}
	e := channelEnds{local: local, sems: semaphores{c: c, perPeer: perPeer, name: name}, handles: new(table), before: before, closing: new(sync.Mutex)}
	var at *PeerMemory
	if before != nil {
		failed, at, e.handles = errors.Join(failed, c.follows(k.op, before.sems.c)), before.peers, before.handles
	}
	var err error
	e.peers, err = c.shareAt(ctx, k, cmp.Or(inbox, local), failed, at)
	return e, err
}

// registerLocal has the local buffer registered, as it is already where there is no inbox.
func (e *channelEnds) registerLocal(inbox *gpu.Buffer) (err error) {
	if e.mine = e.peers.Memories[e.sems.c.Rank()]; inbox != nil {
		e.mine, err = e.sems.register(e.local)
	}
	return err
}

// take makes these channels the owner of the handles, which the channels before them had.
func (e *channelEnds) take() error {
	if e.before != nil {
		e.before.handles, e.before = nil, nil
	}
	return nil
}

// captured reports whether graphs that use these channels are right for the next group's channels: this rank has the
// same number in a group of the same size, and the handles, if there are any, are now where they were.
func (e *channelEnds) captured(c *Communicator, now, before *gpu.Buffer) bool {
	return c.asBefore(e.sems.c) && (before == nil || now != nil && now.Ptr() == before.Ptr())
}

// close frees what the channels have, but for connections.
func (e *channelEnds) close() error {
	if e.before == nil {
		e.handles.free(e.sems.c.private)
	}
	return errors.Join(e.peers.Close(), e.sems.close())
}

// maxPerPeer bounds MemoryChannelOptions.PerPeer.
const maxPerPeer = 4096

// MemoryChannels makes channels between all ranks. Peers write the local buffer of
// this rank, unless the options name an inbox. When it returns, kernels may use the
// handles. The buffers remain the caller's; see [Communicator.Share] for when to
// free them, and [Communicator.Pipes] for when after an error. Collective.
//
// Errors: as for [Communicator.Share]; ErrInvalid when the ranks disagree on
// PerPeer; ErrUnsupported when the memory of a rank is not mapped here.
func (c *Communicator) MemoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions) (*MemoryChannels, error) {
	return c.memoryChannels(ctx, local, o, nil)
}

// memoryChannels is MemoryChannels, with channels of an earlier group, or nil, whose places
// these take where that is possible.
func (c *Communicator) memoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions, before *channelEnds) (*MemoryChannels, error) {
	op := "communicator: make memory channels for " + sizeOf(local)
	o.PerPeer = cmp.Or(o.PerPeer, 1)
	k := c.begin("make memory channels", op)
	ends, err := c.startChannels(ctx, k, local, o.Inbox, o.PerPeer, o.Name, before, nil)
	if err != nil {
		return nil, err
	}
	m := &MemoryChannels{channelEnds: ends, options: o}
	if m.Ranks = c.everyone(); o.SameHost {
		m.Ranks = c.HostRanks()
	}
	connect := func(all [][]byte) error { return m.connect(ctx, op, all) }
	if err := k.then("connect memory channels").made(ctx, m.sems.take, connect, m.take, m.Close); err != nil {
		return nil, err
	}
	return m, nil
}

// connect makes this rank's channels and copies their handles to device memory.
func (m *MemoryChannels) connect(ctx context.Context, op string, all [][]byte) error {
	c := m.sems.c
	if err := m.registerLocal(m.options.Inbox); err != nil {
		return err
	}
	theirs := make([][]peerSemaphore, c.Size())
	for _, rank := range m.Ranks {
		var err error
		if theirs[rank], err = m.sems.accept(ctx, op, rank, all[rank]); err != nil {
			return err
		}
		if c.links[rank] != registeredmem.CudaIPC {
			return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "its memory is not mapped here; set SameHost, and use port channels to the other ranks").At(c.Rank(), rank)
		}
	}
	var values []layout.MemoryChannel
	for i := range m.sems.perPeer {
		for _, rank := range m.Ranks {
			s, err := m.sems.byThreads(i, i, rank, theirs[rank][i])
			if err != nil {
				return err
			}
			ch, err := channel.NewMemoryChannel(s, m.peers.Memories[rank], m.mine, m.options.Inbox)
			if err != nil {
				return err
			}
			m.channels = append(m.channels, ch)
			values = append(values, ch.Handle().Internal())
		}
	}
	if err := store(m.handles, c.private, values); err != nil {
		return err
	}
	m.Handles = m.handles.memory
	return nil
}

// indexOf returns the index of channel i to a rank in the Handles of so many channels to each of
// ranks, and whether there is one.
func indexOf(ranks []int, perPeer, i, rank int) (int, bool) {
	at := slices.Index(ranks, rank)
	return i*len(ranks) + at, at >= 0 && i >= 0 && i < perPeer
}

// Set returns the channels for a kernel, which takes a MemoryChannelSet of
// <mscclgo/memory_channel.cuh> by value and indexes it by peer and channel. It is valid
// until Close.
func (m *MemoryChannels) Set() devicecode.MemoryChannelSet {
	return layout.Handle[devicecode.MemoryChannelSet](m.sems.c.channelSet(m.Handles, m.Ranks, m.options.PerPeer))
}

// channelSet returns a set of channels to ranks. There are no handles without ranks.
func (c *Communicator) channelSet(handles *gpu.Buffer, ranks []int, perPeer int) layout.ChannelSet {
	set := layout.ChannelSet{
		Rank: uint32(len(ranks)), Size: uint32(len(ranks)), PerPeer: uint32(perPeer), Watch: layout.Watch(c.watch(c.Rank(), groupChannel)),
	}
	if i := slices.Index(ranks, c.Rank()); i >= 0 {
		set.Rank = uint32(i)
	}
	if handles != nil {
		set.Handles = handles.Ptr()
	}
	return set
}

// HandleOf returns the device address of the handle of channel i, below PerPeer, to
// a rank of Ranks, or 0 if there is none.
func (m *MemoryChannels) HandleOf(i, rank int) gpu.Ptr {
	return handleOf[layout.MemoryChannel](m.Handles, m.Ranks, m.sems.perPeer, i, rank)
}

// handleOf is HandleOf for channels whose handles are a T each.
func handleOf[T any](handles *gpu.Buffer, ranks []int, perPeer, i, rank int) gpu.Ptr {
	if at, ok := indexOf(ranks, perPeer, i, rank); ok {
		return handles.Ptr() + gpu.Ptr(sizeIn[T](at))
	}
	return 0
}

// Close frees the channels' memory. No kernel of any rank may use them any longer.
// Close may be called twice, and does nothing on nil.
func (m *MemoryChannels) Close() error {
	if m == nil {
		return nil
	}
	m.closing.Lock()
	defer m.closing.Unlock()
	return m.close()
}

// sizeIn returns the size of n values in bytes.
func sizeIn[T any](n int) uint64 {
	var value T
	return uint64(n) * uint64(unsafe.Sizeof(value))
}
