package communicator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
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

	local    *gpu.Buffer
	options  MemoryChannelOptions
	sems     semaphores
	channels []*channel.MemoryChannel // in the order of Handles
	handles  piece
	peers    *PeerMemory
	closing  *sync.Mutex // held by Close: what it frees is freed once
}

// maxPerPeer bounds MemoryChannelOptions.PerPeer.
const maxPerPeer = 4096

// MemoryChannels makes channels between all ranks. Peers write the local buffer of
// this rank, unless the options name an inbox. When it returns, kernels may use the
// handles. The buffers remain the caller's; see [Communicator.Share] for when to
// free them, and [Communicator.Pipes] for when after an error. Collective.
//
// Errors: as [Communicator.Share]; ErrInvalid when the ranks disagree on
// PerPeer; ErrUnsupported when the memory of a rank is not mapped here.
func (c *Communicator) MemoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions) (*MemoryChannels, error) {
	return c.memoryChannels(ctx, local, o, nil)
}

// memoryChannels is MemoryChannels, with channels of an earlier group, or nil, whose places
// these take where that is possible.
func (c *Communicator) memoryChannels(ctx context.Context, local *gpu.Buffer, o MemoryChannelOptions, before *MemoryChannels) (*MemoryChannels, error) {
	op := "communicator: make memory channels for " + sizeOf(local)
	if o.PerPeer == 0 {
		o.PerPeer = 1
	}
	shared := local
	if o.Inbox != nil {
		shared = o.Inbox
	}
	err := c.checkChannels(op, local, o.PerPeer)
	var at *PeerMemory
	if before != nil {
		err, at = errors.Join(err, c.follows(op, before.sems.c)), before.peers
	}
	k := c.begin("make memory channels", op)
	peers, err := c.shareAt(ctx, k, shared, err, at)
	if err != nil {
		return nil, err
	}
	m := &MemoryChannels{local: local, options: o, sems: semaphores{c: c, perPeer: o.PerPeer, name: o.Name}, peers: peers, closing: new(sync.Mutex)}
	if m.Ranks = c.everyone(); o.SameHost {
		m.Ranks = c.HostRanks()
	}
	k = k.then("connect memory channels")
	mine, err := m.sems.take()
	all, err := k.collect(ctx, mine, err)
	made := false
	if err == nil {
		err = m.connect(ctx, op, local, o.Inbox, all, before)
		made = err == nil
		err = k.agree(ctx, err)
	}
	if err != nil {
		if before != nil && m.handles == before.handles {
			m.handles = piece{} // they stay before's
		}
		return nil, k.giveUp(made, err, m.Close)
	}
	return m, nil
}

// checkChannels returns the error of invalid arguments.
func (c *Communicator) checkChannels(op string, local *gpu.Buffer, perPeer int) error {
	invalid := func(format string, args ...any) error { return c.invalid(op, format, args...) }
	switch {
	case perPeer < 0 || perPeer > maxPerPeer:
		return invalid("%d channels for each peer, 1 to %d are allowed", perPeer, maxPerPeer)
	case local == nil:
		return invalid("the local buffer is nil")
	}
	return nil
}

// connect makes this rank's channels and copies their handles to device memory.
func (m *MemoryChannels) connect(ctx context.Context, op string, local, inbox *gpu.Buffer, all [][]byte, before *MemoryChannels) error {
	c := m.sems.c
	mine := m.peers.Memories[c.Rank()]
	if inbox != nil {
		var err error
		if mine, err = m.sems.register(local); err != nil {
			return err
		}
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
	var values []devicecode.MemoryChannel
	for i := range m.sems.perPeer {
		for _, rank := range m.Ranks {
			words, err := m.sems.buffer(i, rank)
			if err != nil {
				return err
			}
			to := theirs[rank][i]
			signalled, err := to.slab.Buffer().Slice(to.offset, semaphoreBytes)
			if err != nil {
				return err
			}
			s, err := semaphore.NewDevice2Device(words, signalled, c.watch(rank, m.sems.number(i, i)))
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
	if before == nil {
		before = &MemoryChannels{}
	}
	m.handles, m.Handles, err = rewrite(c, before.handles, before.Handles, values)
	return err
}

// Channel returns channel i, below PerPeer, to a rank of Ranks, or nil if there is none.
func (m *MemoryChannels) Channel(i, rank int) *channel.MemoryChannel {
	if at, ok := indexOf(m.Ranks, m.sems.perPeer, i, rank); ok {
		return m.channels[at]
	}
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
	return devicecode.MemoryChannelSet(m.sems.c.channelSet(m.Handles, m.Ranks, m.options.PerPeer))
}

// channelSet returns a set of channels to ranks. There are no handles without ranks.
func (c *Communicator) channelSet(handles *gpu.Buffer, ranks []int, perPeer int) devicecode.MemoryChannelSet {
	set := devicecode.MemoryChannelSet{
		Rank: uint32(len(ranks)), Size: uint32(len(ranks)), PerPeer: uint32(perPeer), Watch: c.watch(c.Rank(), groupChannel),
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
	return handleOf[devicecode.MemoryChannel](m.Handles, m.Ranks, m.sems.perPeer, i, rank)
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
	errs := []error{m.peers.Close(), m.sems.close()}
	if m.handles.slab != nil {
		m.sems.c.private.free(m.handles)
	}
	m.handles = piece{}
	return errors.Join(errs...)
}

// sizeIn returns the size of n values in bytes.
func sizeIn[T any](n int) uint64 {
	var value T
	return uint64(n) * uint64(unsafe.Sizeof(value))
}
